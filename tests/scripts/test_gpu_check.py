"""scripts/gpu_check.sh where there is no GPU, and with programs that pretend there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripts import run_script

from translate_trt.runtime.backends.nvidia_driver import compute_capability

pytestmark = pytest.mark.slow

# Modules in MISSING do not import. PRECISIONS and EXTRA are what packages.py says of the GPU.
PYTHON = """#!/usr/bin/env bash
call=$(echo "python $*" | tr '\\n' ' ')
echo "$call" >>"$CALLS"
case "$call" in
    *find_gpu*) echo "${GPU-Some GPU (8.9)}" ;;
    *"-m translate_trt.runtime.backends.gpu_package"*) [ -n "${EXTRA-tensorrt-rtx}" ] && echo "${EXTRA-tensorrt-rtx}" ;;
    *packages.precisions*) echo "${PRECISIONS-fp16 bf16 fp32}" ;;
    *"-c import "* | *"torch.cuda"* | *CUDAExecutionProvider*)
        for name in ${MISSING-tensorrt}; do
            case "$call" in *"import $name "* | *", $name"*) exit 1 ;; esac
        done ;;
    *"${FAILING:-nothing}"*) echo "it is | broken" >&2; exit 1 ;;
    *generate_corpus.py*) mkdir -p "$3"; touch "$3"/{train,valid,test}.{en,de} ;;
    *"python - "*) cat >/dev/null ;;
esac
"""  # noqa: E501
TRANSLATE = """#!/usr/bin/env bash
call="translate-trt $*"
echo "$call" >>"$CALLS"
case "$call" in *"${FAILING:-nothing}"*) echo "it is | broken" >&2; exit "${STATUS:-1}" ;; esac
case "$call" in *"${HANGING:-nothing}"*) exec sleep 60 ;; esac
"""

CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >>"$CALLS"
case "$*" in *"${FAILING:-nothing}"*) echo "it is | broken" >&2; exit 1 ;; esac
case "$*" in "--build "*/service)
    mkdir -p "$2"
    printf '#!/usr/bin/env bash\necho "service $*" >>"$CALLS"\n' >"$2/translate_service"
    chmod +x "$2/translate_service" ;;
*translate_trt_cuda_check)
    mkdir -p "$2/tests"
    printf '#!/usr/bin/env bash\necho "cuda check" >>"$CALLS"\n' \\
        >"$2/tests/translate_trt_cuda_check"
    chmod +x "$2/tests/translate_trt_cuda_check" ;;
esac
"""


def run(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {
        "PATH": path, "CALLS": str(tmp_path / "calls"), "CUDAToolkit_ROOT": str(tmp_path / "bin"),
        "ONNXRUNTIME_INCLUDE_DIR": str(tmp_path / "bin"),
    }  # fmt: skip
    return run_script("gpu_check.sh", tmp_path / "out", **given, **environment)


@pytest.fixture
def pretending(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, content in (("python", PYTHON), ("translate-trt", TRANSLATE), ("cmake", CMAKE)):
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("cuda_runtime_api.h", "onnxruntime_cxx_api.h"):
        (tmp_path / "bin" / name).touch()
    return tmp_path


def rows(done: subprocess.CompletedProcess[str], gpu: str = "Some GPU (8.9)") -> dict[str, str]:
    """By name of a check, its result."""
    head, line, *cells = [row.removesuffix(" |").split(" | ") for row in done.stdout.splitlines()]
    assert head == ["| check", "GPU", "result", "time"]
    assert line == ["|---|---|---|---|"]
    assert all(len(row) == 4 and row[1] == gpu for row in cells), done.stdout
    return {row[0].removeprefix("| "): row[2] for row in cells}


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if compute_capability() is not None:
        pytest.skip("there is a GPU")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "GPU" in done.stderr
    benchmark = subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu.py", "--out", tmp_path / "gpu.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert benchmark.returncode == 3
    assert benchmark.stderr.startswith("no GPU")


def test_every_check_is_a_row_of_the_table(pretending: Path) -> None:
    done = run(pretending)
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done)
    assert set(found.values()) == {"passed"}
    assert (pretending / "out/table.md").read_text() == done.stdout
    assert f"{len(found)} passed, 0 failed, 0 not run" in done.stderr
    calls = (pretending / "calls").read_text()
    for precision in ("fp32", "fp16", "bf16"):
        assert f"tensorrt-rtx-{precision}: loads, and parity" in found
        assert f"--target tensorrt-rtx-{precision} --require-engines" in calls
    assert "--strip-weights" in calls
    assert "--target onnx-fp16 --scores --no-progress --device cuda" in calls
    assert "topk_ties.py --package tensorrt_rtx" in calls
    assert "benchmarks/gpu.py --package tensorrt_rtx" in calls
    assert "benchmarks/training.py" in calls
    assert "cuda check" in calls
    documented = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    for name in found:
        assert f"| {name} |" in documented, f"docs/gpu.md does not list {name!r}"


def test_what_is_not_installed_is_named_and_is_no_failure(pretending: Path) -> None:
    done = run(pretending, MISSING="tensorrt tensorrt_rtx torch onnxruntime")
    found = rows(done)
    assert found["tensorrt-rtx-fp16: building engines"] == "not run: needs the extra [tensorrt-rtx]"
    assert found["training a tiny model"] == "not run: needs PyTorch for CUDA"
    assert found["training a tiny model on the CPU instead"] == "passed"
    assert found["tensorrt-rtx-fp16: loads, and parity"] == (
        'not run: needs "tensorrt-rtx-fp16: building engines"'
    )
    assert found["onnx-fp16 with --device cuda, the same as onnx-fp32"] == (
        "not run: needs onnxruntime-gpu without onnxruntime"
    )
    assert done.returncode == 0
    assert "0 failed" in done.stderr


def test_training_on_the_cpu_replaces_training_that_fails(pretending: Path) -> None:
    done = run(pretending, FAILING="valid.de --device cuda")
    found = rows(done)
    assert found.pop("training a tiny model") == "FAILED (1): it is / broken"
    assert set(found.values()) == {"passed"}
    assert "--device cpu --steps" in (pretending / "calls").read_text()
    assert done.returncode == 1


@pytest.mark.nightly
def test_a_check_that_hangs_is_stopped(pretending: Path) -> None:
    # The check that hangs gets the rest of the time, and the checks after it are too late.
    done = run(pretending, HANGING="--target tensorrt-rtx-fp16 --profiles", GPU_CHECK_SECONDS="40")
    found = rows(done)
    assert found["exporting ONNX graphs"] == "passed"
    assert found["tensorrt-rtx-fp16: building engines"].startswith("FAILED: not finished after")
    assert any(result.startswith("NOT RUN") for result in found.values())
    assert done.returncode == 1

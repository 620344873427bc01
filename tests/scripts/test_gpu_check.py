"""scripts/gpu_check.sh where there is no GPU, and with programs that pretend there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from translate_trt.runtime.backends.nvidia_driver import compute_capability

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts/gpu_check.sh"

BENCHMARK = "base: steps and throughput against torch.compile"
IN_CPP = "tensorrt-fp16: in C++, the same as onnx-fp32"

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
        "PATH": path, "TRANSLATE_TRT_VENV": "none", "CALLS": str(tmp_path / "calls"),
        "CUDAToolkit_ROOT": str(tmp_path / "bin"), "ONNXRUNTIME_INCLUDE_DIR": str(tmp_path / "bin"),
    }  # fmt: skip
    return subprocess.run(
        ["bash", SCRIPT, str(tmp_path / "out")],
        env={**os.environ, **given, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def pretending(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, content in (("python", PYTHON), ("translate-trt", TRANSLATE), ("cmake", CMAKE)):
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("cuda_runtime_api.h", "onnxruntime_cxx_api.h"):
        (tmp_path / "bin" / name).touch()
    return tmp_path


@pytest.fixture
def headers(pretending: Path) -> dict[str, str]:
    """Make a folder of TensorRT's header and return the variable that names it."""
    folder = pretending / "headers"
    folder.mkdir()
    (folder / "NvInfer.h").touch()
    return {"TENSORRT_ROOT": str(folder)}


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
    assert done.stderr == "no GPU: the driver finds none (nvidia-smi lists them).\n"
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


def test_the_package_is_that_of_the_gpu(pretending: Path) -> None:
    hopper = {"GPU": "Other GPU (9.0)", "EXTRA": "tensorrt", "PRECISIONS": "fp16 fp32"}
    done = run(pretending, MISSING="", **hopper)
    found = rows(done, "Other GPU (9.0)")
    engines = [name for name in found if name.endswith("building engines")]
    assert engines == ["tensorrt-fp16: building engines", "tensorrt-fp32: building engines"]
    assert "benchmarks/gpu.py --package tensorrt " in (pretending / "calls").read_text()
    assert done.returncode == 0


def test_a_gpu_that_no_package_supports(pretending: Path) -> None:
    done = run(pretending, EXTRA="")
    found = rows(done)
    assert found["onnx-fp16 with --device cuda, the same as onnx-fp32"] == "passed"
    assert not any(name.startswith("tensorrt") for name in found)
    assert done.returncode == 0


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


def test_engines_are_run_from_cpp_where_there_are_headers(
    pretending: Path, headers: dict[str, str]
) -> None:
    assert f"| {IN_CPP} (where" in (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    tensorrt = {"EXTRA": "tensorrt", "MISSING": ""}
    Path(headers["TENSORRT_ROOT"], "NvInfer.h").unlink()
    done = run(pretending, **headers, **tensorrt)
    assert rows(done)[IN_CPP].startswith("not run: needs NvInfer.h")
    Path(headers["TENSORRT_ROOT"], "NvInfer.h").touch()
    done = run(pretending, **headers, **tensorrt)
    assert rows(done)[IN_CPP] == "passed", done.stdout + done.stderr
    calls = (pretending / "calls").read_text()
    assert "-D TRANSLATE_TRT_TENSORRT=ON" in calls
    assert f"service {pretending}/out/tensorrt-fp16 tensorrt-fp16" in calls


def test_cuda_in_cpp_needs_a_toolkit(pretending: Path) -> None:
    (pretending / "bin/cuda_runtime_api.h").unlink()
    found = rows(run(pretending))["CUDA device functions in C++"]
    assert found == "not run: needs cuda_runtime_api.h in CUDAToolkit_ROOT or /usr/local/cuda"


# Part of a call that fails, and the checks that then fail or cannot run.
FAILURES = {
    "generate_corpus": ["corpus"],
    "train --config tiny": [
        "training a tiny model", "training a tiny model on the CPU instead",
    ],
    "--target onnx-fp32 --target onnx-fp16": ["exporting ONNX graphs"],
    "--target onnx-fp32 --scores": ["onnx-fp32 on the CPU"],
    "--target tensorrt-fp32 --profiles": ["tensorrt-fp32: building engines"],
    "--target tensorrt-bf16 --require": ["tensorrt-bf16: loads, and parity"],
    "--target tensorrt-fp16 --scores --no-progress --workers": [
        "tensorrt-fp16: two workers, the same as onnx-fp32",
    ],
    "--target tensorrt-fp16 --all-options": ["tensorrt-fp16: building engines with all options"],
    "--target torch-fp16 --all-options": ["torch-fp16: exporting graphs with all options"],
    "--repetition-penalty": [
        "tensorrt-fp16: penalties, the same as onnx-fp32",
        "torch-fp16: penalties, the same as onnx-fp32",
    ],
    "topk_ties": ["tensorrt: order of equal values in TopK"],
    "--target onnx-fp16 --scores": ["onnx-fp16 with --device cuda, the same as onnx-fp32"],
    "--target torch-fp32 --target": ["torch targets: exporting graphs"],
    "--target torch-fp32 --scores": ["torch-fp32: the same as onnx-fp32"],
    "--strip-weights": ["tensorrt-fp16: engines without weights"],
    "tensorrt-stripped --checkpoint": ["tensorrt-fp16: weights put back, and parity"],
    "/out/cpp --parallel": [IN_CPP],
    "translate_trt_cuda_check": ["CUDA device functions in C++"],
    "data prepare": ["preparing training data"],
    "benchmarks/training.py": ["training base: tokens per second"],
    "benchmarks/gpu.py --package tensorrt": [f"tensorrt-fp16: {BENCHMARK}"],
    "benchmarks/gpu.py --package torch": [f"torch-fp16: {BENCHMARK}"],
}  # fmt: skip
# Rows that the table has only if what they need has passed, or if it has failed.
MAY_LACK = {
    "training a tiny model on the CPU instead",
    "tensorrt-fp16: engines without weights",
    "tensorrt-fp16: weights put back, and parity",
    IN_CPP,
}


@pytest.mark.slow
@pytest.mark.parametrize("failing", FAILURES)
def test_a_check_that_fails_hides_no_other(
    failing: str, pretending: Path, headers: dict[str, str]
) -> None:
    tensorrt = {"EXTRA": "tensorrt", "MISSING": "", **headers}
    done = run(pretending, FAILING=failing, **tensorrt)
    found = rows(done)
    assert done.returncode == 1
    failed = [name for name, result in found.items() if result.startswith("FAILED")]
    assert failed == FAILURES[failing]
    assert {found[name] for name in failed} == {"FAILED (1): it is / broken"}
    assert {name for names in FAILURES.values() for name in names} <= found.keys() | MAY_LACK
    # Only what needs a failed check did not run.
    for name, result in found.items():
        if name not in failed and result != "passed":
            cause = result.removeprefix('not run: needs "').removesuffix('"')
            assert cause in failed or not found[cause].startswith("passed"), (name, result)


def test_training_on_the_cpu_replaces_training_that_fails(pretending: Path) -> None:
    done = run(pretending, FAILING="valid.de --device cuda")
    found = rows(done)
    assert found.pop("training a tiny model") == "FAILED (1): it is / broken"
    assert set(found.values()) == {"passed"}
    assert "--device cpu --steps" in (pretending / "calls").read_text()
    assert done.returncode == 1


def test_a_crash_is_a_failure(pretending: Path) -> None:
    found = rows(run(pretending, FAILING="--strip-weights", STATUS="139"))
    assert found["tensorrt-rtx-fp16: engines without weights"].startswith("FAILED (139)")
    assert found["training base: tokens per second"] == "passed"


@pytest.mark.slow
def test_a_check_that_hangs_is_stopped(pretending: Path) -> None:
    # 12 s are left in all: the check that hangs gets them, and the rest is too late.
    done = run(pretending, HANGING="--target tensorrt-rtx-fp16 --profiles", GPU_CHECK_SECONDS="14")
    found = rows(done)
    assert found["exporting ONNX graphs"] == "passed"
    assert found["tensorrt-rtx-fp16: building engines"].startswith("FAILED: not finished after 1")
    assert found["training base: tokens per second"].startswith(("not run", "NOT RUN"))
    assert "NOT RUN: the time is up" in found.values()
    assert done.returncode == 1


def test_wheels_are_installed_without_an_index(pretending: Path) -> None:
    wheels = pretending / "wheels"
    done = run(pretending, WHEELS=str(wheels))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"WHEELS is {wheels}, which is not a folder.\n"
    wheels.mkdir()
    # An environment whose Python is the fake, which records how it was called.
    venv = pretending / "venv"
    (venv / "bin").mkdir(parents=True)
    fake = (pretending / "bin/python").read_text()
    show = 'call=$(echo "index=${PIP_NO_INDEX:-} links=${PIP_FIND_LINKS:-} python $*"'
    (venv / "bin/python").write_text(fake.replace('call=$(echo "python $*"', show))
    (venv / "bin/python").chmod(0o755)
    run(pretending, WHEELS=str(wheels), TRANSLATE_TRT_VENV=str(venv), GPU_CHECK_SECONDS="1",
        ONNXRUNTIME_INCLUDE_DIR=str(pretending))  # fmt: skip
    installs = [
        line for line in (pretending / "calls").read_text().splitlines() if "pip install" in line
    ]
    assert [line.split(".[")[1].split("]")[0] for line in installs] == [
        "gpu,export", "gpu,export,tensorrt-rtx",
    ]  # fmt: skip
    assert all(line.startswith(f"index=1 links={wheels} python") for line in installs)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck() -> None:
    subprocess.run(["shellcheck", "-x", SCRIPT], check=True, cwd=ROOT)

"""scripts/gpu_check.sh where there is no GPU, and with programs that pretend there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from translate_trt.runtime.backends.driver import compute_capability

SCRIPT = ROOT / "scripts/gpu_check.sh"

BENCHMARK = "base, steps and throughput against torch.compile"

PYTHON = """#!/usr/bin/env bash
echo "python $*" | head -n 1 >>"$CALLS"
case "$*" in
    *get_device_name*) echo "Some GPU (9.0)" ;;
    *"import tensorrt") [ -n "${TENSORRT_ROOT:-}" ] ;;
    *generate_corpus.py*) mkdir -p "$3"; touch "$3"/{train,valid,test}.{en,de} ;;
    "- "*) cat >/dev/null ;;
    *"${FAILING:-nothing}"*) echo "it is | broken"; exit 1 ;;
esac
"""
TRANSLATE = """#!/usr/bin/env bash
echo "translate-trt $*" >>"$CALLS"
case "$*" in *"${FAILING:-nothing}"*) echo "it is | broken"; exit 1 ;; esac
"""

CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >>"$CALLS"
case "$*" in "--build "*/service)
    mkdir -p "$2"
    printf '#!/usr/bin/env bash\necho "service $*" >>"$CALLS"\n' >"$2/translate_service"
    chmod +x "$2/translate_service" ;;
esac
"""


def run(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "TRANSLATE_TRT_VENV": "none", "CALLS": str(tmp_path / "calls")}
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
    return tmp_path


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """By name of a check, its result."""
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert all(len(row) == 4 and row[1] == "Some GPU (9.0)" for row in cells), done.stdout
    return {row[0]: row[2] for row in cells}


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if compute_capability() is not None:
        pytest.skip("there is a GPU")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "no GPU: no driver\n"
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
    assert found.pop("tensorrt") == "not installed"
    assert set(found.values()) == {"passed"}
    calls = (pretending / "calls").read_text()
    for precision in ("fp32", "fp16", "bf16"):
        assert f"tensorrt-rtx-{precision}: loads, and parity" in found
        assert f"--target tensorrt-rtx-{precision} --require-engines" in calls
    assert "--strip-weights" in calls
    assert "benchmarks/gpu.py --package tensorrt_rtx" in calls
    assert "benchmarks/training.py" in calls
    documented = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    for name in found:
        assert f"| {name} |" in documented, f"docs/gpu.md does not list {name!r}"


def test_engines_are_run_from_cpp_where_there_are_headers(pretending: Path) -> None:
    name = "tensorrt-fp32: in C++, the same as onnx-fp32"
    assert f"| {name} (where" in (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    headers = pretending / "headers"
    headers.mkdir()
    (headers / "onnxruntime_cxx_api.h").touch()
    given = {"TENSORRT_ROOT": str(headers), "ONNXRUNTIME_INCLUDE_DIR": str(headers)}
    assert name not in rows(run(pretending, **given))
    (headers / "NvInfer.h").touch()
    done = run(pretending, **given)
    assert rows(done)[name] == "passed", done.stdout + done.stderr
    calls = (pretending / "calls").read_text()
    assert "-D TRANSLATE_TRT_TENSORRT=ON" in calls
    assert f"service {pretending}/out/tensorrt tensorrt-fp32" in calls


@pytest.mark.parametrize(
    ("failing", "name"),
    [
        ("verify /", "tensorrt-rtx-bf16: loads, and parity"),
        ("export /", "tensorrt-rtx: building engines"),
        ("benchmarks/gpu.py", f"tensorrt-rtx-fp16: {BENCHMARK}"),
    ],
    ids=["verify", "export", "benchmark"],
)  # fmt: skip
def test_a_check_that_fails(failing: str, name: str, pretending: Path) -> None:
    done = run(pretending, FAILING=failing)
    assert done.returncode == 1
    assert rows(done)[name] == "FAILED: it is / broken"
    assert "training base: tokens per second" in rows(done)  # the others go on


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck() -> None:
    subprocess.run(["shellcheck", "-x", SCRIPT], check=True, cwd=ROOT)

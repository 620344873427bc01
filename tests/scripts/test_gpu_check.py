"""scripts/gpu_check.sh on the CPU, and with programs that pretend there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripts import run_script

from translate_trt.runtime import kernels, native
from translate_trt.runtime.backends.nvidia_driver import compute_capability

pytestmark = pytest.mark.slow

# DESCRIBED is what the script learns about the GPU. Modules in MISSING do not import.
PYTHON = """#!/usr/bin/env bash
call=$(printf '%q ' "$@")
echo "$call" >>"$CALLS"
case "$call" in
    "- "*) cat >/dev/null; echo -e "$DESCRIBED" ;;
    "-c "*)
        for name in ${MISSING:-}; do
            case "$*" in *"import $name"* | *", $name"*) exit 1 ;; esac
        done ;;
    *"${FAILING:-nothing}"*) echo "it is | broken" >&2; exit 1 ;;
    *generate_corpus.py*) mkdir -p "$3"; yes "the cat runs" | head -n 4 | tee "$3"/{train,valid,test}.{en,de} >/dev/null ;;
    *"data prepare"*) mkdir -p "$out/prepared" ;;
    *"target cuda-fp16 --profiles"*) mkdir -p "$out/cuda" ;;
esac
"""  # noqa: E501

CMAKE = """#!/usr/bin/env bash
case "$*" in "--build "*/service)
    mkdir -p "$2"
    printf '#!/usr/bin/env bash\necho "service $*" >>"$CALLS"\n' >"$2/translate_service"
    chmod +x "$2/translate_service" ;;
esac
"""

PRETENDED_COMPILER = """#!/usr/bin/env bash
while [ "$1" != -o ]; do shift; done
printf '#!/usr/bin/env bash\necho "cuda check" >>"$CALLS"\n' >"$2"
chmod +x "$2"
"""

GPU = "Some GPU (8.9)\\ntensorrt-rtx fp16 fp32 bf16\\ntensorrt fp16 fp32 bf16"


def program(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


@pytest.fixture
def needs_libraries() -> None:
    if native.library() is None or kernels.library() is None:
        pytest.skip("libtranslate_trt and its kernels are not built")


@pytest.fixture
def pretending(needs_libraries: None, tmp_path: Path) -> Path:
    """Folder of a prepared OUT and of programs that pretend."""
    for name, content in (("python3", PYTHON), ("cmake", CMAKE), ("c++", PRETENDED_COMPILER)):
        program(tmp_path / "bin" / name, content)
    (tmp_path / "bin/NvInfer.h").touch()
    assert pretend("prepare", tmp_path).returncode == 0
    return tmp_path


def pretend(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(folder / "calls"),
        "TENSORRT_ROOT": str(folder / "bin"),
    }  # fmt: skip
    return run_script(
        "gpu_check.sh", command, folder / "out", **{**given, "DESCRIBED": GPU, **environment}
    )


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """By name of a check, its result."""
    _, head, line, *cells = [
        row.removesuffix(" |").split(" | ") for row in done.stdout.splitlines()
    ]
    assert head[1:] == ["result", "time"]
    assert line == ["|---|---|---|"]
    assert all(len(row) == 3 for row in cells), done.stdout
    return {row[0].removeprefix("| "): row[1] for row in cells}


def test_a_wrong_call_and_a_folder_that_is_not_prepared(tmp_path: Path) -> None:
    for command, said in (("everything", "prepare"), ("check", "prepare"), ("speed", "prepare")):
        done = run_script("gpu_check.sh", command, tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_without_a_gpu_it_says_so(needs_libraries: None, tmp_path: Path) -> None:
    if compute_capability() is not None:
        pytest.skip("there is a GPU")
    (tmp_path / "prepared").mkdir()
    done = run_script("gpu_check.sh", "check", tmp_path, WHEELS="")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "no GPU" in done.stderr
    benchmark = subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu.py", "--out", tmp_path / "gpu.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert benchmark.returncode == 3
    assert benchmark.stderr.startswith("no GPU")


def test_every_check_is_a_row_of_the_table(pretending: Path) -> None:
    done = pretend("check", pretending)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = rows(done)
    assert set(checks.values()) == {"passed"}
    for target in ("torch-fp16", "torch-bf16", "cuda-fp16", "tensorrt-rtx-fp32", "tensorrt-fp16"):
        assert f"{target}: the same as onnx-fp32" in checks
    fast = pretend("speed", pretending)
    assert fast.returncode == 0, fast.stdout + fast.stderr
    assert set(rows(fast).values()) == {"passed"}
    assert (pretending / "out/results/table.md").read_text() == done.stdout + fast.stdout
    calls = (pretending / "calls").read_text()
    for said in (
        "--strip-weights", "--target onnx-fp16 --scores", "topk_ties.py --package tensorrt_rtx",
        "benchmarks/gpu.py --package tensorrt ", "benchmarks/gpu.py --package torch ",
        "benchmarks/gpu.py --package cuda ",
        "benchmarks/training.py", "cuda check", "service ",
    ):  # fmt: skip
        assert said in calls, said


def test_what_is_not_installed_is_named_and_is_no_failure(pretending: Path) -> None:
    done = pretend("check", pretending, MISSING="torch onnxruntime", DESCRIBED="Some GPU (8.9)")
    assert done.returncode == 0, done.stdout + done.stderr
    checks = rows(done)
    assert checks["torch-fp16: the same as onnx-fp32"] == "not run: needs PyTorch for cuda"
    assert checks["onnx-fp16 with --device cuda, the same as onnx-fp32"].startswith("not run: ")
    assert checks["engines"].startswith("not run: needs the extra [tensorrt]")
    assert checks["CUDA device functions in C++"] == "passed"


def test_a_check_that_fails_leaves_the_others_alone(pretending: Path) -> None:
    done = pretend("check", pretending, FAILING="--strip-weights")
    checks = rows(done)
    for name in ("tensorrt-rtx", "tensorrt"):
        assert checks.pop(f"{name}: engines without weights") == "FAILED (1): it is / broken"
    assert set(checks.values()) == {"passed"}
    assert done.returncode == 1
    assert "it is | broken" in (pretending / "out/results/check.log").read_text()


@pytest.mark.nightly
def test_a_rehearsal_of_all_commands(needs_libraries: None, tmp_path: Path) -> None:
    """Every command line on the CPU, in a folder that is moved after `prepare`."""
    driver, cpp = tmp_path / "libfake_driver.so", ROOT / "runtime/cpp"
    subprocess.run(
        ["c++", "-std=c++17", "-shared", "-fPIC", "-pthread", "-o", driver, f"-I{cpp}/include",
         f"-I{cpp}/src", f"-I{cpp}/tests", *cpp.glob("tests/fake_cuda_driver/*.cc")],
        check=True,
    )  # fmt: skip
    wheel = tmp_path / "index/gpu_check_missing-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        information = "gpu_check_missing-1.0.dist-info"
        archive.writestr("gpu_check_missing.py", "")
        archive.writestr(
            f"{information}/METADATA",
            "Metadata-Version: 2.1\nName: gpu-check-missing\nVersion: 1.0\n",
        )
        archive.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{information}/RECORD", "")

    def run(command: str, out: str, **environment: str) -> dict[str, str]:
        done = run_script(
            "gpu_check.sh", command, tmp_path / out, DEVICE="cpu",
            TRANSLATE_TRT_CUDA_DRIVER=str(driver), WHEELS="gpu-check-missing", PIP_NO_INDEX="1",
            **environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return rows(done) if done.stdout.startswith("\n") else {}

    run("prepare", "out", PIP_FIND_LINKS=str(wheel.parent))
    (tmp_path / "out").rename(tmp_path / "copy")
    results = run("check", "copy") | run("speed", "copy")
    missing = {name for name, result in results.items() if result != "passed"}
    assert {name for name in missing if not name.startswith("cuda")} <= {
        "engines", "kernels, against float64", "onnx-fp16 with --device cpu, the same as onnx-fp32"
    }  # fmt: skip
    assert (tmp_path / "copy/python/gpu_check_missing.py").exists()
    written = {path.name for path in (tmp_path / "copy/results").iterdir()}
    assert {
        "table.md",
        "check.log",
        "speed.log",
        "torch.json",
        "torch-without.json",
        "kernels.json",
    } <= written

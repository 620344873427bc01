"""libtranslate_trt_cuda: the CUDA part of device functions, linked to the CUDA runtime.

Its unit tests are in test_cpp_library.py; where there is a toolkit, they use its header.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cpp_library import ROOT, Library, declared, exported

pytestmark = pytest.mark.slow

TOOLKIT = "CUDAToolkit_ROOT"  # CMake's name of the variable
HEADER = ROOT / "runtime/cpp/include/translate_trt/cuda.h"


@pytest.fixture
def linked(library: Library) -> Path:
    """Return the path of the library in its build folder; skip where there is no toolkit."""
    found = library.folder / "libtranslate_trt_cuda.so"
    if not found.exists():
        toolkit = os.environ.get(TOOLKIT) or shutil.which("nvcc")
        assert toolkit is None, f"{toolkit} is installed, but the library was not built"
        pytest.skip("there is no CUDA toolkit")
    return found


def needed(path: Path) -> set[str]:
    """Return the names of the libraries that a library loads."""
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    command = ["readelf", "-d", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout))


def test_it_alone_needs_the_cuda_runtime(linked: Path) -> None:
    assert any(name.startswith("libcudart.so") for name in needed(linked))
    others = needed(linked.with_name("libtranslate_trt.so"))
    assert not [name for name in others if "cuda" in name or "nvinfer" in name]


def test_it_exports_its_interface_alone(linked: Path) -> None:
    assert exported(linked) == declared(HEADER) != set()


@pytest.mark.usefixtures("linked")
def test_the_kernel_is_compiled_where_there_is_nvcc(library: Library) -> None:
    cache = (library.folder / "CMakeCache.txt").read_text()
    if re.search(r"^NVCC:FILEPATH=.*NOTFOUND$", cache, re.MULTILINE):
        pytest.skip("there is no nvcc")
    assert "NVCC_WORKS:INTERNAL=ON" in cache, (library.folder.with_suffix(".log")).read_text()


@pytest.mark.usefixtures("linked")
def test_it_runs_on_a_fake_runtime_in_place_of_cuda(library: Library) -> None:
    done = library.run("translate_trt_fake_cuda_check")
    assert (done.returncode, done.stdout) == (0, "all passed\n"), done.stderr


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("program", ["translate_trt_cuda_check", "translate_trt_static_cuda_check"])
def test_it_runs_on_a_gpu_or_says_that_there_is_none(library: Library, program: str) -> None:
    if not (library.folder / "tests" / program).exists():
        pytest.skip("the toolkit has no static CUDA runtime")
    done = library.run(program)
    if Path("/dev/nvidiactl").exists():
        assert (done.returncode, done.stdout) == (0, "all passed\n"), done.stderr
    else:
        assert done.returncode == 3
        assert done.stderr.startswith("no NVIDIA GPU can be used: ")


@pytest.mark.usefixtures("linked")
def test_the_tensorrt_part_is_compiled_where_its_headers_are(library: Library) -> None:
    if "TENSORRT_ROOT" not in os.environ:
        pytest.skip("TENSORRT_ROOT, whose include/ has TensorRT's headers, is not set")
    compiled = library.folder / "tests/CMakeFiles/translate_trt_tensorrt_check.dir"
    assert list(compiled.rglob("tensorrt_*.o"))


@pytest.mark.usefixtures("linked")
def test_an_older_tensorrt_is_refused(library: Library, tmp_path: Path) -> None:
    """`IExecutionContext::setDeviceMemoryV2` is new in 10.1."""
    for folder in ("include", "lib"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lib/libnvinfer.so").touch()
    command = [
        "cmake", "-S", ROOT / "runtime/cpp", "-B", tmp_path / "build",
        "-DSENTENCEPIECE_LIBRARY=any", "-DTRANSLATE_TRT_BUILD_KERNELS=OFF",
        "-DTRANSLATE_TRT_ONNXRUNTIME=OFF",
        "-DTRANSLATE_TRT_TENSORRT=ON", f"-DTENSORRT_ROOT={tmp_path}",
        f"-DTRANSLATE_TRT_ARCHIVES={library.folder / 'archives'}",
    ]  # fmt: skip
    for minor, fits in ((0, False), (1, True)):
        (tmp_path / "include/NvInfer.h").write_text(
            f"#define NV_TENSORRT_MAJOR 10\n#define NV_TENSORRT_MINOR {minor}\n"
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == fits, done.stderr
        assert ("TensorRT 10.1 or later" in " ".join(done.stderr.split())) != fits


@pytest.mark.usefixtures("linked")
def test_programs_are_built_with_pkg_config(library: Library) -> None:
    code = """
    #include <translate_trt/cuda.h>
    int main(void) {
      tt_cuda_engines engines = {sizeof engines, 0, 0, 0, 0, 0};
      tt_device_functions functions;
      return tt_cuda_functions(&engines, &functions) == TT_OPTION_ERROR ? 0 : 1;
    }
    """
    subprocess.run([library.compile_c(code, "translate_trt_cuda")], check=True)

"""CUDA and TensorRT in libtranslate_trt; its unit tests are in test_cpp_library.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cpp_library import ROOT, Library

pytestmark = pytest.mark.slow


def needed(path: Path) -> set[str]:
    """Return the names of the libraries that a library loads."""
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    command = ["readelf", "-d", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout))


def test_it_needs_no_cuda(library: Library) -> None:
    others = needed(library.folder / "libtranslate_trt.so")
    assert not [name for name in others if "cuda" in name or "nvinfer" in name]


def test_it_runs_on_a_gpu_or_says_that_there_is_none(library: Library) -> None:
    done = library.run("translate_trt_cuda_check")
    if Path("/dev/nvidiactl").exists():
        assert (done.returncode, done.stdout) == (0, "all passed\n"), done.stderr
    else:
        assert done.returncode == 3
        assert done.stderr.startswith("no NVIDIA GPU can be used: ")


def test_the_tensorrt_part_is_compiled_where_its_headers_are(library: Library) -> None:
    if "TENSORRT_ROOT" not in os.environ:
        pytest.skip("TENSORRT_ROOT, whose include/ has TensorRT's headers, is not set")
    compiled = library.folder / "tests/CMakeFiles/translate_trt_tensorrt_check.dir"
    assert list(compiled.rglob("tensorrt_*.o"))


def test_an_older_tensorrt_is_refused(library: Library, tmp_path: Path) -> None:
    """`IExecutionContext::setDeviceMemoryV2` is new in 10.1."""
    cache = (library.folder / "CMakeCache.txt").read_text()
    if "CUDA_INCLUDE_DIR:PATH=CUDA_INCLUDE_DIR-NOTFOUND" in cache:
        pytest.skip("there are no headers of CUDA")
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

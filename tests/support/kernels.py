"""Libraries of kernels for tests: real ones, and one that only has a name (a plugin)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.paths import ROOT
from translate_trt.runtime import kernels
from translate_trt.runtime.bundle.manifest import FORMAT_VERSION

LIBRARY_SOURCE = f"""
const char* translate_trt_kernels(void) {{{{ return "{{name}}"; }}}}
int translate_trt_kernels_format(void) {{{{ return {FORMAT_VERSION}; }}}}
void* RegisterCustomOps(void* options, const void* api) {{{{ return 0; }}}}
"""


@pytest.fixture
def search_kernels() -> str:
    """Name of the kernels for this processor, at least the beam search; skips if there are none."""
    status = kernels.status()
    if status.startswith("none"):
        pytest.skip(f"compiled kernels: {status}")
    return status


@pytest.fixture
def compiled_kernels(search_kernels: str) -> str:
    """Name of the kernels; skips if they have neither matmuls nor attention."""
    if search_kernels == kernels.PORTABLE:
        pytest.skip(f"compiled kernels: {search_kernels}")
    return search_kernels


@pytest.fixture
def make_library(tmp_path: Path) -> Callable[..., Path]:
    """Factory of libraries that register nothing and only have a name."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def make(name: str, source: str = LIBRARY_SOURCE) -> Path:
        code, library = tmp_path / "library.c", tmp_path / f"lib{name or 'nothing'}.so"
        code.write_text(source.format(name=name))
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code], check=True)
        return library

    return make


def build_kernels(out: Path, *options: str) -> Path:
    """Build a library of kernels with options of CMake; skips without ONNX Runtime's headers."""
    cache = ROOT / "build/native/CMakeCache.txt"
    headers = re.search(
        "^ONNXRUNTIME_INCLUDE_DIR:.*=(.+)$", cache.read_text() if cache.is_file() else "", re.M
    )
    if headers is None:
        pytest.skip("the compiled kernels were not built here, so there may be no headers")
    command = ["cmake", "-S", ROOT / "runtime/cpp", "-B", out, *options,
               "-D", "TRANSLATE_TRT_BUILD_LIBRARY=OFF",
               "-D", f"ONNXRUNTIME_INCLUDE_DIR={headers[1]}",
               "-D", "CMAKE_CXX_FLAGS_RELEASE=-O1"]  # its tests run as fast  # fmt: skip
    for step in (command, ["cmake", "--build", out, "--parallel"]):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return out / kernels.FILE_NAME

"""Compile runtime/cpp/src/cuda/copy_kernel.cu to PTX, which libtranslate_trt contains.

    python scripts/copy_kernel.py [--check]

It needs nvcc, of a CUDA toolkit, which builds of the library do not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from cpp_tables import ROOT, write_or_check

SOURCES = Path("runtime/cpp/src")
PTX = SOURCES / "cuda/copy_kernel.inc"

#: The code uses nothing newer, so that all drivers since CUDA 11.4 compile it, for any GPU.
_VERSION, _TARGET = "6.4", "sm_50"

_TOOLKIT = "CUDAToolkit_ROOT"  # CMake's name of the variable


def nvcc() -> str | None:
    """Return the path of the compiler; None if there is none."""
    toolkit = os.environ.get(_TOOLKIT, "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{toolkit}/bin")


def literal(compiler: str) -> str:
    """Return the content of the file, a string literal of C++ with the PTX."""
    version = _output(compiler, "--version")
    release = re.search(r"release (\S+),", version)
    assert release is not None, version
    text = _output(
        compiler, "--ptx", "-std=c++17", "-arch=compute_75", f"-I{SOURCES}",
        str(SOURCES / "cuda/copy_kernel.cu"), "-o", "-",
    )  # fmt: skip
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"^\.version .*", f".version {_VERSION}", text, flags=re.MULTILINE)
    text = re.sub(r"^\.target .*", f".target {_TARGET}", text, flags=re.MULTILINE)
    lines = [line.rstrip().expandtabs(2) for line in text.splitlines() if line.strip()]
    head = f"// Made by scripts/copy_kernel.py with nvcc {release[1]}."
    return "\n".join([head, 'R"(', *lines, ')"', ""])


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    found = nvcc()
    if found is None:
        raise SystemExit("error: there is no nvcc; install the CUDA toolkit.")
    write_or_check(PTX, literal(found), __doc__)

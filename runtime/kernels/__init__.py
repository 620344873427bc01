"""Compiled CPU kernels: a library of the fused operators (docs/kernels.md).

The library is optional. Each fused operator of a bundle's graphs is an ONNX function with a body of
standard operators, which ONNX Runtime runs where the library has no kernel for the CPU.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from translate_trt.runtime.bundle.manifest import FORMAT_VERSION
from translate_trt.runtime.compiled_libraries import NONE, find_library
from translate_trt.runtime.errors import BackendError

#: Environment variable that holds "none" or the path of a library to use instead.
VARIABLE = "TRANSLATE_TRT_KERNELS"
FILE_NAME = "libtranslate_trt_kernels.so"

#: Kernel set of every CPU: only the beam search and embedding operators.
PORTABLE = "portable"


def library() -> Path | None:
    """Path of the library; None if it is not built or is disabled.

    Raises:
        OptionError: The environment variable names a file that does not exist.
    """
    return find_library(VARIABLE, Path(__file__).with_name(FILE_NAME), "scripts/build_kernels.sh")


def describe() -> str:
    """Name of the kernel set for this CPU, such as "avx512_vnni"; empty for none.

    Raises:
        OptionError: See `library`.
        BackendError: The file does not load, or was built for bundles of another format.
    """
    path = library()
    if path is None:
        return ""
    remedy = (
        "Build it again with scripts/build_kernels.sh, or run without compiled kernels: "
        f"{VARIABLE}={NONE}"
    )
    try:
        opened = ctypes.CDLL(str(path))
        ask, ask_format = opened.translate_trt_kernels, opened.translate_trt_kernels_format
    except (OSError, AttributeError) as error:  # not a library, or without these functions
        raise BackendError(
            f"{path} is no library of compiled kernels that loads here: {error}. {remedy}"
        ) from error
    if ask_format() != FORMAT_VERSION:
        raise BackendError(
            f"{path} was built for bundles of format {ask_format()}, and this translate-trt reads "
            f"format {FORMAT_VERSION}. {remedy}"
        )
    ask.restype = ctypes.c_char_p
    found: bytes = ask()
    return found.decode()


def status(described: str | None = None) -> str:
    """Describe the kernels in use, or why none are.

    Args:
        described: Result of `describe`, if already known.

    Raises:
        TranslateTrtError: See `describe`.
    """
    if found := describe() if described is None else described:
        return found
    if library() is not None:
        return "none (no kernels for this CPU)"
    if os.environ.get(VARIABLE) == NONE:
        return f"none (disabled by {VARIABLE})"
    return "none (not built; run bash scripts/build_kernels.sh)"

"""Compiled kernels: a shared library of operators for ONNX Runtime on the CPU (docs/kernels.md).

Bundles do not need it. Their graphs call functions, each with a body of ordinary operators; ONNX
Runtime runs the body, or the kernel of that name where the library brings one for the processor.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from translate_trt.runtime.bundle.manifest import FORMAT_VERSION
from translate_trt.runtime.compiled_libraries import NONE, find_library
from translate_trt.runtime.errors import BackendError

#: Environment variable: "none", or the path of a library to use instead of the one that is here.
VARIABLE = "TRANSLATE_TRT_KERNELS"
FILE_NAME = "libtranslate_trt_kernels.so"

#: The name of what every processor has: operators of the beam search and the embedding alone.
PORTABLE = "portable"


def library() -> Path | None:
    """The library to use; None: it is not built, or switched off.

    Raises:
        OptionError: the environment variable names a file that does not exist.
    """
    return find_library(VARIABLE, Path(__file__).with_name(FILE_NAME), "scripts/build_kernels.sh")


def describe() -> str:
    """What the library has for this processor, such as "avx512_vnni"; "": nothing, or no library.

    Raises:
        OptionError: as of `library`.
        BackendError: the file is no such library, one for another system, or one for bundles of
            another format.
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
        ask = opened.translate_trt_kernels
    except (OSError, AttributeError) as error:  # not a library; one without that function
        raise BackendError(
            f"{path} is no library of compiled kernels that loads here: {error}. {remedy}"
        ) from error
    # Libraries built before format 7 do not have the function.
    ask_format = getattr(opened, "translate_trt_kernels_format", None)
    if ask_format is None or ask_format() != FORMAT_VERSION:
        built_for = "an older format" if ask_format is None else f"format {ask_format()}"
        raise BackendError(
            f"{path} was built for bundles of {built_for}, and this translate-trt reads format "
            f"{FORMAT_VERSION}. {remedy}"
        )
    ask.restype = ctypes.c_char_p
    found: bytes = ask()
    return found.decode()


def status(described: str | None = None) -> str:
    """What is in use, or why nothing is, for people.

    Args:
        described: what `describe` said; None: it has not been asked yet.

    Raises:
        TranslateTrtError: as of `describe`.
    """
    if found := describe() if described is None else described:
        return found
    if library() is not None:
        return "none: there are none for this processor"
    if os.environ.get(VARIABLE) == NONE:
        return f"none: switched off by {VARIABLE}"
    return "none: not built (bash scripts/build_kernels.sh)"

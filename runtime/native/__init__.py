"""ctypes binding of libtranslate_trt (docs/embed-cpp.md)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import logging
import os
from pathlib import Path

from translate_trt.runtime.compiled_libraries import NONE, find_library
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.native.abi import FUNCTIONS, Status
from translate_trt.runtime.native.values import check
from translate_trt.runtime.version import version

log = logging.getLogger("translate_trt")

#: Environment variable that holds "none" or the path of a library to use instead.
VARIABLE = "TRANSLATE_TRT_LIBRARY"
FILE_NAME = "libtranslate_trt.so"


def library() -> Path | None:
    """Path of the library; None if it is not built or is disabled, and `Reference` translates.

    Raises:
        OptionError: The environment variable names a file that does not exist.
    """
    return find_library(VARIABLE, Path(__file__).with_name(FILE_NAME), "scripts/build_library.sh")


def status() -> str:
    """Describe the library in use, or why none is.

    Raises:
        TranslateTrtError: See `library` and `open_library`.
    """
    path = library()
    if path is not None:
        opened = open_library(path)
        return f"libtranslate_trt {opened.tt_version().decode()}"
    if os.environ.get(VARIABLE) == NONE:
        return f"Python: libtranslate_trt is disabled by {VARIABLE}"
    return "Python: libtranslate_trt is not built (bash scripts/build_library.sh)"


@functools.cache
def report_fallback() -> None:
    """Log once that `Reference` translates, and how to build the library."""
    log.info("runtime: %s", status())


def required_library(what: str) -> ctypes.CDLL:
    """Load the library for what Python does not have.

    Args:
        what: Name of the feature in the error message.

    Raises:
        BackendError: The library is not built, or is disabled.
    """
    try:
        return _required(os.environ.get(VARIABLE))
    except LookupError:
        raise BackendError(missing_library(what)) from None


@functools.cache
def _required(chosen: str | None) -> ctypes.CDLL:
    """Load the library that the environment chooses, whose file is looked for once.

    Raises:
        LookupError: There is none; a later call looks again.
    """
    path = library()
    if path is None:
        raise LookupError(chosen)
    return open_library(path)


def missing_library(what: str) -> str:
    """Return the message for a feature that Python does not have."""
    return (
        f"{what}: this needs libtranslate_trt, and the process runs on {status()}. Build it: "
        "bash scripts/build_library.sh"
    )


@functools.cache
def open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare the types of its functions, which raise the errors of a status.

    Raises:
        BackendError: The file does not load, or is a library of another version.
    """
    remedy = f"Build it again with scripts/build_library.sh, or run without it: {VARIABLE}={NONE}"
    try:
        opened = ctypes.CDLL(str(path))
        for name, (returned, taken) in FUNCTIONS.items():
            function = getattr(opened, name)
            function.restype, function.argtypes = returned, taken
            if returned is Status:
                function.errcheck = lambda status, *_: check(opened, status.value)
    except (OSError, AttributeError) as error:
        raise BackendError(
            f"{path} does not load as libtranslate_trt of this version: {error}. {remedy}"
        ) from error
    built_as: str = opened.tt_version().decode()
    here: str | None = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # an uninstalled source tree
        here = version()
    if here not in (built_as, None):
        raise BackendError(
            f"{path} has version {built_as}, but this is translate-trt {here}. {remedy}"
        )
    return opened

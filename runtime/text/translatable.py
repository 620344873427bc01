"""Text without anything to translate: numbers, dates, prices, time codes, addresses."""

from __future__ import annotations

from ctypes import byref, c_int32

from translate_trt.runtime.native import required_library
from translate_trt.runtime.native.values import as_text, check


def is_translatable(text: str) -> bool:
    """Return whether a text has a letter (Unicode category L), and is no URL or e-mail address.

    Raises:
        BackendError: libtranslate_trt is not built.
    """
    calls, found = required_library("this"), c_int32()
    check(calls, calls.tt_is_translatable(as_text(text), byref(found)))
    return bool(found.value)

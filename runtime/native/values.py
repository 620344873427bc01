"""Values of Python as arguments of the library, and the reverse; errors of calls."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_int32, c_void_p
from typing import Any

from translate_trt.runtime.errors import (
    BackendError,
    BundleError,
    CapacityError,
    InputError,
    OptionError,
    TranslateTrtError,
)
from translate_trt.runtime.native import abi

_SURROGATES = re.compile("[\ud800-\udfff]")


class JobEndedError(TranslateTrtError):
    """The job was cancelled, or its timeout expired."""


# Exception class by `tt_status`.
_ERRORS: dict[int, type[TranslateTrtError]] = {
    1: InputError, 2: OptionError, 3: BundleError, 4: BackendError, 5: BackendError,
    7: JobEndedError, 8: JobEndedError, 9: CapacityError,
}  # fmt: skip


def check(calls: ctypes.CDLL, status: int) -> None:
    """Raise the exception of a nonzero status, with the library's message."""
    if status:
        message = calls.tt_last_error().decode(errors="replace")
        raise _ERRORS.get(status, TranslateTrtError)(message)


@contextmanager
def handle(
    free: Callable[[c_void_p], None], make: Callable[..., None], *arguments: Any
) -> Iterator[c_void_p]:
    """Yield the handle that a call makes, and free it.

    Args:
        free: Function that frees the handle.
        make: Function that makes it, as its last argument.
        arguments: Arguments of `make`, without the last one.

    Raises:
        TranslateTrtError: The call failed.
    """
    made = c_void_p()
    make(*arguments, byref(made))
    try:
        yield made
    finally:
        free(made)


def sized(structure: ctypes.Structure) -> tuple[Any, int]:
    """Return the arguments of a call that fills a structure, as far as the library knows it."""
    return byref(structure), ctypes.sizeof(structure)


def as_text(text: str) -> abi.Text:
    """Convert a text to `tt_text`; lone surrogates, which are not valid text, become spaces."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = _SURROGATES.sub(" ", text).encode()
    return abi.Text(encoded, len(encoded))


def as_texts(texts: Sequence[str]) -> ctypes.Array[abi.Text]:
    """Convert texts to an array of `tt_text`."""
    return (abi.Text * len(texts))(*map(as_text, texts))


def text_of(found: abi.TextFound) -> str:
    """Convert a text of the library, which is valid UTF-8."""
    return ctypes.string_at(found.data, found.size).decode()


def token_lists(lists: Sequence[Sequence[int]]) -> ctypes.Array[abi.Tokens]:
    """Convert token lists to an array of `tt_tokens`."""
    # Larger numbers become -1, an invalid token; ctypes would silently keep their low 32 bits.
    arrays = [
        (c_int32 * len(tokens))(*(token if abs(token) < 2**31 else -1 for token in tokens))
        for tokens in lists
    ]
    return (abi.Tokens * len(arrays))(*(abi.Tokens(one, len(one)) for one in arrays))


def phrase_tokens(phrases: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of phrases, with a -1 after each."""
    # No vocabulary has as many tokens as the last number: the library reports it.
    largest = 2**31 - 1
    return [
        token
        for phrase in phrases
        for token in (*(one if 0 <= one < largest else largest for one in phrase), -1)
    ]


def phrase_texts(phrases: Sequence[str]) -> str:
    """Join phrases by tabs, which are white space inside of a phrase."""
    return "\t".join(phrase.replace("\t", " ") or " " for phrase in phrases)

"""Checks of what callers give instead of text, tokens or options."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import index
from typing import TypeVar

from translate_trt.runtime.errors import InputError

T = TypeVar("T")


def shown(value: object) -> str:
    """An argument of a wrong type, as a message tells it: short, and with its type."""
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{text} ({type(value).__name__})"


def checked_iterable(name: str, what: str, given: Iterable[T]) -> Iterable[T]:
    """Return the argument as it is, which must be iterable, and no string or bytes.

    Raises:
        InputError: it is something else.
    """
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        raise InputError(f"{name} is {shown(given)}; give a list, or another iterable, of {what}.")
    return given


def checked_texts(name: str, one: str, given: Iterable[str]) -> Iterator[str]:
    """The texts of an iterable, each checked as it is asked for; an error calls one by a number."""

    def checked(number: int, text: object) -> str:
        if not isinstance(text, str):
            how = "; decode it: text.decode('utf-8')" if isinstance(text, bytes) else ""
            raise InputError(f"{one} {number} is {shown(text)} and not a string{how}.")
        return text

    return itertools.starmap(checked, enumerate(checked_iterable(name, "strings", given), 1))


def token_ids(name: str, given: Iterable[object]) -> list[int]:
    """Token ids as Python's numbers.

    Raises:
        InputError: something else was given.
    """
    if isinstance(given, (str, bytes, bytearray)) or not isinstance(given, Iterable):
        how = " Text in bytes becomes a string by text.decode('utf-8')."
        raise InputError(
            f"{name} is {shown(given)}; it must be a list of token ids."
            + (how if isinstance(given, (bytes, bytearray)) else "")
        )
    tokens = list(given)
    try:
        return list(map(index, tokens))  # type: ignore[arg-type]
    except TypeError as error:
        wrong = next(token for token in tokens if not hasattr(token, "__index__"))
        raise InputError(f"{name} has {shown(wrong)} among its token ids.") from error

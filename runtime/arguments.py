"""Validation of arguments that must be texts, token lists or other iterables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import index
from typing import TypeVar

from translate_trt.runtime.errors import InputError

T = TypeVar("T")


def describe(value: object) -> str:
    """Format an argument of the wrong type for an error message: abbreviated, with its type."""
    text = repr(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{text} ({type(value).__name__})"


def checked_iterable(name: str, what: str, values: Iterable[T]) -> Iterable[T]:
    """Return an iterable argument unchanged, after checking that it is not a string or bytes.

    Raises:
        InputError: The argument is a string, bytes, or not iterable.
    """
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise InputError(
            f"{name} is {describe(values)}; give a list, or another iterable, of {what}."
        )
    return values


def checked_texts(name: str, one: str, values: Iterable[str]) -> Iterator[str]:
    """Iterate over texts, checking each when it is requested; errors number them from 1."""

    def checked(number: int, text: object) -> str:
        if not isinstance(text, str):
            how = "; decode it: text.decode('utf-8')" if isinstance(text, bytes) else ""
            raise InputError(f"{one} {number} is {describe(text)} and not a string{how}.")
        return text

    return itertools.starmap(checked, enumerate(checked_iterable(name, "strings", values), 1))


def token_ids(name: str, values: Iterable[object]) -> list[int]:
    """Convert token ids to a list of Python ints.

    Raises:
        InputError: The argument is not an iterable of integers.
    """
    tokens = list(checked_iterable(name, "token ids", values))
    try:
        return list(map(index, tokens))  # type: ignore[arg-type]
    except TypeError as error:
        wrong = next(token for token in tokens if not hasattr(token, "__index__"))
        raise InputError(f"{name} has {describe(wrong)} among its token ids.") from error

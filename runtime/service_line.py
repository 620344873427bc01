"""A line of `TranslationService`, as its implementations get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Translation


@dataclass(frozen=True)
class ServiceLine:
    """A line to translate.

    Attributes:
        source: Text or tokens of the line.
        options: Search options.
        target_prefix: Text or tokens that the translation must begin with.
        request: Number of its request.
        score: Whether the target prefix is a whole translation.
        texts: Texts to translate: the sentences of a text that was split, otherwise the text
            itself; None for tokens.
        constraints: Tokens of the phrases that the translation of each text must have.
        join: Joins the translations of the texts, in the thread that resolves the line's future.
    """

    source: str | Sequence[int]
    options: SearchOptions
    target_prefix: str | Sequence[int]
    request: int
    score: bool
    texts: Sequence[str] | None
    constraints: Sequence[Sequence[Sequence[int]]]
    join: Callable[[Sequence[Translation]], Translation]

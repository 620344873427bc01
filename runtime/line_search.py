"""Searches that the translation of lines needs, for those who run them.

`LineTranslator` states which lines to search for, and continues with their translations. A
`Translator` waits for each search; a `TranslationService` runs those of many lines at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Translation


@dataclass(frozen=True)
class LineSearch:
    """Lines to translate as they are, or whose translations are scored.

    Attributes:
        lines: Lines of text.
        options: Checked search options.
        constraints: Tokens of the phrases that each translation must have.
        targets: Text or tokens that each translation must begin with, or the whole translations.
        names: Names of the lines in error messages.
        score: Whether the targets are whole translations.
        tokens: Tokens of lines that are given so and not as text; their targets are tokens, too.
    """

    lines: Sequence[str]
    options: SearchOptions
    constraints: Sequence[Sequence[Sequence[int]]]
    targets: Sequence[str] | Sequence[Sequence[int]] | None = None
    names: LineNames = NUMBERED
    score: bool = False
    tokens: Sequence[Sequence[int]] | None = None


#: Translation of lines: yields searches, receives what they found, and returns the translations.
Searches = Generator[LineSearch, list[Translation], list[Translation]]


def advance(searches: Searches, found: list[Translation] | None) -> LineSearch | list[Translation]:
    """Return the next search or, after the last, the translations of the lines.

    Args:
        searches: Translation of the lines.
        found: Translations that the last search found; None before the first.
    """
    try:
        return next(searches) if found is None else searches.send(found)
    except StopIteration as end:
        translations: list[Translation] = end.value
        return translations

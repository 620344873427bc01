"""Lines to translate or to score, with what their translations must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.documents import SplitText
from translate_trt.runtime.text.glossary import Glossary

#: Kinds of markup, in the order of TT_MARKUP_...; "text" has placeholders alone.
MARKUP = ("html", "xml", "text")


@dataclass(frozen=True)
class LineRequest:
    """Lines that are translated or scored together.

    Attributes:
        lines: Lines of text, or documents.
        options: Search options.
        targets: Text or tokens that each translation must begin with, or the whole translations.
        names: Names of the lines in error messages.
        score: Whether the targets are whole translations.
        constraints: Phrases that each translation must have, all as text or all as tokens.
        alignments: Whether words are aligned.
        markup: Kind of markup that is taken out of the lines and put back; None for none.
        whole: Whether lines with markup are documents.
        terminology: Glossary of the lines.
        translate_all: Whether lines without letters and addresses are translated, too.
        split: Splits a line into the sentences that are translated one by one; None: no line is
            split. Of a text with markup, it splits the lines without tags.
        tokens: Token ids of lines that are given so and not as text.
    """

    lines: Sequence[str]
    options: SearchOptions
    targets: Sequence[str] | Sequence[Sequence[int]] | None = None
    names: LineNames = NUMBERED
    score: bool = False
    constraints: Sequence[Sequence[str]] | Sequence[Sequence[Sequence[int]]] | None = None
    alignments: bool = False
    markup: str | None = None
    whole: bool = False
    terminology: Glossary | None = None
    translate_all: bool = False
    split: Callable[[str], SplitText] | None = None
    tokens: Sequence[Sequence[int]] | None = None

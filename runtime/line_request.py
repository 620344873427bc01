"""Lines to translate or to score, with what their translations must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.documents import SplitText
from translate_trt.runtime.text.glossary import Glossary

#: Kinds of markup, in the order of TT_MARKUP_...; "text" has placeholders alone.
MARKUP = ("html", "xml", "text")


#: Phrases that a translation must have, as text or as token ids.
Phrases: TypeAlias = Sequence[str] | Sequence[Sequence[int]]

#: Names of attributes of a request in error messages, where they differ.
_NAMES = {"targets": "target prefixes", "split": "split_sentences", "whole": "document"}

#: Attributes of a request that exclude others, and why.
EXCLUSIONS = (
    ("score", ("split", "markup", "terminology"), "a given translation is of a whole line"),
    ("markup", ("targets", "constraints", "alignments", "translate_all"),
     "tags leave the text before it is translated"),
    ("whole", ("score", "targets", "constraints", "translate_all"),
     "its sentences are translated one by one"),
    ("constraints", ("split",), "constraints belong to one sentence"),
)  # fmt: skip


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
        whole: Whether the lines are documents.
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
    constraints: Sequence[Phrases] | None = None
    alignments: bool = False
    markup: str | None = None
    whole: bool = False
    terminology: Glossary | None = None
    translate_all: bool = False
    split: Callable[[str], SplitText] | None = None
    tokens: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together, whatever the bundle.

        Raises:
            InputError: There is not one target, or list of constraints, per line.
            OptionError: There is no such markup, or two attributes exclude each other.
        """
        count = len(self.lines if self.tokens is None else self.tokens)
        kind = "translations" if self.score else "target prefixes"
        for what, values in ((kind, self.targets), ("lists of constraints", self.constraints)):
            if values is not None and len(values) != count:
                of = "lines" if self.tokens is None else "sources"
                raise InputError(f"{len(values)} {what} for {count} {of}.")
        if self.markup is not None and self.markup not in MARKUP:
            raise OptionError(f"markup is {self.markup!r}; choose one of {', '.join(MARKUP)}.")
        check_exclusions(EXCLUSIONS, vars(self), _NAMES)


def check_exclusions(
    rules: Iterable[tuple[str, Sequence[str], str]],
    values: Mapping[str, object],
    names: Mapping[str, str],
) -> None:
    """Refuse values that exclude each other.

    Args:
        rules: Name of a value, names of those that exclude it, and why.
        values: Values by name; None and False are not given.
        names: Names in error messages, where they differ.

    Raises:
        OptionError: A rule refuses two of the values.
    """
    for name, others, why in rules:
        if values.get(name) in (None, False):
            continue
        for other in others:
            if values.get(other) not in (None, False):
                both = " and ".join(names.get(one, one) for one in (name, other))
                raise OptionError(f"{both} do not go together: {why}. Leave one of them out.")

"""Annotation of source text with the target phrases of a glossary, for models trained so.

The forms are those of Dinu et al. 2019, "Training Neural Machine Translation To Apply Terminology
Constraints", with symbols in the text in place of source factors. The symbols are user-defined
symbols of the SentencePiece model, which are never split. docs/terminology.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.glossary import Glossary

APPEND, REPLACE = FORMS = ("append", "replace")

#: Begin of a phrase, begin of its target phrase, end: U+27E6, U+27FC and U+27E7. Unicode
#: normalization maps no other character to them.
SYMBOLS = ("\u27e6", "\u27fc", "\u27e7")
# What stands in place of the symbols in a text that has them.
_ESCAPES = "[>]"


@dataclass(frozen=True)
class TermAnnotation:
    """Form in which a model reads target phrases in its source text.

    Attributes:
        form: "append" keeps the source phrase and adds the target phrase; "replace" has the target
            phrase alone.
        symbols: Characters before a phrase, before an appended target phrase, and after both.
    """

    form: str = APPEND
    symbols: tuple[str, str, str] = SYMBOLS

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise OptionError(f"terminology_form {self.form!r}: choose {' or '.join(FORMS)}.")

    @classmethod
    def from_json(cls, fields: Fields) -> TermAnnotation:
        """Read a form that `to_json` wrote.

        Raises:
            BundleError: A field is missing or has a wrong value.
        """
        form, symbols = fields.choice("form", FORMS), fields.texts("symbols")
        if (
            len(symbols) != 3
            or len({*symbols}) != 3
            or any(len(symbol) != 1 or symbol.isspace() for symbol in symbols)
        ):
            fields.fail("symbols", "three different characters", symbols)
        begin, middle, end = symbols
        return cls(form, (begin, middle, end))

    def to_json(self) -> dict[str, Any]:
        """Convert the form to JSON values, which `from_json` reads back."""
        return {"form": self.form, "symbols": [*self.symbols]}

    @cached_property
    def _escapes(self) -> dict[int, str]:
        return {ord(own): plain for own, plain in zip(self.symbols, _ESCAPES, strict=True)}

    def escape(self, text: str) -> str:
        """Replace the symbols in a text by "[", ">" and "]"; other characters keep their places."""
        return text.translate(self._escapes)

    def annotate_source(self, text: str, glossary: Glossary) -> str:
        """Annotate a text with the preferred target phrase of each source phrase in it."""
        found = glossary.annotated(text, None, self.form == APPEND, "".join(self.symbols))
        return self.escape(text) if found is None else found

    def annotate_pair(self, source: str, translation: str, glossary: Glossary) -> str | None:
        """Annotate a source text with the target phrases that its translation has.

        Returns:
            The annotated text; None if no phrase is found on both sides.
        """
        return glossary.annotated(source, translation, self.form == APPEND, "".join(self.symbols))

"""Options of `translate` and `score` for the format of their input and output lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import click

from translate_trt.runtime.cli.command import section, take, together
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.json_lines import (
    UNTRANSLATED,
    WordsOf,
    json_hypotheses,
    json_line,
    json_number,
)
from translate_trt.runtime.record_formats import (
    JsonLinesFormat,
    RecordFormat,
    TextFormat,
    TsvFormat,
    check_column,
    of_hypothesis,
    translation_columns,
)
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import check_threshold

_TRANSLATION = "translation"
_BOTH = ("output_field", "replace_field")
# Flags that belong to an input format.
_FORMATS: dict[str, tuple[str, ...]] = {
    "text": (),
    "jsonl": ("field", "translation_field", "constraints_field", *_BOTH),
    "tsv": ("column", "translation_column", "header", *_BOTH),
}
_FLAGS = dict.fromkeys(flag for flags in _FORMATS.values() for flag in flags)
# What no name of a column may contain, and no output in UTF-8.
_NOT_IN_A_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


_input_format_flag = click.option(
    "--input-format",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="Format of the lines, which the output keeps: text, an object of JSON per line, or "
    "columns separated by tabs.",
)
_header_flag = click.option(
    "--header", is_flag=True, help="The first line of TSV has the names of the columns."
)
_replace_flag = click.option(
    "--replace-field",
    is_flag=True,
    help="Replace fields or columns of the input that have the names of the added ones.",
)
constraints_field_flag = click.option(
    "--constraints-field",
    help="Field of JSON lines with the phrases that each translation must have, a list.",
)
#: Options of the input format and its fields or columns.
format_flags = section("Format of the lines")(
    together(
        _input_format_flag,
        click.option("--field", help="Field of JSON lines to translate. [text]"),
        click.option(
            "--column", help="Column of TSV to translate: its number from 1, or its name."
        ),
        _header_flag,
        constraints_field_flag,
        click.option(
            "--output-field",
            help=f"Name of the added field or column of translations. [{_TRANSLATION}]",
        ),
        _replace_flag,
    )
)
#: Options of the input format for lines that have their translations.
score_format_flags = section("Format of the lines")(
    together(
        _input_format_flag,
        click.option("--field", help="Field of JSON lines with the source. [text]"),
        click.option(
            "--translation-field",
            help=f"Field of JSON lines with the translation. [{_TRANSLATION}]",
        ),
        click.option(
            "--column", help="Column of TSV with the source: its number from 1, or its name."
        ),
        click.option("--translation-column", help="Column of TSV with the translation, likewise."),
        _header_flag,
        click.option(
            "--output-field",
            help="Name from which those of the added fields or columns are made, such as "
            f"NAME_score. [name of the translation's field or column, or {_TRANSLATION}]",
        ),
        _replace_flag,
    )
)


@dataclass(frozen=True)
class _LineFormat:
    """Values of the options that both of the above have."""

    input_format: str
    field: str | None
    column: str | None
    header: bool
    output_field: str | None
    replace_field: bool
    as_json: bool
    alignments: bool
    alignment_threshold: float | None

    def __post_init__(self) -> None:
        for flag in _FLAGS:
            if getattr(self, flag, None) and flag not in _FORMATS[self.input_format]:
                formats = " or ".join(name for name, flags in _FORMATS.items() if flag in flags)
                raise OptionError(
                    f"{flag} is given, but input_format is {self.input_format}; it must be "
                    f"{formats}."
                )
        if self.input_format == "tsv":
            check_column("column", self.column, self.header)
            if self.as_json:
                raise OptionError(
                    "input_format is tsv, which has no place for the JSON of --json and "
                    "--attention; it must be jsonl or text."
                )
        if self.alignment_threshold is not None:
            check_threshold(self.alignment_threshold)
        if _NOT_IN_A_NAME.search(self.output_field or ""):
            raise OptionError(
                f"output_field is {self.output_field!r}; it may not contain control characters."
            )

    def _pharaoh(self, hypothesis: TextHypothesis) -> str:
        alignment = hypothesis.alignment
        return "" if alignment is None else alignment.pharaoh(self.alignment_threshold)

    def _json_fields(
        self, name: str, scores: bool, as_json: bool, words: WordsOf | None = None
    ) -> dict[str, Callable[[Translation], Any]]:
        """Return the fields of JSON lines that are added beside the translation."""
        fields: dict[str, Callable[[Translation], Any]] = {}
        if scores:
            fields[f"{name}_score"] = _score
        if self.alignments:
            fields[f"{name}_alignments"] = of_hypothesis(0, self._pharaoh)
        if as_json:
            fields[f"{name}_hypotheses"] = partial(
                json_hypotheses, alignment_threshold=self.alignment_threshold, words=words
            )
        return fields


_Formats = TypeVar("_Formats", bound=_LineFormat)


def take_format(flags: dict[str, Any], kind: type[_Formats]) -> _Formats:
    """Take the options of a format from the flags of a command, some of which imply others."""
    flags["as_json"] |= bool(flags["return_attention"] or flags.get("words"))
    flags["alignments"] |= flags["alignment_threshold"] is not None
    return take(flags, kind)


@dataclass(frozen=True)
class FormatFlags(_LineFormat):
    """Values of `format_flags`, and of the options that select what is written of a translation.

    Raises:
        OptionError: See `_LineFormat`.
    """

    scores: bool
    constraints_field: str | None

    def make_format(self, count: int, words: WordsOf | None = None) -> RecordFormat:
        """Create the format of the lines.

        Args:
            count: Maximum number of hypotheses per translation.
            words: Returns the words of a hypothesis, for JSON; None adds none.
        """
        as_json = self.as_json or count > 1
        name = self.output_field or _TRANSLATION
        if self.input_format == "jsonl":
            added = self._json_fields(name, self.scores, as_json, words)
            return JsonLinesFormat(
                self.field or "text", {name: lambda found: found.text, **added},
                self.replace_field, constraints_field=self.constraints_field,
            )  # fmt: skip
        if self.input_format == "tsv":
            columns = translation_columns(
                name, count, self.scores, self._pharaoh if self.alignments else None
            )
            return TsvFormat(_column(self.column), self.header, columns, self.replace_field)
        if as_json:
            return TextFormat(
                partial(json_line, alignment_threshold=self.alignment_threshold, words=words)
            )
        return TextFormat(self._plain_line)

    def _plain_line(self, source: str, translation: Translation) -> str:
        cells = [translation.text]
        if self.scores:
            cells.insert(0, f"{translation.score:.6f}")
        if self.alignments:
            cells.append(self._pharaoh(translation.hypotheses[0]))
        if len(cells) > 1:  # a tab of the text, which splitting keeps, is not one between columns
            cells = [cell.replace("\t", " ") for cell in cells]
        return "\t".join(cells)


@dataclass(frozen=True)
class ScoreFormatFlags(_LineFormat):
    """Values of `score_format_flags`, and of the options that select what is written of a score.

    Raises:
        OptionError: See `_LineFormat`.
    """

    translation_field: str | None
    translation_column: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_format == "tsv":
            check_column("translation_column", self.translation_column, self.header)

    def make_format(self) -> JsonLinesFormat | TsvFormat:
        """Create the format of lines of JSON or TSV."""
        column = _column(self.translation_column)
        if self.input_format == "tsv":
            name = self.output_field or (column if isinstance(column, str) else _TRANSLATION)
            columns: dict[str, Callable[[Translation], str]] = {f"{name}_score": score_text}
            if self.alignments:
                columns[f"{name}_alignments"] = of_hypothesis(0, self._pharaoh)
            return TsvFormat(_column(self.column), self.header, columns, self.replace_field, column)
        field = self.translation_field or _TRANSLATION
        name = self.output_field or field
        fields = self._json_fields(name, scores=True, as_json=self.as_json)
        return JsonLinesFormat(self.field or "text", fields, self.replace_field, given_field=field)

    def line(self, source: str, scored: Translation) -> str:
        """Return the output line of a line of text; without hypotheses it has no score."""
        if self.as_json:
            if not scored.hypotheses:
                return UNTRANSLATED
            return json_line(source, scored, self.alignment_threshold)
        cells = [score_text(scored)]
        if self.alignments:
            cells.append(of_hypothesis(0, self._pharaoh)(scored))
        return "\t".join(cells)


def _column(given: str | None) -> int | str:
    """Return the number or the name of a column."""
    column = str(given)
    return int(column) if column.isdecimal() else column


def score_text(scored: Translation) -> str:
    """Return the score of a translation as text; nan for one that has none."""
    return f"{scored.score:.6f}" if scored.hypotheses else "nan"


def _score(scored: Translation) -> float | None:
    return json_number(scored.score) if scored.hypotheses else None

"""Options of `translate` for the format of its input and output lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.json_lines import WordsOf, json_hypotheses, json_line, json_number
from translate_trt.runtime.record_formats import (
    JsonLinesFormat,
    RecordFormat,
    TextFormat,
    TsvFormat,
)
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import check_threshold

_OUTPUT_FIELD = "translation"
_FLAGS = ("field", "column", "header", "output_field", "replace_field")
# Flags above that each input format has.
_FORMATS = {
    "text": (),
    "jsonl": ("field", "output_field", "replace_field"),
    "tsv": ("column", "header", "output_field", "replace_field"),
}
# What no name of a column may contain, and no output in UTF-8.
_NOT_IN_A_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def format_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the input format and its fields or columns."""
    flags = (
        click.option(
            "--input-format",
            type=click.Choice(list(_FORMATS)),
            default="text",
            show_default=True,
            help="Format of the lines, which the output keeps: text, an object of JSON per line, "
            "or columns separated by tabs.",
        ),
        click.option("--field", help="Field of JSON lines to translate. [text]"),
        click.option(
            "--column", help="Column of TSV to translate: its number from 1, or its name."
        ),
        click.option(
            "--header", is_flag=True, help="The first line of TSV has the names of the columns."
        ),
        click.option(
            "--output-field",
            help=f"Name of the added field or column of translations. [{_OUTPUT_FIELD}]",
        ),
        click.option(
            "--replace-field",
            is_flag=True,
            help="Replace fields or columns of the input that have the names of the added ones.",
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


@dataclass(frozen=True)
class FormatFlags:
    """Values of the options above, and of those that select what is written of a translation.

    Raises:
        OptionError: An option does not belong to the input format, or its value is not possible.
    """

    input_format: str
    field: str | None
    column: str | None
    header: bool
    output_field: str | None
    replace_field: bool
    scores: bool
    as_json: bool
    alignments: bool
    alignment_threshold: float | None

    def __post_init__(self) -> None:
        for flag in _FLAGS:
            if getattr(self, flag) and flag not in _FORMATS[self.input_format]:
                formats = " or ".join(name for name, flags in _FORMATS.items() if flag in flags)
                raise OptionError(
                    f"{flag} is given, but input_format is {self.input_format}; it must be "
                    f"{formats}."
                )
        if self.input_format == "tsv":
            self._check_tsv()
        if self.alignment_threshold is not None:
            check_threshold(self.alignment_threshold)
        if _NOT_IN_A_NAME.search(self.output_field or ""):
            raise OptionError(
                f"output_field is {self.output_field!r}; it may not contain control characters."
            )

    def _check_tsv(self) -> None:
        if not self.column or (self.column.isdecimal() and int(self.column) == 0):
            raise OptionError("column is missing; give the number of a TSV column, from 1.")
        if not self.column.isdecimal() and not self.header:
            raise OptionError(
                f"column is {self.column}; a column has a name only if the input has a header: add "
                "--header, or give the number of the column."
            )
        if self.as_json:
            raise OptionError(
                "input_format is tsv, which has no place for the JSON of --json and --attention; "
                "it must be jsonl or text."
            )

    def make_format(self, count: int, words: WordsOf | None = None) -> RecordFormat:
        """Create the format of the lines.

        Args:
            count: Maximum number of hypotheses per translation.
            words: Returns the words of a hypothesis, for JSON; None adds none.
        """
        as_json = self.as_json or count > 1
        if self.input_format == "jsonl":
            added = self._json_fields(as_json, words)
            return JsonLinesFormat(self.field or "text", added, self.replace_field)
        if self.input_format == "tsv":
            column = str(self.column)
            return TsvFormat(
                int(column) if column.isdecimal() else column,
                self.header,
                self._columns(count),
                self.replace_field,
            )
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
        return "\t".join(cells)

    def _pharaoh(self, hypothesis: TextHypothesis) -> str:
        alignment = hypothesis.alignment
        return "" if alignment is None else alignment.pharaoh(self.alignment_threshold)

    def _json_fields(
        self, as_json: bool, words: WordsOf | None
    ) -> dict[str, Callable[[Translation], Any]]:
        name = self.output_field or _OUTPUT_FIELD
        fields: dict[str, Callable[[Translation], Any]] = {name: lambda found: found.text}
        if self.scores:
            fields[f"{name}_score"] = lambda found: json_number(found.score)
        if self.alignments:
            fields[f"{name}_alignments"] = lambda found: self._pharaoh(found.hypotheses[0])
        if as_json:
            fields[f"{name}_hypotheses"] = partial(
                json_hypotheses, alignment_threshold=self.alignment_threshold, words=words
            )
        return fields

    def _columns(self, count: int) -> dict[str, Callable[[Translation], str]]:
        columns = {}
        for rank in range(count):
            name = (self.output_field or _OUTPUT_FIELD) + (f"_{rank + 1}" if rank else "")
            columns[name] = _of_hypothesis(rank, lambda found: found.text)
            if self.scores:
                columns[f"{name}_score"] = _of_hypothesis(rank, lambda found: f"{found.score:.6f}")
            if self.alignments:
                columns[f"{name}_alignments"] = _of_hypothesis(rank, self._pharaoh)
        return columns


def _of_hypothesis(
    rank: int, cell: Callable[[TextHypothesis], str]
) -> Callable[[Translation], str]:
    """Return the cell of a hypothesis; empty if a translation has fewer, as of a blank line."""

    def of(translation: Translation) -> str:
        hypotheses = translation.hypotheses
        return cell(hypotheses[rank]) if rank < len(hypotheses) else ""

    return of

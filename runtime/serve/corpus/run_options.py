"""Options of a corpus run: those that affect the result, and those of the workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import check_least
from translate_trt.runtime.record_formats import check_column, check_line_options
from translate_trt.runtime.settings import check_settings, setting
from translate_trt.runtime.text.glossary import Entry, Glossary

TEXT, JSON_LINES, TSV = "text", "jsonl", "tsv"
INPUT_FORMATS = (TEXT, JSON_LINES, TSV)


@dataclass(frozen=True)
class CorpusOptions:
    """Options that affect how inputs are read and divided; other values make another run.

    Raises:
        OptionError: A number is out of range, or an option does not belong to the input format.
    """

    shard_lines: int = setting(10_000, "Approximate number of lines per shard.", least=1)
    column: str = setting(
        "text",
        "Column to translate: its name in Parquet files; in TSV its number from 1, or its name.",
    )
    input_format: str = setting(
        TEXT, "Format of the lines of other files, which the output keeps: text, an object of "
        "JSON, or columns separated by tabs.", choices=INPUT_FORMATS,
    )  # fmt: skip
    header: bool = setting(False, "The first line of each TSV file has the names of the columns.")
    field: str = setting("text", "Field of JSON lines to translate.")
    max_characters: int = setting(
        10_000, "Maximum length of a line; longer lines are reported and left empty.", least=1
    )
    document: bool = setting(
        False, "Translate each text of JSON lines or Parquet as a whole, and keep its structure. "
        "Implies --split-sentences.",
    )  # fmt: skip
    json: bool = setting(
        False, "Write one JSON object per line, with all hypotheses, as `translate --json` does."
    )
    alignments: bool = setting(
        False, "Add word alignments in Pharaoh format, to JSON lines or columns of TSV. Needs a "
        "bundle exported with --attention.",
    )  # fmt: skip
    words: bool = False  # add the words of translations with their confidences, in JSON
    constraints_field: str | None = None  # field of phrases that the translation must have
    markup: str | None = None  # keep the tags of html or xml, or the placeholders of text
    translate_all: bool = False  # also lines without letters
    split_sentences: bool = False  # translate the sentences of a line one by one
    split_language: str | None = None  # by the rules of this language; None: the source language
    unwrap: bool = False  # join the lines of each paragraph of a document first
    # Entries of a glossary: a source phrase and its target phrases (docs/terminology.md).
    terminology: tuple[tuple[str, ...], ...] | None = None
    terminology_ignore_case: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        for name, default, owner in (
            ("field", "text", JSON_LINES),
            ("constraints_field", None, JSON_LINES),
            ("header", False, TSV),
        ):
            value = getattr(self, name)
            if value != default and self.input_format != owner:
                raise OptionError(
                    f"{name} is {value}, but input_format is {self.input_format}; it must be "
                    f"{owner}."
                )
        if self.input_format == TSV:
            check_column("column", self.column, self.header)
        check_line_options(
            vars(self)
            | {
                "split": self.split,
                "constraints": self.constraints_field,
                "tsv": self.input_format == TSV,
            },
            {
                "split": "document" if self.document else "split_sentences",
                "constraints": "constraints_field",
                "tsv": "input_format tsv",
            },
        )

    @cached_property
    def glossary(self) -> Glossary | None:
        """The glossary; None without entries."""
        entries = [Entry(source, tuple(targets)) for source, *targets in self.terminology or ()]
        return Glossary(entries, self.terminology_ignore_case) if entries else None

    @property
    def split(self) -> bool | str:
        """The argument `split_sentences` of `Translator.translate`."""
        if self.split_language is not None:
            return self.split_language
        return self.split_sentences or self.document


@dataclass(frozen=True)
class WorkerOptions:
    """Options of the workers, which do not affect translations.

    Raises:
        OptionError: A number is out of range.
    """

    workers: int | None = setting(None, "Number of workers. [all cores, or all GPUs]", least=1)
    cores: int = setting(1, "Cores per worker; they share one copy of the weights.", least=1)
    attempts: int = setting(3, "Attempts per shard before the run gives it up.", least=1)
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    device: str | None = setting(None, "cpu or cuda. [a GPU if the target is made for one]")
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains

    def __post_init__(self) -> None:
        check_settings(self)
        check_least(1, batch_tokens=self.batch_tokens)

"""Options that say what `translate` does with each line or document, and what excludes what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from translate_trt.runtime.cli.format_flags import FormatFlags
from translate_trt.runtime.cli.search_flags import read_glossary, split_choice
from translate_trt.runtime.cli.structured_files import check_suffixes
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.lines import check_input
from translate_trt.runtime.line_request import MARKUP
from translate_trt.runtime.record_formats import check_line_options
from translate_trt.runtime.text.glossary import Glossary

unwrap_flag = click.option(
    "--unwrap",
    is_flag=True,
    help="With --document: join the lines of each paragraph first, where they were broken at a "
    "fixed width.",
)
markup_flag = click.option(
    "--markup",
    type=click.Choice(MARKUP),
    help="Keep the tags and placeholders of html or xml, or the placeholders of text, such as "
    "{name} and %s, at the words they belong to. Needs a bundle exported with --attention.",
)
words_flag = click.option(
    "--words",
    is_flag=True,
    help="Add the words of each translation with their confidence; implies --json. See "
    "translate-trt calibrate.",
)


@dataclass(frozen=True)
class LineFlags:
    """Flags that say what is done with each line or document."""

    split_sentences: bool
    split_language: str | None
    document: bool
    unwrap: bool
    markup: str | None
    translate_all: bool
    terminology: Path | None
    terminology_ignore_case: bool
    target_prefix: Path | None
    constraints: Path | None
    words: bool

    @property
    def sentences(self) -> bool | str:
        """The argument `split_sentences` of `Translator`."""
        return split_choice(self.split_sentences or self.document, self.split_language)

    @property
    def files(self) -> dict[str, Path]:
        """The files that are read beside the inputs, by their flags."""
        files = {
            "--target-prefix": self.target_prefix,
            "--constraints": self.constraints,
            "--terminology": self.terminology,
        }
        return {flag: path for flag, path in files.items() if path is not None}

    def glossary(self) -> Glossary | None:
        """Read the glossary, if there is one."""
        return read_glossary(self.terminology, self.terminology_ignore_case)

    def check(self, inputs: Sequence[str], formats: FormatFlags) -> None:
        """Refuse files that are not readable, and flags that exclude each other or need another.

        Raises:
            InputError: A file is not readable, or the lines of an input are no text.
            OptionError: Flags do not go together, or two of them name the same file.
        """
        for flag, path in self.files.items():
            check_input(str(path))
            if str(path) in inputs:
                raise OptionError(f"{flag} and an input are both {path}; use different files.")
        check_suffixes(inputs, {**vars(self), "input_format": formats.input_format})
        field = formats.constraints_field
        if self.constraints and field:
            raise OptionError(
                "--constraints and --constraints-field both give the phrases of each line; leave "
                "one of them out."
            )
        values = {
            **vars(self),
            "targets": self.target_prefix,
            "split": self.sentences,
            "alignments": formats.alignments,
            "constraints": self.constraints or field,
            "tsv": formats.input_format == "tsv",
            "scores_of_text": formats.scores and formats.input_format == "text",
        }
        flags = {name: f"--{name.replace('_', '-')}" for name in values} | {
            "targets": "--target-prefix",
            "split": "--document" if self.document else "--split-sentences",
            "constraints": "--constraints" if self.constraints else "--constraints-field",
            "tsv": "--input-format tsv",
            "scores_of_text": "--scores of text",
        }
        check_line_options(values, flags)

"""Files whose names tell that their lines are not plain text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.formats import FORMATS
from translate_trt.runtime.io.compression import uncompressed_name

log = logging.getLogger("translate_trt")

# Options that read the files with a suffix, the decisive one last.
_OPTIONS: dict[str, dict[str, Any]] = {
    ".jsonl": {"input_format": "jsonl"},
    ".ndjson": {"input_format": "jsonl"},
    ".tsv": {"input_format": "tsv"},
    ".html": {"document": True, "markup": "html"},
    ".htm": {"document": True, "markup": "html"},
    ".xhtml": {"document": True, "markup": "xml"},
    ".xml": {"document": True, "markup": "xml"},
    ".md": {"document": True},
    ".srt": {"document": True},
    ".vtt": {"document": True},
}
# Suffixes of lines of plain text.
_LINES = (".text", ".txt")


def check_suffixes(paths: Iterable[str], given: Mapping[str, Any]) -> None:
    """Warn of inputs that other options of the command read, and refuse those that none reads.

    `--input-format` on the command line shows that the caller knows the format.

    Args:
        paths: The inputs.
        given: Values of those options that the command has.

    Raises:
        InputError: Translating the lines of a file would damage it.
    """
    source = click.get_current_context().get_parameter_source("input_format")
    if source is ParameterSource.COMMANDLINE:
        return
    for suffix, path in {Path(uncompressed_name(one)).suffix.lower(): one for one in paths}.items():
        is_known, options = suffix in FORMATS and suffix not in _LINES, _OPTIONS.get(suffix, {})
        if suffix == ".csv" or (is_known and not options):
            remedy = (
                "translate-trt translate-file keeps it" if is_known else "translate its texts alone"
            )
            raise InputError(
                f"{path}: a translation of its lines would damage a {suffix} file; {remedy}, and "
                "--input-format text translates the lines nevertheless."
            )
        wanted = {name: value for name, value in options.items() if name in given}
        if wanted and given[[*wanted][-1]] != [*wanted.values()][-1]:
            flags = " ".join(
                f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
                for name, value in wanted.items()
            )
            also = ", and translate-trt translate-file keeps it" if is_known else ""
            log.warning(
                "%s: read as lines of plain text; %s reads this format%s", path, flags, also
            )

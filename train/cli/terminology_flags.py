"""Options of the annotation of training pairs with the terms of a glossary."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from translate_trt.runtime.cli.command import given
from translate_trt.runtime.errors import OptionError
from translate_trt.train.data.terminology import TerminologyOptions

terminology_share_flag = click.option(
    "--terminology-share",
    type=float,
    help="Share of the pairs with terms on both sides to annotate, chosen by --seed. [0.5]",
)


def take_terminology(flags: dict[str, Any]) -> TerminologyOptions | None:
    """Take the options of annotations from the flags of a command; None without a glossary.

    Raises:
        OptionError: Other options are given, but no glossary, or a value is out of range.
    """
    values = {field.name: flags.pop(field.name) for field in dataclasses.fields(TerminologyOptions)}
    chosen = {name: value for name, value in given(values).items() if value is not False}
    if chosen and "terminology" not in chosen:
        raise OptionError(f"{', '.join(chosen)}: name the glossary with --terminology.")
    return TerminologyOptions(**chosen) if chosen else None

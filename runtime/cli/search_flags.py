"""Flags for the search, shared by the commands that translate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from translate_trt.runtime.options import LENGTH_PENALTY_BETA, SearchOptions


def search_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A flag for each field of SearchOptions that decides what is found, under the field's name."""
    flags = (
        click.option("--beam-size", type=int, help="Live hypotheses per line; 1 is greedy search."),
        click.option("--length-penalty", type=float, help="Alpha; 0 favours short output."),
        click.option(
            "--length-penalty-form",
            type=click.Choice(list(LENGTH_PENALTY_BETA)),
            help="gnmt: ((5 + n) / 6) ** alpha, the paper's; length: n ** alpha.",
        ),
        click.option(
            "--early-stopping/--no-early-stopping",
            default=None,
            help="Stop at as many finished hypotheses as beams; else once none can get better.",
        ),
        click.option(
            "--max-length", type=int, help="Longest output, in tokens with the end symbol."
        ),
        click.option("--min-length", type=int, help="Shortest output, counted the same way."),
        language_flags,
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def language_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Flags for models of several languages."""
    for side, what in (("target", "What to translate into"), ("source", "What the text is in")):
        help = f"{what}, as a model of several languages calls it: de, deu_Latn."
        command = click.option(f"--{side}-language", metavar="CODE", help=help)(command)
    return command


def check_flags(flags: dict[str, Any]) -> None:
    """Refuse what is out of range for any model, before one is loaded.

    Raises:
        OptionError: a value is out of range.
    """
    replace_options(SearchOptions(), flags)


def replace_options(defaults: SearchOptions, flags: dict[str, Any]) -> SearchOptions:
    """The defaults, with the flags that were given in their place."""
    given = {name: value for name, value in flags.items() if value is not None}
    return dataclasses.replace(defaults, **given)

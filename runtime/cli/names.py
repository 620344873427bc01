"""Names of arguments, chosen once for all commands; former names are still accepted.

- What a command works on is its argument: BUNDLE (`info`, `verify`, `triton`), CHECKPOINT
  (`export`), INPUT (`translate`, `corpus`, `bench`). Where text comes first, `--bundle` or
  `--checkpoint` names the model.
- `--output` is what a command makes, `--target` is a target of a bundle.
- `--source` and `--reference` are the two sides of a test set.
- `--max-length` limits a translation, `--max-pair-length` the pairs that are trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)


class Renamed(click.Option):
    """An option that is still accepted under its former names, which no help shows.

    Args:
        former: the former names.
    """

    def __init__(self, *arguments: Any, former: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the option under all its names."""
        shown = self.opts
        self.opts = [*shown, *self._former]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


def field_option(field: dataclasses.Field[Any], **settings: Any) -> Callable[..., Any]:
    """Make the flag that sets a field of a configuration.

    Its name is the field's, or what the field's metadata call it under "flag"; the field's own name
    then is a former one.

    Args:
        field: of a dataclass.
        settings: of `click.option`.
    """
    flag, chosen = "--" + field.name.replace("_", "-"), field.metadata["flag"]
    if chosen is None:
        return click.option(flag, field.name, default=None, **settings)
    return click.option(chosen, field.name, cls=Renamed, former=(flag,), default=None, **settings)


def output_option(help: str, required: bool = True) -> Callable[..., Any]:
    """Make the flag for what a command makes: --output, formerly --out."""
    return click.option(
        "-o", "--output", "out", cls=Renamed, former=("--out",), type=PATH, required=required,
        help=help,
    )  # fmt: skip

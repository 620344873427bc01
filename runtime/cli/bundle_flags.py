"""Flags that name a bundle, shared by the commands that run one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.names import PATH

bundle_flag = click.option(
    "--bundle",
    type=PATH,
    required=True,
    help="Directory that translate-trt export made.",
)


def bundle_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument BUNDLE, formerly --bundle, to a command that works on one."""

    @functools.wraps(command)
    def resolved(
        *arguments: Any, bundle: Path | None, former_bundle: Path | None, **others: Any
    ) -> None:
        if bundle is not None and former_bundle is not None:
            raise click.UsageError("--bundle is now the argument BUNDLE; give one.")
        found = former_bundle if bundle is None else bundle
        if found is None:
            raise click.UsageError(
                "Missing argument 'BUNDLE': a directory that translate-trt export made."
            )
        command(*arguments, bundle=found, **others)

    former = click.option("--bundle", "former_bundle", type=PATH, hidden=True)
    return click.argument("bundle", type=PATH, required=False)(former(resolved))


def target_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that choose one of a bundle's targets: --target and --shortlist."""
    flags = (
        click.option("--target", help="Such as onnx-int8; the bundle's first target if not given."),
        click.option(
            "--shortlist",
            is_flag=True,
            help="Use tokens alone that the source makes likely: the target's like with a "
            "shortlist.",
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command

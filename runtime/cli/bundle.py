"""Flags that name a bundle, shared by the commands that run one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

bundle_flag = click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory that translate-trt export made.",
)


def target_flags(command: Callable[..., None]) -> Callable[..., None]:
    """--bundle, and which of its targets: --target, --shortlist."""
    flags = (
        bundle_flag,
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

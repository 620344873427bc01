"""`translate-trt triton`: model repositories for the Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.bundle_flags import (
    batch_tokens_flag,
    bundle_argument,
    cache_flag,
    target_flags,
    trust_code_flag,
)
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import described_options, output_option
from translate_trt.runtime.serve.triton.serving_options import ServerOptions


@click.command(cls=Command)
@bundle_argument
@target_flags
@output_option("Directory of the new model repository.")
@click.option("--force", is_flag=True, help="Replace an existing model repository.")
@click.option("--link", is_flag=True, help="Refer to the bundle by its path instead of copying it.")
@described_options(ServerOptions)
@batch_tokens_flag
@cache_flag
@trust_code_flag
def triton(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    out: Path,
    force: bool,
    link: bool,
    **flags: Any,
) -> None:
    """Create a model repository for the Triton Inference Server.

    The server needs the Python backend, with translate-trt installed in that backend's Python.
    """
    from translate_trt.runtime.serve.triton.repository import write_repository

    options = ServerOptions(**flags)
    entry = write_repository(
        bundle, target, out, options, shortlist=shortlist, link=link, force=force
    )
    click.echo(f"{out}: model {options.name}, {entry.name}")

"""`translate-trt triton`: model repositories for the Triton Inference Server."""

from __future__ import annotations

import functools
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
from translate_trt.runtime.cli.names import field_option, output_option
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

_setting = functools.partial(field_option, ServerOptions)


@click.command(cls=Command)
@bundle_argument
@target_flags
@output_option("Directory of the new model repository.")
@click.option("--force", is_flag=True, help="Replace an existing model repository.")
@click.option("--link", is_flag=True, help="Refer to the bundle by its path instead of copying it.")
@_setting("name", "Name of the model in the server's URLs.")
@_setting("max_batch_size", "Maximum number of sentences per batch of the server.")
@click.option(
    "--preferred-batch-size",
    "preferred_batch_sizes",
    type=int,
    multiple=True,
    help="Batch size that the server sends without delay; may be repeated. [any size]",
)
@_setting("queue_delay", "Maximum delay in microseconds to form a larger batch.")
@_setting(
    "capacity",
    "Maximum number of requests in an instance; further requests are refused as unavailable.",
)
@_setting("instances", "Number of processes, each with its own weights; on GPUs, per GPU.")
@_setting("workers", "Batches translated at once in an instance. [one per core, or 2 on a GPU]")
@_setting("threads", "CPU threads per worker. [1]")
@batch_tokens_flag
@cache_flag
@_setting("device", "cpu or cuda. [GPUs if the target is made for them]")
@_setting("max_beam_size", "Maximum beam size; requests with a larger one are refused.")
@_setting("max_characters", "Maximum length of a text; requests with longer texts are refused.")
@_setting(
    "max_cost",
    "Maximum cost of a request: sum of characters times beam size over its sentences.",
)
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

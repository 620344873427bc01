"""`translate-trt triton`: model repositories for the Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.bundle_flags import BATCH_TOKENS_HELP, bundle_argument, target_flags
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import output_option


@click.command(cls=Command)
@bundle_argument
@target_flags
@output_option("Directory of the new model repository.")
@click.option("--force", is_flag=True, help="Replace an existing model repository.")
@click.option("--link", is_flag=True, help="Refer to the bundle by its path instead of copying it.")
@click.option(
    "--name",
    default="translation",
    show_default=True,
    help="Name of the model in the server's URLs.",
)
@click.option(
    "--max-batch-size", type=int, default=64, show_default=True,
    help="Maximum number of sentences per batch of the server.",
)  # fmt: skip
@click.option(
    "--preferred-batch-size", "preferred_batch_sizes", type=int, multiple=True,
    help="Batch size that the server sends without delay; may be repeated. [any size]",
)  # fmt: skip
@click.option(
    "--queue-delay", type=int, default=0, show_default=True,
    help="Maximum delay in microseconds to form a larger batch.",
)  # fmt: skip
@click.option(
    "--capacity", type=int, default=1024, show_default=True,
    help="Maximum number of requests in an instance; further requests are refused as unavailable.",
)  # fmt: skip
@click.option(
    "--instances", type=int, default=1, show_default=True,
    help="Number of processes, each with its own weights; on GPUs, per GPU.",
)  # fmt: skip
@click.option(
    "--workers", type=int,
    help="Batches translated at once in an instance. [one per core, or 2 on a GPU]",
)  # fmt: skip
@click.option("--threads", type=int, help="CPU threads per worker. [1]")
@click.option(
    "--batch-tokens", type=int, help=BATCH_TOKENS_HELP,
)  # fmt: skip
@click.option("--device", help="cpu or cuda. [GPUs if the target is made for them]")
@click.option(
    "--max-beam-size", type=int, default=16, show_default=True,
    help="Maximum beam size; requests with a larger one are refused.",
)  # fmt: skip
@click.option(
    "--max-characters", type=int, default=10_000, show_default=True,
    help="Maximum length of a text; requests with longer texts are refused.",
)  # fmt: skip
@click.option(
    "--max-cost", type=int, default=1_000_000, show_default=True,
    help="Maximum cost of a request: sum of characters times beam size over its sentences.",
)  # fmt: skip
@click.option(
    "--trust-code",
    is_flag=True,
    help="Allow version-compatible engines to run the machine code that they contain.",
)
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
    from translate_trt.runtime.serve.triton.serving_options import ServerOptions

    options = ServerOptions(**flags)
    entry = write_repository(
        bundle, target, out, options, shortlist=shortlist, link=link, force=force
    )
    click.echo(f"{out}: model {options.name}, {entry.name}")

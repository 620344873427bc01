"""`translate-trt triton`: a bundle as a model repository of the Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.bundle_flags import bundle_argument, target_flags
from translate_trt.runtime.cli.names import output_option


@click.command()
@bundle_argument
@target_flags
@output_option("The model repository to make.")
@click.option("--force", is_flag=True, help="Replace the model repository at --output.")
@click.option("--link", is_flag=True, help="Name the bundle by its path in place of copying it.")
@click.option(
    "--name", default="translation", show_default=True, help="Of the model, in the server's URLs."
)
@click.option(
    "--max-batch-size", type=int, default=64, show_default=True,
    help="Sentences that the server hands over together, at most.",
)  # fmt: skip
@click.option(
    "--preferred-batch-size", "preferred_batch_sizes", type=int, multiple=True,
    help="Sentences that are handed over at once; may be given several times. [any number]",
)  # fmt: skip
@click.option(
    "--queue-delay", type=int, default=0, show_default=True,
    help="Microseconds that a sentence may wait for others.",
)  # fmt: skip
@click.option(
    "--capacity", type=int, default=1024, show_default=True,
    help="Requests in an instance; with so many, others are refused as unavailable.",
)  # fmt: skip
@click.option(
    "--instances", type=int, default=1, show_default=True,
    help="Processes, each with the weights of its own; on GPUs: for each GPU.",
)  # fmt: skip
@click.option("--workers", type=int, help="Batches at once in an instance. [one per core]")
@click.option("--threads", type=int, help="Processor threads of each worker. [1]")
@click.option(
    "--batch-tokens", type=int, default=512, show_default=True,
    help="Source tokens translated together, padding included.",
)  # fmt: skip
@click.option("--device", help="cpu or cuda. [GPUs where the target needs them]")
@click.option(
    "--max-beam-size", type=int, default=16, show_default=True,
    help="Requests that ask for more are refused.",
)  # fmt: skip
@click.option(
    "--max-characters", type=int, default=10_000, show_default=True,
    help="Requests with longer texts are refused.",
)  # fmt: skip
@click.option(
    "--max-cost", type=int, default=1_000_000, show_default=True,
    help="Requests that cost more, characters times beam size of all sentences, are refused.",
)  # fmt: skip
@click.option(
    "--trust-code",
    is_flag=True,
    help="Run the machine code that a version-compatible engine brings.",
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
    """Make a model repository that the Triton Inference Server serves.

    The server needs its Python backend, and translate-trt installed for the Python of that backend.
    """
    from translate_trt.runtime.serve.triton.repository import write_repository
    from translate_trt.runtime.serve.triton.serving_options import ServerOptions

    options = ServerOptions(**flags)
    entry = write_repository(
        bundle, target, out, options, shortlist=shortlist, link=link, force=force
    )
    click.echo(f"{out}: model {options.name}, {entry.name}")

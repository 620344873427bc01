"""`translate-trt push`: upload a bundle to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import click

from translate_trt.runtime.cli.bundle_flags import BUNDLE
from translate_trt.runtime.cli.command import Command


@click.command(cls=Command)
@click.argument("bundle", type=BUNDLE)
@click.argument("repository")
@click.option(
    "--license", required=True,
    help="License of the model for the card, by its identifier on the Hub, such as cc-by-4.0.",
)  # fmt: skip
@click.option("--private", is_flag=True, help="Create a private repository.")
@click.option("--message", help="Message of the commit.")
def push(bundle: Path, repository: str, license: str, private: bool, message: str | None) -> None:
    """Upload BUNDLE to REPOSITORY of the Hugging Face Hub, as OWNER/NAME.

    The repository is created if necessary. One commit has all files, and a model card with the
    languages, targets and evidence of the bundle. `translate-trt get REPOSITORY` installs the
    bundle. Log in with `hf auth login`, or set HF_TOKEN.
    """
    from translate_trt.export.hub.upload import upload

    commit = upload(bundle, repository, license, private, message)
    click.echo(f"{repository}: commit {commit}")

"""`translate-trt list` and `translate-trt remove`: installed models."""

from __future__ import annotations

import click

from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.output import print_json, print_lines
from translate_trt.runtime.io.report import columns
from translate_trt.runtime.model_changes import remove_model
from translate_trt.runtime.model_store import (
    InstalledModel,
    find_model,
    installed_models,
    models_directory,
)

# Digits of a commit hash in the table; --json has all.
_HASH_DIGITS = 12


@click.command("list", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the models' records as JSON.")
def list_(as_json: bool) -> None:
    """List the models that `translate-trt get` has installed.

    Commands with a BUNDLE take the name of such a model.
    """
    models = installed_models()
    if as_json:
        print_json([{**model.record.to_json(), "bundle": str(model.bundle)} for model in models])
    elif models:
        header = ("name", "languages", "size", "format", "license", "revision", "installed")
        print_lines(columns([header, *map(_row, models)]))
    else:
        click.echo(f"no models in {models_directory() or 'a cache that is off'}", err=True)


def _row(model: InstalledModel) -> tuple[str, ...]:
    record = model.record
    languages = (_languages(record.source_languages), _languages(record.target_languages))
    return (
        record.name,
        " to ".join(languages),
        _size(record.bytes),
        record.format,
        record.license or "unknown",
        record.revision[:_HASH_DIGITS],
        record.installed,
    )


def _languages(codes: tuple[str, ...]) -> str:
    if not codes:
        return "?"
    return codes[0] if len(codes) == 1 else f"any of {len(codes)}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


@click.command(cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove installed models.

    Files in the cache of the Hugging Face Hub, which were downloaded for them, are kept; `hf cache`
    lists and removes these.
    """
    for name in dict.fromkeys(find_model(name).record.name for name in names):
        record = remove_model(name)
        click.echo(f"removed {record.name}, {_size(record.bytes)}", err=True)

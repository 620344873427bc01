"""Options and arguments that select a bundle and a target."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.command import together
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.model_store import resolve_bundle


class BundleType(click.Path):
    """Path of a bundle, or the name of an installed model; an existing path wins."""

    name = "bundle"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the directory of the bundle."""
        return resolve_bundle(os.fsdecode(super().convert(value, param, ctx)))


BUNDLE = BundleType()

#: Environment variable with the bundle of commands that name none.
VARIABLE = "TRANSLATE_TRT_BUNDLE"


def _bundle_or_default(ctx: click.Context, param: click.Parameter, given: Path | None) -> Path:
    """Return the bundle of the option, or else the one that the user's configuration names.

    Raises:
        MissingParameter: Neither names one.
        OptionError: The configuration cannot be read, or its bundle is not text.
    """
    if given is not None:
        return given
    path = Path(click.get_app_dir("translate-trt"), "config.toml")
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("bundle")
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot read {path}: {error}. Correct it, or give --bundle.") from error
    if found is None:
        hint = f'Give it, set {VARIABLE}, or write bundle = "..." into {path}.'
        raise click.MissingParameter(hint, ctx, param)
    if not isinstance(found, str):
        raise OptionError(f'{path}: bundle is {found!r}; write text, such as bundle = "my-model".')
    return BUNDLE.convert(found, param, ctx)


bundle_flag = click.option(
    "--bundle",
    type=BUNDLE,
    envvar=VARIABLE,
    callback=_bundle_or_default,
    help="Directory written by translate-trt export, or name of a model of translate-trt get. "
    f"[${VARIABLE}, or bundle of the configuration file]",
)
bundle_argument = click.argument("bundle", type=BUNDLE)

#: --target and --shortlist.
target_flags = together(
    click.option("--target", help="Target, such as onnx-int8. [the first of the bundle]"),
    click.option(
        "--shortlist",
        is_flag=True,
        help="Use the target's shortlist variant, which only considers likely tokens.",
    ),
)
batch_tokens_flag = click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    help="Source tokens per batch, padding included. [512; for engines those of the largest "
    "profile]",
)
cache_flag = click.option(
    "--cache-mib",
    type=click.IntRange(min=0),
    default=0,
    help="Memory in MiB for results of earlier sentences, which equal ones with equal options have "
    "at once. [0: none]",
)
device_flag = click.option(
    "--device", help="cpu, cuda, cuda:1 or xpu. [a GPU if the target is made for one]"
)
trust_code_flag = click.option(
    "--trust-code",
    is_flag=True,
    help="Allow version-compatible engines to run the machine code that they contain.",
)

"""`translate-trt get`: install a model by name."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import threads_flag
from translate_trt.runtime.errors import OptionError, OutputError
from translate_trt.runtime.model_store import (
    ARGOS,
    FIREFOX,
    VARIABLE,
    check_name,
    installed_bundle,
    models_directory,
)

if TYPE_CHECKING:
    from translate_trt.export.hub.origin import Origin


@click.command(cls=Command)
@click.argument("name")
@click.option(
    "--revision",
    help="Branch, tag or commit of the repository, or version of a model of Firefox or Argos. "
    "Default: the branch main, or the newest version.",
)
@click.option(
    "--target", "targets", multiple=True,
    help="Target, as in export; may be given several times. Default: onnx-int8, or "
    "onnx-int8-shortlist if the model has a shortlist; all targets of a bundle.",
)  # fmt: skip
@click.option("--as", "chosen", metavar="NAME", help="Name of the installed model. Default: NAME.")
@click.option(
    "--languages", nargs=2, metavar="SOURCE TARGET", default=(None, None),
    help="Codes of the two languages. Default: those of a model of OPUS-MT, Firefox or Argos.",
)  # fmt: skip
@click.option(
    "--attention/--no-attention",
    default=None,
    help="Export cross-attention, which alignments and markup need. [yes]",
)
@click.option("--no-verify", is_flag=True, help="Do not compare the bundle with the model.")
@click.option("--offline", is_flag=True, help="Use only what was downloaded before.")
@click.option("--force", is_flag=True, help="Replace an installed model of the same name.")
@threads_flag
def get(
    name: str,
    revision: str | None,
    targets: tuple[str, ...],
    chosen: str | None,
    languages: tuple[str | None, str | None],
    attention: bool | None,
    no_verify: bool,
    offline: bool,
    force: bool,
    threads: int | None,
) -> None:
    """Install the model NAME, which other commands then take as their bundle.

    NAME is a repository of the Hugging Face Hub, such as Helsinki-NLP/opus-mt-en-de, or
    firefox:en-de for a model of Firefox, or argos:en-de for a package of Argos Translate; one of
    this machine is argos:PATH, with a slash and --as. The repository has a model of a format that
    `import auto` recognizes, a checkpoint, or a bundle. Only the files that are needed are
    downloaded, at a fixed commit; complete ones are kept if the command is interrupted. A model is
    imported, exported and compared with PyTorch on sample sentences (docs/models.md).
    """
    from translate_trt.export.hub.install import InstallOptions, install

    if not _is_local(name):
        check_name(name)
    elif chosen is None:
        raise OptionError(f"{name} has no name for the installed model; add --as NAME.")
    stored = check_name(chosen or name)
    store = models_directory()
    if store is None:
        raise OutputError(f"the cache is off; set {VARIABLE} to a directory for models.")
    if threads is not None and importlib.util.find_spec("torch") is not None:
        from translate_trt.train.trainer.distributed import use_threads

        use_threads(threads)
    options = InstallOptions(targets, languages, attention, not no_verify, threads)
    opened = functools.partial(_open, name, revision, store / ".downloads", offline)
    record = install(opened, stored, options, force, lambda text: click.echo(text, err=True))
    click.echo(f"installed {record.name}, {record.bytes / 1e6:.1f} MB", err=True)
    click.echo(_command(record.name))


def _is_local(name: str) -> bool:
    """Return whether a name is the path of a package."""
    return name.startswith(ARGOS) and "/" in name


def _open(name: str, revision: str | None, downloads: Path, offline: bool) -> Origin:
    """Look up the model at its origin."""
    if name.startswith(FIREFOX):
        from translate_trt.export.hub.firefox import FirefoxModel

        pair = name[len(FIREFOX) :]
        return FirefoxModel.open(pair, revision, downloads / "firefox", offline)
    if name.startswith(ARGOS):
        from translate_trt.export.hub.argos import ArgosOrigin

        rest = name[len(ARGOS) :]
        if _is_local(name):
            return ArgosOrigin.local(Path(rest))
        return ArgosOrigin.open(rest, revision, downloads / "argos", offline)
    from translate_trt.export.hub.repository import HubRepository

    return HubRepository.open(name, revision, downloads / "hub", offline)


def _command(name: str) -> str:
    """Return the command that translates with a model, with the languages that it needs."""
    from translate_trt.export.hub.sample_languages import language_flags

    flags = language_flags(read_manifest(installed_bundle(name)))
    return f"translate-trt translate --bundle {name}{flags}"

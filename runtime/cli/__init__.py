"""The command `translate-trt`: the list of subcommands, messages and exit codes.

A subcommand's module is imported when it is called, so that `translate` starts without torch.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from translate_trt.runtime.cli.output import abandon_stdout
from translate_trt.runtime.errors import TranslateTrtError

log = logging.getLogger("translate_trt")

# 128 + the signal's number: what a shell reports of a program that the signal ended.
_EXIT_INTERRUPTED = 130
_EXIT_CLOSED_PIPE = 141


class Subcommand(NamedTuple):
    """Where a subcommand is, its line in `--help`, and the pip extra that it needs, if any."""

    module: str
    attribute: str
    short_help: str
    extra: str | None = None


_HERE = "translate_trt.runtime.cli"
SUBCOMMANDS = {
    "data": Subcommand(f"{_HERE}.data", "data", "Make text ready to train on.", "train"),
    "train": Subcommand(f"{_HERE}.train", "train", "Train a Transformer on text pairs.", "train"),
    "plot": Subcommand(f"{_HERE}.plot", "plot", "Draw the curves of training runs.", "train"),
    "attention": Subcommand(
        f"{_HERE}.attention", "attention", "Draw where a model looks as it translates.", "train"
    ),
    "shortlist": Subcommand(
        f"{_HERE}.shortlist", "shortlist", "Learn which tokens translate which.", "train"
    ),
    "import": Subcommand(
        f"{_HERE}.importing", "import_", "Take over a model of another toolkit.", "export"
    ),
    "export": Subcommand(
        f"{_HERE}.export", "export", "Compile a checkpoint into a bundle.", "export"
    ),
    "translate": Subcommand(f"{_HERE}.translate", "translate", "Translate lines of text."),
    "corpus": Subcommand(
        f"{_HERE}.corpus", "corpus", "Translate many files, on many machines.", "corpus"
    ),
    "triton": Subcommand(
        f"{_HERE}.triton", "triton", "Make a model repository for the Triton Inference Server."
    ),
    "verify": Subcommand(
        f"{_HERE}.verify", "verify", "Compare a bundle with its checkpoint.", "export"
    ),
    "evaluate": Subcommand(
        f"{_HERE}.evaluate", "evaluate", "Score translations, checkpoints and bundles.", "train"
    ),
    "bench": Subcommand(f"{_HERE}.bench", "bench", "Measure how fast a bundle is here."),
    "info": Subcommand(f"{_HERE}.info", "info", "Show and check what is in a bundle."),
}

_PACKAGES_OF_EXTRA = {"train": "training", "export": "export", "corpus": "cluster"}


class _Main(click.Group):
    """A group that imports its subcommands late and turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = SUBCOMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if ctx.resilient_parsing:  # shell completion: the name is all that can be said
                return click.Command(cmd_name, short_help=entry.short_help)
            raise _missing_package(cmd_name, error) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in SUBCOMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _occupy_closed_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke_subcommand(ctx)
        except TranslateTrtError as error:
            # Not through the log, which is only set up once the subcommand has been found.
            click.echo(f"translate-trt: error: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(_EXIT_INTERRUPTED)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            abandon_stdout()
            ctx.exit(_EXIT_CLOSED_PIPE)

    def _invoke_subcommand(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:  # imported inside the subcommand
            raise _missing_package(ctx.invoked_subcommand or "", error) from error


def _occupy_closed_streams() -> None:
    """Let no file that is opened later get the number of a closed standard stream.

    Otherwise messages of libraries end up in that file. Messages of our own go nowhere then;
    `sys.stdin` and `sys.stdout` stay None, so that commands which need them say so.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _missing_package(command: str, error: ModuleNotFoundError) -> Exception:
    """What to tell of an import that failed: which extra to install, or the error as it is."""
    entry = SUBCOMMANDS.get(command)
    missing = (error.name or "").partition(".")[0]
    if entry is None or entry.extra is None or missing == "translate_trt":
        return error
    return TranslateTrtError(
        f"translate-trt {command} needs the {_PACKAGES_OF_EXTRA[entry.extra]} packages: "
        f"pip install 'translate-trt[{entry.extra}]' (there is no {missing})"
    )


class _StderrHandler(logging.Handler):
    """Messages as `translate-trt: warning: ...` on stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        message = f"translate-trt: {record.levelname.lower()}: {self.format(record)}"
        if "tqdm" in sys.modules:  # else there is no bar, and no need to import it
            sys.modules["tqdm"].tqdm.write(message, file=sys.stderr)
        else:
            click.echo(message, err=True)


def _start_logging(level: int) -> Callable[[], None]:
    """Show messages from `level` up; returns what undoes it."""
    handler = _StderrHandler()
    before = log.level
    log.setLevel(level)
    log.addHandler(handler)

    def stop() -> None:
        log.removeHandler(handler)
        log.setLevel(before)

    return stop


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="translate-trt", prog_name="translate-trt")
@click.option("-v", "--verbose", count=True, help="Tell what is done; -vv tells more.")
@click.option("-q", "--quiet", is_flag=True, help="Show errors only, no warnings.")
@click.pass_context
def main(ctx: click.Context, verbose: int, quiet: bool) -> None:
    """Train a Transformer, compile it into a bundle, and translate with the bundle."""
    shown = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    ctx.call_on_close(_start_logging(logging.ERROR if quiet else shown))

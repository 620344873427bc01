"""The command `translate-trt`: subcommands, error messages and exit codes.

The module of a subcommand is imported when the subcommand runs: `translate` starts without PyTorch.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any, NamedTuple

import click

from translate_trt.runtime.cli.foreign_options import explained
from translate_trt.runtime.cli.output import abandon_stdout
from translate_trt.runtime.cli.shutdown import exit_on_signals
from translate_trt.runtime.cli.verbosity import add_verbosity_flags, show_messages
from translate_trt.runtime.cli.wording import in_flags
from translate_trt.runtime.errors import OptionError, TranslateTrtError

# Exit code of click's usage errors: the command line is wrong, and no work has begun.
_EXIT_USAGE = 2
# 128 + the signal's number, which shells report for a program that a signal has terminated.
_EXIT_INTERRUPTED = 130
_EXIT_CLOSED_PIPE = 141


class Subcommand(NamedTuple):
    """Location of a subcommand and its line in `--help`.

    Attributes:
        package: The package of its module.
        short_help: The line.
        extra: The pip extra that it needs, if any.
        module: Name of its module, if it is not that of the subcommand.
        attribute: Name of the command in the module, if it is not that of the subcommand.
    """

    package: str
    short_help: str
    extra: str | None = None
    module: str | None = None
    attribute: str | None = None

    def load(self, name: str) -> click.Command:
        """Import the module, and return the command of a name."""
        module = importlib.import_module(f"{self.package}.{self.module or name}")
        command: click.Command = getattr(module, self.attribute or name)
        return command


# Subcommands are named, not imported: they live in the packages `train`, `export` and `runtime`,
# and the former two need extras.
_TRAIN = "translate_trt.train.cli"
_EXPORT = "translate_trt.export.cli"
_RUNTIME = "translate_trt.runtime.cli"
SUBCOMMANDS = {
    "data": Subcommand(_TRAIN, "Prepare text for training.", "train"),
    "train": Subcommand(_TRAIN, "Train a Transformer on parallel text.", "train"),
    "plot": Subcommand(_TRAIN, "Plot the curves of training runs.", "train"),
    "attention": Subcommand(_TRAIN, "Draw the attention of a model.", "train"),
    "shortlist": Subcommand(_TRAIN, "Learn a table of likely target tokens.", "train"),
    "distill": Subcommand(_EXPORT, "Train fast students on a bundle's translations.", "distill"),
    "import": Subcommand(
        _EXPORT, "Convert a model of another toolkit.", "export", "importing", "import_"
    ),
    "export": Subcommand(_EXPORT, "Compile a checkpoint into a bundle.", "export"),
    "get": Subcommand(_EXPORT, "Install a model by name.", "hub"),
    "push": Subcommand(_EXPORT, "Upload a bundle to the Hub.", "hub"),
    "list": Subcommand(_RUNTIME, "List the installed models.", module="models", attribute="list_"),
    "remove": Subcommand(_RUNTIME, "Remove installed models.", module="models"),
    "translate": Subcommand(_RUNTIME, "Translate lines of text."),
    "translate-file": Subcommand(
        _RUNTIME,
        "Translate documents and other files.",
        module="translate_file",
        attribute="translate_file",
    ),
    "parse": Subcommand(_RUNTIME, "Write parse trees of sentences."),
    "score": Subcommand(_RUNTIME, "Score given translations of lines."),
    "rerank": Subcommand(_TRAIN, "Choose among several translations of each line.", "train"),
    "terminology": Subcommand(_RUNTIME, "Count the terms that translations have."),
    "corpus": Subcommand(_RUNTIME, "Translate many files on one or more machines.", "corpus"),
    "serve": Subcommand(_RUNTIME, "Serve translations over HTTP, with a web page.", "serve"),
    "triton": Subcommand(_RUNTIME, "Create a model repository for Triton."),
    "verify": Subcommand(_EXPORT, "Compare a bundle with its checkpoint.", "export"),
    "calibrate": Subcommand(_RUNTIME, "Calibrate the confidence of translated words."),
    "evaluate": Subcommand(_TRAIN, "Score translations, checkpoints and bundles.", "train"),
    "bench": Subcommand(_RUNTIME, "Measure the speed of a bundle on this machine."),
    "info": Subcommand(_RUNTIME, "Show the contents of a bundle and verify it."),
}

_PACKAGES_OF_EXTRA = {
    "train": "training",
    "export": "export",
    "corpus": "cluster",
    "distill": "distillation",
    "serve": "server",
    "hub": "hub",
}


class _Main(click.Group):
    """Command group that imports subcommands lazily and converts errors to exit codes."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        add_verbosity_flags(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = SUBCOMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            return entry.load(cmd_name)
        except ModuleNotFoundError as error:
            if ctx.resilient_parsing:  # shell completion needs only the name
                return click.Command(cmd_name, short_help=entry.short_help)
            raise _missing_package(cmd_name, error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], SUBCOMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in SUBCOMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _occupy_closed_streams()
        with exit_on_signals():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke_subcommand(ctx)
        except OptionError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            _report(in_flags(str(error), command))
            ctx.exit(_EXIT_USAGE)
        except TranslateTrtError as error:
            _report(str(error))
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(_EXIT_INTERRUPTED)
        except BrokenPipeError:  # the reader, such as `head`, has exited
            abandon_stdout()
            ctx.exit(_EXIT_CLOSED_PIPE)

    def _invoke_subcommand(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise explained(error) from error
        except ModuleNotFoundError as error:  # raised by a lazy import of the subcommand
            raise _missing_package(ctx.invoked_subcommand or "", error) from error


def _occupy_closed_streams() -> None:
    """Open /dev/null on the descriptors of closed standard streams.

    Otherwise the next opened file would get such a descriptor, and messages of libraries would end
    up in it. `sys.stdin` and `sys.stdout` stay None; commands that need them report it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _missing_package(command: str, error: ModuleNotFoundError) -> Exception:
    """Return the error to report for a failed import, which names the extra to install."""
    entry = SUBCOMMANDS.get(command)
    missing = (error.name or "").partition(".")[0]
    if missing == "onnxruntime":
        from translate_trt.runtime.backends import NO_ONNXRUNTIME

        return TranslateTrtError(NO_ONNXRUNTIME)
    if entry is None or entry.extra is None or missing == "translate_trt":
        return error
    return TranslateTrtError(
        f"translate-trt {command} needs the {_PACKAGES_OF_EXTRA[entry.extra]} packages: "
        f"pip install 'translate-trt[{entry.extra}]' ({missing} is missing)"
    )


def _report(message: str) -> None:
    """Print an error without the log, which is not set up before the subcommand is known."""
    click.echo(f"translate-trt: error: {message}", err=True)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Main, context_settings=_CONTEXT)
@click.version_option(package_name="translate-trt", prog_name="translate-trt")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Train a Transformer, compile it into a bundle, and translate with the bundle."""
    show_messages(ctx)

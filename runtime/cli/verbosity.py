"""Log messages and progress bars on stderr; -v and -q before or after the subcommand's name."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger("translate_trt")

_VERBOSE, _QUIET = "translate_trt.verbose", "translate_trt.quiet"


def show_messages(ctx: click.Context) -> None:
    """Print warnings and errors to stderr until the context closes; -v and -q set the level."""
    handler = _StderrHandler()
    before = log.level
    log.addHandler(handler)
    _set_level(ctx)

    def stop() -> None:
        log.removeHandler(handler)
        log.setLevel(before)

    ctx.call_on_close(stop)


def is_quiet(ctx: click.Context) -> bool:
    """Return True if -q was given before or after the subcommand."""
    return bool(ctx.meta.get(_QUIET))


def show_progress() -> None:
    """Print progress messages as -v does, unless -q was given."""
    if not is_quiet(click.get_current_context()):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))


def progress_bar(total: int | None, unit: str, done: int = 0, hidden: bool = False) -> tqdm[Any]:
    """Create a progress bar on stderr, hidden at least where stderr is no terminal."""
    from tqdm import tqdm

    hidden = hidden or not sys.stderr.isatty()
    return tqdm(total=total, initial=done, unit=unit, disable=hidden, file=sys.stderr)


def add_verbosity_flags(command: click.Command) -> None:
    """Add -v and -q to a command."""
    command.params += (
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=partial(_note, _VERBOSE),
            help="Print progress messages; -vv prints more.",
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=partial(_note, _QUIET),
            help="Print errors only, no warnings.",
        ),
    )


def _note(key: str, ctx: click.Context, _: click.Parameter, count: int) -> None:
    """Add -v or -q to those before the subcommand, whose context sets the level."""
    ctx.meta[key] = ctx.meta.get(key, 0) + count
    if ctx.parent is not None:  # show_messages sets the level of the main command
        _set_level(ctx)


def _set_level(ctx: click.Context) -> None:
    shown = (logging.WARNING, logging.INFO, logging.DEBUG)[min(ctx.meta.get(_VERBOSE, 0), 2)]
    log.setLevel(logging.ERROR if is_quiet(ctx) else shown)


class _StderrHandler(logging.Handler):
    """Handler that prints `translate-trt: warning: ...` to stderr, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        message = f"translate-trt: {record.levelname.lower()}: {self.format(record)}"
        if "tqdm" in sys.modules:  # without tqdm there is no progress bar
            sys.modules["tqdm"].tqdm.write(message, file=sys.stderr)
        else:
            click.echo(message, err=True)

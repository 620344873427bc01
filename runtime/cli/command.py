"""Rules of all commands: repeated options, -v and -q, sections of the help, values of flags."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from translate_trt.runtime.cli.verbosity import add_verbosity_flags

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = TypeVar("_Options")


class Command(click.Command):
    """Command with -v and -q that refuses a single-valued option given twice."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        add_verbosity_flags(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; the last value of an option does not silently win.

        Raises:
            UsageError: An option that has one value is given twice, or the arguments are wrong.
        """
        if not ctx.resilient_parsing:  # shell completion
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            for option, count in Counter(order).items():
                has_one = isinstance(option, click.Option) and not (
                    option.multiple or option.count or option.is_flag
                )
                if count > 1 and has_one:
                    raise click.BadOptionUsage(
                        str(option.name), f"{option.opts[-1]} was given {count} times "
                        "but takes one value; give it once.", ctx,
                    )  # fmt: skip
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section, those without one first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """Group of such commands."""

    command_class = Command


def section(title: str) -> Callable[[Callable[[_Function], Any]], Callable[[_Function], Any]]:
    """Put the options that a decorator adds into a section of the help."""

    def sectioned(add: Callable[[_Function], Any]) -> Callable[[_Function], Any]:
        @functools.wraps(add)
        def decorate(command: _Function) -> Any:
            before = len(getattr(command, "__click_params__", ()))
            decorated = add(command)
            for param in decorated.__click_params__[before:]:
                param.section = title
            return decorated

        return decorate

    return sectioned


def together(*flags: Callable[[_Function], Any]) -> Callable[[_Function], Any]:
    """Join decorators that add options to one; the help lists the options in this order."""

    def decorate(command: _Function) -> Any:
        for flag in reversed(flags):
            command = flag(command)
        return command

    return decorate


def take(flags: dict[str, Any], options: type[_Options]) -> _Options:
    """Remove the flags that are fields of a dataclass, and make an instance of them."""
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    return options(**{field.name: flags.pop(field.name) for field in fields})


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are not left at None."""
    return {name: value for name, value in flags.items() if value is not None}

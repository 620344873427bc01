"""Errors in the words of the command line: fields of options as the flags that set them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click


def in_flags(message: str, command: click.Command | None) -> str:
    """Replace names of Python's options in a message by the flags of a command.

    Names of one word are English words too, such as `device`, so that they are replaced only where
    a message begins with them as its subject ("device is ...").

    Args:
        message: of an OptionError, which names fields (`beam_size is 0; ...`).
        command: with its flags; None: none are replaced.
    """
    flags = {} if command is None else dict(_flags(command))

    def flag(match: re.Match[str]) -> str:
        return flags.get(match[0], match[0])

    message = re.sub(r"^[a-z]+(?= is )", flag, message)
    # A flag's own words, as in --max-length, have no underscore.
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", flag, message)


def _flags(command: click.Command) -> Iterator[tuple[str, str]]:
    """Each option's name in Python and its longest flag."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            yield from _flags(subcommand)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name and not parameter.hidden:
            yield parameter.name, max(parameter.opts, key=len)

"""Translation of option names in error messages to command-line flags."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click


def in_flags(message: str, command: click.Command | None) -> str:
    """Replace field names in a message by the flags of a command.

    Single-word names such as `device` are also English words. They are replaced only as the subject
    at the start of a message ("device is ...").

    Args:
        message: Message of an OptionError, which names fields (`beam_size is 0; ...`).
        command: Command with the flags; None leaves the message unchanged.
    """
    flags = {} if command is None else dict(_flags(command))

    def flag(match: re.Match[str]) -> str:
        return flags.get(match[0], match[0])

    message = re.sub(r"^[a-z]+(?= is )", flag, message)
    # Flags such as --max-length contain no underscores and do not match.
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", flag, message)


def _flags(command: click.Command) -> Iterator[tuple[str, str]]:
    """Iterate over the Python name and the longest flag of each option."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            yield from _flags(subcommand)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name:
            yield parameter.name, max(parameter.opts, key=len)

"""Pages for users of other toolkits have every option of the toolkits that are installed here."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from support.paths import ROOT

from translate_trt.runtime.cli import main

PAGE = ROOT / "docs/coming-from.md"


def tables() -> dict[str, list[tuple[str, str]]]:
    """Rows (options, answer) of each table, by the head of its first column."""
    found: dict[str, list[tuple[str, str]]] = {}
    rows: list[tuple[str, str]] | None = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            rows = None
            continue
        options, answer = (cell.strip() for cell in line.strip("|").split("|", 1))
        if rows is None:
            rows = found[options] = []
        elif not options.startswith("---"):
            rows.append((options, answer))
    return found


def listed(*heads: str) -> list[str]:
    """Names in the first columns of tables, in order, without their values."""
    rows = [row for head in heads for row in tables()[head]]
    return [span.split()[0] for options, _ in rows for span in re.findall(r"`([^`]+)`", options)]


def our_flags(command: click.Command) -> Iterator[str]:
    yield from (name for parameter in command.params for name in parameter.opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from our_flags(found)


def test_answers_are_complete_and_name_flags_that_exist() -> None:
    flags = {*our_flags(main), "--help", "--version"}
    for head, rows in tables().items():
        names = listed(head)
        assert len(names) == len(set(names)), head
        for options, answer in rows:
            assert answer, options
            reasonless = re.search(
                r"(?i)\*\*not wanted\*\*(?!:| as an option:| is |, since )", answer
            )
            assert reasonless is None, options
            unknown = {*re.findall(r"(?<![\w-])--[a-z][\w-]*", answer)} - flags
            assert not unknown, options

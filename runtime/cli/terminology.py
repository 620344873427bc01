"""`translate-trt terminology`: recall of a glossary's terms in translations of any system."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import PATH
from translate_trt.runtime.cli.output import print_json, print_lines
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.lines import STDIN, check_input, read_parallel
from translate_trt.runtime.io.report import columns
from translate_trt.runtime.text.glossary import Entry, Glossary, Recall


@click.command(cls=Command)
@click.argument("glossary", type=PATH)
@click.option("--source", type=PATH, required=True, help="Lines that were translated.")
@click.option("--translation", type=PATH, required=True, help="Their translations, line by line.")
@click.option("--ignore-case", is_flag=True, help="Find the phrases of the glossary in any case.")
@click.option(
    "--missed", type=click.IntRange(min=0), default=10, show_default=True,
    help="Number of terms to list, those that are missing most often.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the counts of every term as JSON.")
def terminology(
    glossary: Path,
    source: Path,
    translation: Path,
    ignore_case: bool,
    missed: int,
    as_json: bool,
) -> None:
    """Count the terms of a GLOSSARY in source lines, and those that the translations have.

    The translations may be of any system. Each term in a source line needs an occurrence of one of
    its target phrases of its own in the translation of the line.
    """
    paths = [str(path) for path in (glossary, source, translation)]
    if paths.count(STDIN) > 1:
        raise OptionError("several of the files are standard input; name a file for all but one.")
    for path in paths:
        check_input(path)
    terms = Glossary.read(glossary, ignore_case)
    total, by_entry, lines = Recall(), defaultdict[Entry, Recall](Recall), 0
    for line, translated in read_parallel(source, translation):
        lines += 1
        for match, term in terms.matched_terms(line, translated):
            total.add([term])
            by_entry[match.entry].add([term])
    # Entries missing as often keep the order of the text.
    entries = sorted(by_entry.items(), key=lambda item: item[1].found - item[1].terms)
    if as_json:
        print_json(_json(lines, total, entries))
    else:
        print_lines(_table(total, entries[:missed]))


def _table(total: Recall, entries: list[tuple[Entry, Recall]]) -> list[str]:
    rows = [
        (entry.source, " | ".join(entry.targets), f"{count.terms - count.found} of {count.terms}")
        for entry, count in entries
        if count.found < count.terms
    ]
    return [str(total), *(columns([("term", "target phrases", "missing"), *rows]) if rows else ())]


def _json(lines: int, total: Recall, entries: list[tuple[Entry, Recall]]) -> dict[str, Any]:
    return {
        "lines": lines,
        "terms": total.terms,
        "found": total.found,
        "recall": total.found / total.terms if total.terms else None,
        "entries": [
            {"source": entry.source, "targets": entry.targets} | vars(count)
            for entry, count in entries
        ],
    }

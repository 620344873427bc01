"""`translate-trt parse`: parse trees of sentences."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.loading import Loading, load_translator, loading_flags
from translate_trt.runtime.cli.names import inputs_argument, lines_output_options
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.search_flags import check_flags, replace_options, search_flags
from translate_trt.runtime.io.lines import display_name, read_chunks
from translate_trt.runtime.text.tokenizer import without_controls

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@bundle_flag
@target_flags
@inputs_argument
@lines_output_options
@click.option(
    "--tokenized",
    is_flag=True,
    help="Lines are words with spaces between them. Default: text, which is split into words as "
    "in the Penn Treebank; needs the extra parse.",
)
@search_flags
@click.option(
    "--json", "as_json", is_flag=True, help="Write tree, score and repairs as a JSON object."
)
@loading_flags
def parse(
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    tokenized: bool,
    as_json: bool,
    chunk_lines: int,
    **flags: Any,
) -> None:
    """Parse sentences, one per line, and write their trees, one per line.

    The trees have exactly the words of the lines. An output of the model that is no tree of the
    words is repaired, and the number of repairs is reported. A line that is longer than the
    bundle's limit is not split; its tree only lists its words, with a warning.
    """
    from translate_trt.runtime.parsing import Parser, split_words

    loading = take(flags, Loading)
    check_flags(flags)
    if not tokenized:
        split_words("")  # a missing package is reported before the bundle is loaded
    count = repaired = cut = 0
    with open_output(out, force, (loading.bundle, *inputs)) as results:
        translator = load_translator(loading, inputs)
        parser = Parser(translator)
        options = replace_options(translator.default_options, flags)
        for path in inputs:
            first = 1
            for lines in read_chunks(path, chunk_lines, lambda lines, _: lines):
                sentences = [
                    without_controls(line).split() if tokenized else line for line in lines
                ]
                parses = parser.parse(sentences, options)
                for number, one in enumerate(parses, start=first):
                    if one.score is None:
                        log.warning(
                            "%s: line %d is longer than this bundle takes, and its tree only lists "
                            "its words; export with a larger --max-source-length",
                            display_name(path), number,
                        )  # fmt: skip
                    repaired += one.repaired
                    cut += one.truncated
                first += len(parses)
                count += len(parses)
                results.write(
                    json.dumps(asdict(one), ensure_ascii=False) if as_json else one.tree
                    for one in parses
                )
    log.info("%d lines", count)
    if repaired:
        log.warning(
            "%d of %d trees were repaired (%d were cut off at the maximum length); --json marks "
            "them", repaired, count, cut,
        )  # fmt: skip

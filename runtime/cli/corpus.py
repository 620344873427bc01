"""`translate-trt corpus`: many files on one machine or on a Ray cluster."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import BATCH_TOKENS_HELP, bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import output_option
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.search_flags import (
    n_best_flag,
    read_glossary,
    replace_options,
    search_flags,
    split_flags,
    terminology_flags,
    translate_all_flag,
)
from translate_trt.runtime.cli.shard_progress import ShardProgress
from translate_trt.runtime.cli.structured_files import check_suffixes
from translate_trt.runtime.io.report import columns
from translate_trt.runtime.line_request import MARKUP

if TYPE_CHECKING:
    from translate_trt.runtime.serve.corpus.job import InputRecord

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@bundle_flag
@target_flags
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@output_option("Directory for the translations, one file per input under the same name.")
@click.option("--force", is_flag=True, help="Replace the results of a run with other settings.")
@click.option("--workers", type=int, help="Number of workers. [all cores, or all GPUs]")
@click.option(
    "--cores", type=int, default=1, show_default=True,
    help="Cores per worker; they share one copy of the weights.",
)  # fmt: skip
@click.option(
    "--address", help="Address of a Ray cluster, host:port or auto. [a cluster on this machine]"
)
@click.option(
    "--column", default="text", show_default=True,
    help="Column to translate: its name in Parquet files; in TSV its number from 1, or its name.",
)  # fmt: skip
@click.option(
    "--input-format", type=click.Choice(["text", "jsonl", "tsv"]), default="text",
    show_default=True,
    help="Format of the lines of other files, which the output keeps: text, an object of JSON, or "
    "columns separated by tabs.",
)  # fmt: skip
@click.option(
    "--header", is_flag=True, help="The first line of each TSV file has the names of the columns."
)
@click.option(
    "--field", default="text", show_default=True, help="Field of JSON lines to translate."
)
@click.option(
    "--constraints-field",
    help="Field of JSON lines with the phrases that each translation must have, a list.",
)
@click.option(
    "--shard-lines", type=int, default=10_000, show_default=True,
    help="Approximate number of lines per shard.",
)  # fmt: skip
@click.option(
    "--max-characters", type=int, default=10_000, show_default=True,
    help="Maximum length of a line; longer lines are reported and left empty.",
)  # fmt: skip
@click.option(
    "--attempts", type=int, default=3, show_default=True,
    help="Attempts per shard before the run gives it up.",
)  # fmt: skip
@click.option(
    "--batch-tokens", type=int, help=BATCH_TOKENS_HELP,
)  # fmt: skip
@click.option("--device", help="cpu or cuda. [a GPU if the target is made for one]")
@click.option(
    "--trust-code",
    is_flag=True,
    help="Allow version-compatible engines to run the machine code that they contain.",
)
@search_flags
@n_best_flag
@translate_all_flag
@split_flags
@click.option(
    "--document",
    is_flag=True,
    help="Translate each text of JSON lines or Parquet as a whole, and keep its structure. Implies "
    "--split-sentences.",
)
@click.option(
    "--unwrap",
    is_flag=True,
    help="With --document: join the lines of each paragraph first, where they were broken at a "
    "fixed width.",
)
@terminology_flags
@click.option(
    "--json",
    is_flag=True,
    help="Write one JSON object per line, with all hypotheses, as `translate --json` does.",
)
@click.option(
    "--alignments",
    is_flag=True,
    help="Add word alignments in Pharaoh format, to JSON lines or columns of TSV. Needs a bundle "
    "exported with --attention.",
)
@click.option(
    "--markup",
    type=click.Choice(MARKUP),
    help="Keep the tags and placeholders of html or xml, or the placeholders of text, in each "
    "line. Needs a bundle exported with --attention.",
)
@click.option(
    "--words",
    is_flag=True,
    help="Add the words of each translation with their confidence; implies --json.",
)
@click.option("--no-progress", is_flag=True, help="Show no progress.")
def corpus(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    inputs: tuple[str, ...],
    out: Path,
    force: bool,
    address: str | None,
    no_progress: bool,
    **flags: Any,
) -> None:
    """Translate files with many workers on this machine or on a Ray cluster.

    INPUT are files or quoted patterns: text with one sentence per line (also .gz and .zst), or
    .parquet with a column of text. Every input becomes a file of the same name in the --output
    directory. A Parquet file keeps its columns and gets an additional one, translation; with --json
    it contains the objects as text. With --input-format jsonl, each line is an object, which keeps
    its fields and gets translation; with --json also translation_hypotheses. With --input-format
    tsv, each line keeps its columns and gets translation; with --n-best also translation_2 and so
    on, and with --alignments translation_alignments after each.

    After Ctrl-C, SIGTERM or the loss of a machine, the same command continues where the run
    stopped. Lines that cannot be translated are left empty, counted, and listed in NAME.bad.jsonl.
    """
    if not inputs:
        raise click.UsageError("nothing to translate; name inputs, such as 'data/*.txt'.")
    from translate_trt.runtime.serve.corpus.run import prepare_work, translate_inputs
    from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions

    glossary = read_glossary(flags["terminology"], flags["terminology_ignore_case"])
    if glossary is not None:
        flags["terminology"] = tuple((one.source, *one.targets) for one in glossary.entries)
    options = CorpusOptions(**_take(flags, CorpusOptions))
    workers = WorkerOptions(**_take(flags, WorkerOptions))
    search = replace_options(read_manifest(bundle).search_options(), flags)
    work, sources = prepare_work(bundle, target, shortlist, inputs, out, search, options, workers)
    check_suffixes(
        [source.path for source in sources],
        {"input_format": options.input_format, "markup": options.markup},
    )
    progress = ShardProgress(no_progress)
    try:
        complete = translate_inputs(
            sources, work, progress.planned, progress.finished, address, force
        )
    except (KeyboardInterrupt, SystemExit):
        progress.close()
        log.warning("stopped; %s; run the same command to continue", progress.state())
        raise
    finally:
        progress.close()
    with open_output(None, force=False) as results:
        results.write([*_table(complete), progress.summary()])
    for name, record in complete.items():
        if record.bad:
            reasons = ", ".join(f"{count} {reason}" for reason, count in record.bad.items())
            log.warning("%s: %s; see %s", name, reasons, out / f"{name}.bad.jsonl")


def _take(flags: dict[str, Any], options: type[Any]) -> dict[str, Any]:
    """Remove the flags that are fields of an options class and return them."""
    return {field.name: flags.pop(field.name) for field in dataclasses.fields(options)}


def _table(complete: dict[str, InputRecord]) -> list[str]:
    rows = [("output", "lines", "bad", "target tokens")]
    for name, record in complete.items():
        rows.append((name, *_numbers([record])))
    if len(complete) > 1:
        rows.append(("all", *_numbers(complete.values())))
    return columns(rows)


def _numbers(records: Iterable[InputRecord]) -> tuple[str, str, str]:
    total: Counter[str] = Counter()
    for record in records:
        total["records"] += record.records
        total["bad"] += sum(record.bad.values())
        total["tokens"] += record.target_tokens
    return f"{total['records']:,}", f"{total['bad']:,}", f"{total['tokens']:,}"

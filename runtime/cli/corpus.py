"""`translate-trt corpus`: many files on one machine or on a Ray cluster."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cli.bundle_flags import (
    batch_tokens_flag,
    bundle_flag,
    target_flags,
    trust_code_flag,
)
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.format_flags import constraints_field_flag
from translate_trt.runtime.cli.line_flags import markup_flag, unwrap_flag, words_flag
from translate_trt.runtime.cli.names import described_options, output_option
from translate_trt.runtime.cli.output import print_lines
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
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions

if TYPE_CHECKING:
    from translate_trt.runtime.serve.corpus.job import InputRecord

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@bundle_flag
@target_flags
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@output_option("Directory for the translations, one file per input under the same name.")
@click.option("--force", is_flag=True, help="Replace the results of a run with other settings.")
@click.option(
    "--address", help="Address of a Ray cluster, host:port or auto. [a cluster on this machine]"
)
@described_options(WorkerOptions)
@described_options(CorpusOptions)
@constraints_field_flag
@batch_tokens_flag
@trust_code_flag
@search_flags
@n_best_flag
@translate_all_flag
@split_flags
@unwrap_flag
@terminology_flags
@markup_flag
@words_flag
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

    glossary = read_glossary(flags["terminology"], flags["terminology_ignore_case"])
    if glossary is not None:
        flags["terminology"] = tuple((one.source, *one.targets) for one in glossary.entries)
    options = take(flags, CorpusOptions)
    workers = take(flags, WorkerOptions)
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
    print_lines([*_table(complete), progress.summary()])
    for name, record in complete.items():
        if record.bad:
            reasons = ", ".join(f"{count} {reason}" for reason, count in record.bad.items())
            log.warning("%s: %s; see %s", name, reasons, out / f"{name}.bad.jsonl")


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

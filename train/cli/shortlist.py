"""`translate-trt shortlist`: learn a lexical shortlist from parallel text."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.command import Command, given
from translate_trt.runtime.cli.names import (
    PATH,
    default_note,
    field_options,
    output_option,
    processes_flag,
)
from translate_trt.runtime.cli.output import print_lines
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.atomic_files import claimed_file
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.io.report import columns
from translate_trt.train.shortlist.shortlist_size import ITERATIONS, ShortlistSize

if TYPE_CHECKING:
    from translate_trt.train.shortlist.ibm_model1 import TokenPairs
    from translate_trt.train.shortlist.learning import Coverage
    from translate_trt.train.shortlist.table import Shortlist
    from translate_trt.train.worker_processes import WorkerPool

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@click.option("--data", "prepared", type=PATH, help="Directory of `data prepare`.")
@click.option(
    "--text",
    nargs=2,
    type=PATH,
    metavar="SOURCE TARGET",
    help="Text to learn from and its translations, line by line, instead of --data.",
)
@click.option(
    "--tokenizer",
    type=PATH,
    help="Tokenizer for --text: a .spm file, or the directory of a run, a checkpoint or a bundle.",
)
@output_option("File to write.")
@field_options(dataclasses.fields(ShortlistSize), default_note)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=ITERATIONS,
    show_default=True,
    help="Iterations of expectation maximization.",
)
@click.option(
    "--pairs", type=click.IntRange(min=1), help="Number of pairs to use, evenly spaced. [all]"
)
@click.option(
    "--coverage",
    nargs=2,
    type=PATH,
    metavar="SOURCE TARGET",
    help="Report how many target tokens of a text are in the lists of its source.",
)
@processes_flag
@click.option("--force", is_flag=True, help="Replace --output.")
def shortlist(
    prepared: Path | None,
    text: tuple[Path, Path] | None,
    tokenizer: Path | None,
    out: Path,
    iterations: int,
    pairs: int | None,
    coverage: tuple[Path, Path] | None,
    workers: int | None,
    force: bool,
    **flags: Any,
) -> None:
    """Learn a lexical shortlist from the text that a model was trained on.

    IBM Model 1 estimates the probable translations of each source token. With a shortlist, the
    translation of a sentence uses only the most frequent target tokens and the translations of its
    source tokens, a few hundred of the vocabulary.

    \b
    translate-trt shortlist --data wmt14/ --output shortlist.safetensors
    translate-trt shortlist --text t.en t.de --tokenizer run/ --output shortlist.safetensors
    """  # noqa: D301
    from translate_trt.runtime.text.tokenizer import Tokenizer
    from translate_trt.train.shortlist.learning import (
        Vocabularies,
        build_shortlist,
        measure_coverage,
    )
    from translate_trt.train.shortlist.table import is_shortlist
    from translate_trt.train.worker_processes import WorkerPool

    size = ShortlistSize(**given(flags))
    if prepared is not None and (text or tokenizer):
        raise OptionError(
            "--data includes text and tokenizer; leave out --text and --tokenizer, or --data."
        )
    inputs = (prepared, *(text or ()), tokenizer, *(coverage or ()))
    held_out = list(read_parallel(*coverage)) if coverage else None  # errors before hours of work
    with claimed_file(out, force, is_shortlist, "a shortlist", inputs):
        with WorkerPool(workers or available_cores()) as pool:
            pairs_of_text, models = _text(prepared, text, tokenizer, pool)
            some = pairs_of_text.spread(pairs or len(pairs_of_text))
            made = build_shortlist(some, Vocabularies.of(*models), size, iterations, pool)
        made.save(out)
    found = measure_coverage(made, held_out, Tokenizer(*models)) if held_out is not None else None
    print_lines([str(out), *columns(_rows(made, found))])


def _text(
    prepared: Path | None,
    text: tuple[Path, Path] | None,
    tokenizer: Path | None,
    pool: WorkerPool,
) -> tuple[TokenPairs, tuple[Path, Path]]:
    """Load the text to learn from, and its tokenizers of source and target."""
    from translate_trt.train.shortlist.learning import find_tokenizers, prepared_pairs, read_pairs

    if prepared is not None:
        from translate_trt.train.data.token_files import open_prepared

        opened = open_prepared(prepared)
        return prepared_pairs(opened), opened.tokenizers
    if text is None or tokenizer is None:
        raise OptionError(
            "give --data, a directory of `translate-trt data prepare`, or both --text and "
            "--tokenizer."
        )
    models = find_tokenizers(tokenizer)
    return read_pairs(*text, models, pool), models


def _rows(made: Shortlist, found: Coverage | None) -> list[tuple[str, str]]:
    """Make the rows of the report: size and coverage."""
    filled = int((made.translations != 0).sum()) / len(made.translations)
    rows = [
        ("pairs", f"{made.pairs:,}"),
        ("frequent", f"{len(made.frequent):,} tokens of {made.vocabulary_size:,}"),
        ("translations", f"{filled:.1f} of a source token on average"),
    ]
    if found is not None:
        rows += [
            ("coverage", f"{found.inside / found.tokens:.2%} of {found.tokens:,} target tokens"),
            ("", f"{found.whole / found.sentences:.1%} of {found.sentences:,} sentences whole"),
            ("list", f"{found.list_tokens / found.sentences:.1f} tokens on average"),
        ]
    return rows

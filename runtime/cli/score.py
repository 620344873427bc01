"""`translate-trt score`: log-probabilities of given translations."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.format_flags import ScoreFormatFlags, score_format_flags
from translate_trt.runtime.cli.input_chunks import Chunk, read_inputs
from translate_trt.runtime.cli.loading import load_translator, loading_flags
from translate_trt.runtime.cli.names import lines_output_options
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.search_flags import (
    alignment_flags,
    attention_flag,
    language_flags,
    length_penalty_flags,
    replace_options,
)
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.halving import halving
from translate_trt.runtime.io.lines import (
    FIRST_LINES,
    STDIN,
    check_input,
    chunks,
    display_name,
    read_parallel,
)
from translate_trt.runtime.record_formats import Record
from translate_trt.runtime.results import TextHypothesis, Translation

if TYPE_CHECKING:
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@bundle_flag
@target_flags
@click.argument("inputs", nargs=-1, metavar="SOURCE TRANSLATION | [INPUT]...")
@lines_output_options
@score_format_flags
@length_penalty_flags
@language_flags
@attention_flag
@alignment_flags
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
@loading_flags
def score(
    bundle: Path,
    target: str | None,
    shortlist: bool,
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    input_format: str,
    field: str | None,
    translation_field: str | None,
    column: str | None,
    translation_column: str | None,
    header: bool,
    output_field: str | None,
    replace_field: bool,
    return_attention: bool | None,
    alignments: bool,
    alignment_threshold: float | None,
    as_json: bool,
    batch_tokens: int | None,
    threads: int | None,
    workers: int | None,
    device: str | None,
    trust_code: bool,
    chunk_lines: int,
    **search: Any,
) -> None:
    """Score the lines of TRANSLATION as translations of the lines of SOURCE.

    A score is the log-probability of the translation divided by the length penalty, as `translate
    --scores` writes it; with --length-penalty 0 it is the log-probability itself. -v adds the
    perplexity per token of all lines.

    With --input-format jsonl or tsv, each line of the INPUT files has a source and its translation,
    as `translate` writes them, and standard input is the default. Lines keep their other fields or
    columns, and translation_score is added.

    A line that cannot be scored (longer than the bundle's limit, or a blank source with a
    translation) has the score nan, in JSON null, and a warning. --json writes the objects of
    `translate --json`, with the log-probability of each token, and adds translation_hypotheses to
    JSON lines. --alignments adds the alignments after a tab, to the objects, or as
    translation_alignments.
    """
    formats = ScoreFormatFlags(
        input_format=input_format,
        field=field,
        translation_field=translation_field,
        column=column,
        translation_column=translation_column,
        header=header,
        output_field=output_field,
        replace_field=replace_field,
        as_json=as_json or bool(return_attention),
        alignments=alignments or alignment_threshold is not None,
        alignment_threshold=alignment_threshold,
    )
    if input_format == "text":
        if len(inputs) != 2:
            raise click.UsageError(
                f"{len(inputs)} inputs; name two files, SOURCE and TRANSLATION, or an "
                "--input-format that has both in a line."
            )
        if inputs == (STDIN, STDIN):
            raise OptionError(
                "SOURCE and TRANSLATION are both standard input; name a file for one."
            )
    inputs = inputs or (STDIN,)
    for path in inputs:
        check_input(path)
    with open_output(out, force, (bundle, *inputs)) as results:
        translator = load_translator(
            bundle, target, shortlist, inputs, threads=threads, workers=workers,
            batch_tokens=batch_tokens, device=device, trust_code=trust_code,
        )  # fmt: skip
        search |= {"return_attention": return_attention}
        options = replace_options(translator.default_options, search)
        count = failed = tokens = 0
        log_prob = 0.0
        found = (
            _read_pairs(inputs, chunk_lines, formats)
            if input_format == "text"
            else read_inputs(inputs, chunk_lines, formats.make_format())
        )
        for chunk in found:
            scored = [
                Translation(() if one is None else (one,))
                for one in _scored(translator, chunk, options, formats.alignments)
            ]
            results.write(chunk.render(scored))
            for one in scored:
                for hypothesis in one.hypotheses:
                    tokens += len(hypothesis.token_log_probs)
                    log_prob += sum(hypothesis.token_log_probs)
            count += len(scored)
            failed += sum(not one.hypotheses for one in scored)
    log.info(
        "%d lines, %d tokens, perplexity %.3f per token",
        count,
        tokens,
        perplexity(log_prob, tokens),
    )
    if failed:
        log.warning("%d of %d lines have no score", failed, count)


def perplexity(log_prob: float, tokens: int) -> float:
    """Return the perplexity per token; infinity if it is too large for a float."""
    try:
        return math.exp(-log_prob / tokens) if tokens else math.nan
    except OverflowError:
        return math.inf


def _read_pairs(inputs: Sequence[str], size: int, formats: ScoreFormatFlags) -> Iterator[Chunk]:
    """Read the lines of two files in chunks."""
    source, translation = inputs
    number = 1
    for pairs in chunks(read_parallel(Path(source), Path(translation)), size, FIRST_LINES):
        records = [Record([line], partial(_line, formats, line), [given]) for line, given in pairs]
        yield Chunk(display_name(source), number, records)
        number += len(records)


def _line(formats: ScoreFormatFlags, source: str, scored: Sequence[Translation]) -> str:
    return formats.line(source, scored[0])


def _scored(
    translator: Translator, chunk: Chunk, options: SearchOptions, alignments: bool
) -> list[TextHypothesis | None]:
    """Score the pairs of a chunk; None for those that the model cannot take, with warnings."""

    def score(pairs: Sequence[tuple[str, str, str]]) -> list[TextHypothesis]:
        lines, translations, names = map(list, zip(*pairs, strict=True))
        return translator.score(lines, translations, options, alignments=alignments, names=names)

    def refused(pair: tuple[str, str, str], error: Exception) -> None:
        log.warning("%s", error)

    pairs = list(zip(chunk.texts, chunk.given, chunk.names, strict=True))
    return halving(pairs, score, refused, (InputError,)) if pairs else []

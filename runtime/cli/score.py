"""`translate-trt score`: log-probabilities of given translations."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.format_flags import ScoreFormatFlags, score_format_flags, take_format
from translate_trt.runtime.cli.input_chunks import Chunk, read_inputs
from translate_trt.runtime.cli.loading import Loading, load_translator, loading_flags
from translate_trt.runtime.cli.names import checked_inputs, lines_output_options
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
    chunks,
    display_name,
    read_parallel,
)
from translate_trt.runtime.record_formats import TextFormat
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
    inputs: tuple[str, ...], out: Path | None, force: bool, chunk_lines: int, **flags: Any
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
    loading, formats = take(flags, Loading), take_format(flags, ScoreFormatFlags)
    if formats.input_format == "text":
        _check_pair(inputs)
    inputs = checked_inputs(inputs)
    counts = _Counts()
    with open_output(out, force, (loading.bundle, *inputs)) as results:
        translator = load_translator(loading, inputs)
        options = replace_options(translator.default_options, flags)
        for chunk in _read(inputs, chunk_lines, formats):
            scored = _scored(translator, chunk, options, formats.alignments)
            results.write(chunk.render(scored))
            counts.add(scored)
    counts.report()


def _check_pair(inputs: Sequence[str]) -> None:
    """Refuse inputs that are not one file of lines and one of their translations."""
    if len(inputs) != 2:
        raise click.UsageError(
            f"{len(inputs)} inputs; name two files, SOURCE and TRANSLATION, or an --input-format "
            "that has both in a line."
        )
    if inputs[0] == inputs[1] == STDIN:
        raise OptionError("SOURCE and TRANSLATION are both standard input; name a file for one.")


@dataclass
class _Counts:
    """Counts of a run that are reported at its end."""

    lines: int = 0
    failed: int = 0
    tokens: int = 0
    log_prob: float = 0.0

    def add(self, scored: Sequence[Translation]) -> None:
        """Count lines; those without a score have failed."""
        self.lines += len(scored)
        self.failed += sum(not one.hypotheses for one in scored)
        for hypothesis in itertools.chain.from_iterable(one.hypotheses for one in scored):
            self.tokens += len(hypothesis.token_log_probs)
            self.log_prob += sum(hypothesis.token_log_probs)

    def report(self) -> None:
        """Log the perplexity, and the lines that have no score."""
        log.info(
            "%d lines, %d tokens, perplexity %.3f per token",
            self.lines,
            self.tokens,
            perplexity(self.log_prob, self.tokens),
        )
        if self.failed:
            log.warning("%d of %d lines have no score", self.failed, self.lines)


def perplexity(log_prob: float, tokens: int) -> float:
    """Return the perplexity per token; infinity if it is too large for a float."""
    try:
        return math.exp(-log_prob / tokens) if tokens else math.nan
    except OverflowError:
        return math.inf


def _read(inputs: Sequence[str], size: int, formats: ScoreFormatFlags) -> Iterator[Chunk]:
    """Read lines that have their translations, or those of two files, in chunks."""
    if formats.input_format != "text":
        yield from read_inputs(inputs, size, formats.make_format())
        return
    source, translation = inputs
    number, form = 1, TextFormat(formats.line)
    for pairs in chunks(read_parallel(Path(source), Path(translation)), size, FIRST_LINES):
        records = [next(form.read([line], source))._replace(given=[own]) for line, own in pairs]
        yield Chunk(display_name(source), number, records)
        number += len(pairs)


def _scored(
    translator: Translator, chunk: Chunk, options: SearchOptions, alignments: bool
) -> list[Translation]:
    """Score the pairs of a chunk; those that the model cannot take have no hypothesis."""

    def score(pairs: Sequence[tuple[str, str, str]]) -> list[TextHypothesis]:
        lines, translations, names = map(list, zip(*pairs, strict=True))
        return translator.score(lines, translations, options, alignments=alignments, names=names)

    def refused(pair: tuple[str, str, str], error: Exception) -> None:
        log.warning("%s", error)

    pairs = list(zip(chunk.texts, chunk.given, chunk.names, strict=True))
    found = halving(pairs, score, refused, (InputError,)) if pairs else []
    return [Translation(() if one is None else (one,)) for one in found]

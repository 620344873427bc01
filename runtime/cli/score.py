"""`translate-trt score`: log-probabilities of given translations."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.bundle_flags import bundle_flag, target_flags
from translate_trt.runtime.cli.loading import load_translator, loading_flags
from translate_trt.runtime.cli.names import PATH
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.search_flags import (
    alignment_flags,
    attention_flag,
    language_flags,
    length_penalty_flags,
    replace_options,
)
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import STDIN, check_input, read_parallel
from translate_trt.runtime.json_lines import UNTRANSLATED, json_line
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import check_threshold

if TYPE_CHECKING:
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")


@click.command()
@bundle_flag
@target_flags
@click.argument("source", type=PATH)
@click.argument("translation", type=PATH)
@click.option("--output", type=PATH, help="File to write. [standard output]")
@click.option("--force", is_flag=True, help="Replace an existing output file.")
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
    source: Path,
    translation: Path,
    output: Path | None,
    force: bool,
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

    A line that cannot be scored (longer than the bundle's limit, or a blank source with a
    translation) has the score nan and a warning. --json writes the objects of `translate --json`,
    with the log-probability of each token. --alignments adds the alignments after a tab, or to the
    objects.
    """
    if alignment_threshold is not None:
        check_threshold(alignment_threshold)
        alignments = True
    paths = (source, translation)
    if [str(path) for path in paths].count(STDIN) > 1:
        raise OptionError("SOURCE and TRANSLATION are both standard input; name a file for one.")
    for path in paths:
        check_input(str(path))
    with open_output(output, force, (bundle, *paths)) as results:
        translator = load_translator(
            bundle, target, shortlist, [str(path) for path in paths], threads=threads,
            workers=workers, batch_tokens=batch_tokens, device=device, trust_code=trust_code,
        )  # fmt: skip
        search |= {"return_attention": return_attention}
        options = replace_options(translator.default_options, search)
        pairs = read_parallel(source, translation)
        first, failed, tokens, log_prob = 1, 0, 0, 0.0
        as_json = as_json or bool(return_attention)
        while chunk := list(itertools.islice(pairs, chunk_lines)):
            written = []
            for (line, _), found in zip(
                chunk, _scored(translator, chunk, options, first, alignments), strict=True
            ):
                if found is None:
                    failed += 1
                    written.append(UNTRANSLATED if as_json else "nan" + "\t" * alignments)
                    continue
                tokens += len(found.token_log_probs)
                log_prob += sum(found.token_log_probs)
                if as_json:
                    written.append(json_line(line, Translation((found,)), alignment_threshold))
                    continue
                cells = [f"{found.score:.6f}"]
                if found.alignment is not None:
                    cells.append(found.alignment.pharaoh(alignment_threshold))
                written.append("\t".join(cells))
            results.write(written)
            first += len(chunk)
    perplexity = math.exp(-log_prob / tokens) if tokens else math.nan
    log.info("%d lines, %d tokens, perplexity %.3f per token", first - 1, tokens, perplexity)
    if failed:
        log.warning("%d of %d lines have no score", failed, first - 1)


def _scored(
    translator: Translator,
    pairs: list[tuple[str, str]],
    options: SearchOptions,
    first: int,
    alignments: bool,
) -> Iterator[TextHypothesis | None]:
    """Score pairs; None for those that the model cannot take, each with a warning.

    Args:
        translator: The loaded bundle.
        pairs: At least one line and its translation.
        options: Search options.
        first: Number of the first line, for the warnings.
        alignments: Whether to align the words of each pair.
    """
    lines, translations = map(list, zip(*pairs, strict=True))
    try:
        yield from translator.score(
            lines, translations, options, first_line=first, alignments=alignments
        )
    except InputError as error:
        # All lines are checked before any is scored, so that halving finds the bad ones soon.
        if len(pairs) == 1:
            log.warning("%s", error)
            yield None
            return
        half = len(pairs) // 2
        yield from _scored(translator, pairs[:half], options, first, alignments)
        yield from _scored(translator, pairs[half:], options, first + half, alignments)

#!/usr/bin/env python3
"""Compare an imported Marian model with marian-decoder, line by line (greedy search).

    python scripts/compare_marian.py MODEL VOCABULARY TEXT [--shortlist lex.bin] [--lines 200]

MODEL is model.npz or a .bin file of marian-conv. Prints a row of a Markdown table for each target:
identical lines, and the margins of the others. A second table shows each differing line: the two
tokens where the translations part and their log-probabilities, and the scores of both translations
(log-probabilities divided by length, as greedy search reports them). All are computed from the
imported weights in float32, over the whole vocabulary.

The margin of a line is the difference of the log-probabilities of the two tokens, on which greedy
search decides. A difference with a margin of at most --limit is a near tie. The exit code is 1 if
any difference is not. Needs pymarian.

Two options show how far Marian differs from itself, in further rows of the first table. With
--original MODEL, such as the model.npz that MODEL was made of: lines that marian-decoder translates
in the same way with that model. With --batch N: in the same way in batches of N lines, which give
the activations of an int8 model other scales.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.importers.marian.lexical_table import ShortlistFile
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.runtime.interface.search_options import MAX_EXTRA_LENGTH
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END, START
from translate_trt.train.model import Transformer

_OPTIONS = (
    "--beam-size", "1", "--normalize", "1", "--cpu-threads", "1", "--quiet", "--no-spm-decode",
    "-w", "128",
)  # fmt: skip
# As marian-decoder with these options.
SEARCH = SearchOptions(beam_size=1, length_penalty=1.0, length_penalty_form="length")
# Marian's limit of a translation, as a multiple of the tokens of the source and its end.
_LENGTH_FACTOR = 3
# Largest margin of a near tie: the more probable token has at most 1.65 times the probability of
# the other.
_LIMIT = 0.5


@dataclass(frozen=True)
class Difference:
    """Line with two translations, and where they part.

    Attributes:
        line: Number of the line, from 1.
        place: Number of the first differing token, from 1.
        tokens: Our token and Marian's at that place.
        log_probabilities: Those of the two tokens, after the same prefix.
        scores: Scores of our translation and Marian's.
    """

    line: int
    place: int
    tokens: tuple[int, int]
    log_probabilities: tuple[float, float]
    scores: tuple[float, float]

    @property
    def margin(self) -> float:
        """Absolute difference of the log-probabilities of the two tokens."""
        return abs(self.log_probabilities[0] - self.log_probabilities[1])


def marian_translations(
    model: Path, arguments: argparse.Namespace, lines: list[str], batch: int = 1
) -> list[list[str]]:
    """Translate lines with marian-decoder into pieces, `batch` lines at a time."""
    shortlist = arguments.shortlist
    source = arguments.vocabulary
    vocabularies = source, arguments.target_vocabulary or source
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text"
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        found = subprocess.run(
            [sys.executable, "-m", "pymarian", "decode", "-m", model, "-v",
             *vocabularies, "-i", text, *_OPTIONS,
             "--mini-batch", str(batch), "--max-length-factor", str(_LENGTH_FACTOR),
             *(("--shortlist", shortlist, "false") if shortlist else ())],
            stdout=subprocess.PIPE, check=True, encoding="utf-8",
        )  # fmt: skip
    return [line.split() for line in found.stdout.split("\n")[: len(lines)]]


@torch.inference_mode()
def compare(
    model: Transformer, line: int, source: list[int], ours: list[int], theirs: list[int]
) -> Difference | None:
    """Score two translations, given without end tokens; return None if they are equal."""
    if ours == theirs:
        return None
    first, second = [*ours, END], [*theirs, END]
    place = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    of_ours, of_theirs = (
        model.project(
            model(torch.tensor([[*source, END]]), None, torch.tensor([[START, *found]]))
        ).log_softmax(-1)[0]
        for found in (ours, theirs)
    )
    tokens = first[place], second[place]
    return Difference(
        line,
        place + 1,
        tokens,
        (float(of_ours[place, tokens[0]]), float(of_ours[place, tokens[1]])),
        (_score(of_ours, first), _score(of_theirs, second)),
    )


def _score(log_probabilities: Tensor, tokens: list[int]) -> float:
    """Return the mean log-probability of the tokens, of rows [T, V]."""
    return float(log_probabilities[torch.arange(len(tokens)), tokens].mean())


def summary(model: str, target: str, lines: int, found: Sequence[Difference], limit: float) -> str:
    """Return the row of a target."""
    margins = [one.margin for one in found]
    shown = f"{max(margins):.2f}, {sum(margins) / len(margins):.2f}" if margins else "-"
    ties = sum(margin <= limit for margin in margins)
    return (
        f"| {model} | {target} | {lines} | {lines - len(found)} | {ties} | {len(found) - ties} | "
        f"{shown} |"
    )


def itself(
    model: str, name: str, found: Sequence[Sequence[str]], others: Sequence[Sequence[str]]
) -> str:
    """Return the row of two translations by Marian."""
    same = sum(one == other for one, other in zip(found, others, strict=True))
    return f"| {model} | {name} | {len(found)} | {same} | | | |"


def details(target: str, one: Difference, pieces: Sequence[str], limit: float) -> str:
    """Return the row of a differing line."""
    first, second = (f"`{pieces[token]}`".replace("|", "\\|") for token in one.tokens)
    scores = one.scores
    return (
        f"| {target} | {one.line} | {one.place} | {first} {one.log_probabilities[0]:.3f} "
        f"| {second} {one.log_probabilities[1]:.3f} | {one.margin:.3f} "
        f"| {scores[0]:.4f} | {scores[1]:.4f} | {scores[0] - scores[1]:+.4f} "
        f"| {'near tie' if one.margin <= limit else 'NO near tie'} |"
    )


def main() -> int:
    """Compare every target; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--target-vocabulary", type=Path, help="default: VOCABULARY")
    parser.add_argument("--shortlist", type=Path, help="lex.bin of marian-conv")
    parser.add_argument("--original", type=Path, help="model to compare marian-decoder with")
    parser.add_argument("--batch", type=int, help="lines of a batch to compare marian-decoder with")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--limit", type=float, default=_LIMIT, help="largest margin of a near tie")
    arguments = parser.parse_args()
    if not (math.isfinite(arguments.limit) and arguments.limit >= 0):
        parser.error("--limit must be a finite number, and not negative")
    lines = arguments.text.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    lines = lines[: arguments.lines]
    expected = marian_translations(arguments.model, arguments, lines)
    file = None if arguments.shortlist is None else ShortlistFile(arguments.shortlist)
    imported = import_marian_model(
        arguments.model, arguments.vocabulary, arguments.target_vocabulary, shortlist=file
    )
    suffix = "" if file is None else "-shortlist"
    rows = []
    print(
        "| model | target | lines | the same | near ties | no near ties | largest, mean margin |\n"
        "|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as name:
        checkpoint, bundle = Path(name) / "checkpoint", Path(name) / "bundle"
        imported.save(checkpoint, (None, None))
        tokenizer = Tokenizer(*open_checkpoint(checkpoint).tokenizers)
        sources = [tokenizer.encode_source(line) for line in lines]
        # One of the two engines cuts off longer translations.
        limits = [
            min(_LENGTH_FACTOR * (n + 1), n + MAX_EXTRA_LENGTH - 1) for n in map(len, sources)
        ]
        targets = tuple(f"onnx-{precision}{suffix}" for precision in ("fp32", "int8"))
        compile_bundle(open_checkpoint(checkpoint), bundle, BuildOptions(targets))
        pieces = list(tokenizer.target_pieces(range(tokenizer.vocabulary_size)))
        ids = {piece: index for index, piece in enumerate(pieces)}
        if (arguments.target_vocabulary or arguments.vocabulary).suffix == ".spm":
            theirs = [[ids[piece] for piece in line] for line in expected]
        else:  # words
            theirs = [tokenizer.encode_target(" ".join(line)) for line in expected]
        theirs = [one[:limit] for one, limit in zip(theirs, limits, strict=True)]
        failed = False
        for target in targets:
            translator = Translator(bundle, target, threads=1)
            results = translator.translate_ids(sources, SEARCH)
            ours = [
                [token for token in best.tokens if token != END][:limit]
                for [best], limit in zip(results, limits, strict=True)
            ]
            numbered = enumerate(zip(sources, ours, theirs, strict=True), 1)
            compared = (compare(imported.model, number, *three) for number, three in numbered)
            found = [one for one in compared if one is not None]
            failed = failed or any(one.margin > arguments.limit for one in found)
            rows += [details(target, one, pieces, arguments.limit) for one in found]
            name = arguments.model.name
            print(summary(name, target, len(lines), found, arguments.limit), flush=True)
    if arguments.original is not None:
        others = marian_translations(arguments.original, arguments, lines)
        print(itself(arguments.model.name, f"Marian's {arguments.original.name}", expected, others))
    if arguments.batch is not None:
        others = marian_translations(arguments.model, arguments, lines, arguments.batch)
        name = f"Marian in batches of {arguments.batch}"
        print(itself(arguments.model.name, name, expected, others))
    if rows:
        print(
            "\n| target | line | token | ours, log-probability | Marian's, log-probability "
            "| margin | our score | Marian's score | difference of scores | |\n"
            "|---|---|---|---|---|---|---|---|---|---|"
        )
        print("\n".join(rows))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

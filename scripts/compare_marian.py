#!/usr/bin/env python3
"""Compare an imported Marian model with marian-decoder, line by line (greedy search).

    python scripts/compare_marian.py MODEL VOCABULARY TEXT [--shortlist lex.bin] [--lines 200]

MODEL is model.npz or a .bin file of marian-conv; source and target share VOCABULARY (.spm). Prints
a row of a Markdown table for each target: identical lines, and for the others the difference of the
log-probabilities of the two tokens where the translations part, by the imported weights in float32.
Needs pymarian.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.marian.lexical_table import ShortlistFile
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END, START

_OPTIONS = (
    "--beam-size", "1", "--normalize", "1", "--cpu-threads", "1", "--mini-batch", "1", "--quiet",
    "--no-spm-decode", "-w", "128",
)  # fmt: skip
_SEARCH = SearchOptions(beam_size=1, length_penalty=1.0, length_penalty_form="length")


def marian_translations(arguments: argparse.Namespace, lines: list[str]) -> list[list[str]]:
    """Translate lines with marian-decoder, one at a time, into pieces."""
    shortlist = arguments.shortlist
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text"
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        found = subprocess.run(
            [sys.executable, "-m", "pymarian", "decode", "-m", arguments.model, "-v",
             arguments.vocabulary, arguments.vocabulary, "-i", text, *_OPTIONS,
             *(("--shortlist", shortlist, "false") if shortlist else ())],
            stdout=subprocess.PIPE, check=True, encoding="utf-8",
        )  # fmt: skip
    return [line.split() for line in found.stdout.split("\n")[: len(lines)]]


@torch.inference_mode()
def margin(imported: Imported, source: list[int], ours: list[int], theirs: list[int]) -> float:
    """Return the log-probability of our token minus theirs where two translations part."""
    pairs = zip([*ours, END], [*theirs, END], strict=False)
    place = next(index for index, (a, b) in enumerate(pairs) if a != b)
    prefix = torch.tensor([[START, *ours[:place]]])
    logits = imported.model.project(imported.model(torch.tensor([[*source, END]]), None, prefix))
    scores = logits[0, -1].log_softmax(-1)
    return float(scores[[*ours, END][place]] - scores[[*theirs, END][place]])


def main() -> int:
    """Compare every target; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--shortlist", type=Path, help="lex.bin of marian-conv")
    parser.add_argument("--lines", type=int, default=200)
    arguments = parser.parse_args()
    lines = arguments.text.read_text(encoding="utf-8").split("\n")[: arguments.lines]
    expected = marian_translations(arguments, lines)
    file = None if arguments.shortlist is None else ShortlistFile(arguments.shortlist)
    imported = import_marian_model(arguments.model, arguments.vocabulary, shortlist=file)
    suffix = "" if file is None else "-shortlist"
    print("| model | target | lines | the same | largest, mean difference of the others |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        checkpoint, bundle = Path(name) / "checkpoint", Path(name) / "bundle"
        imported.save(checkpoint, (None, None))
        targets = tuple(f"onnx-{precision}{suffix}" for precision in ("fp32", "int8"))
        compile_bundle(open_checkpoint(checkpoint), bundle, BuildOptions(targets))
        tokenizer = Tokenizer(*open_checkpoint(checkpoint).tokenizers)
        ids = {
            piece: index
            for index, piece in enumerate(tokenizer.target_pieces(range(tokenizer.vocabulary_size)))
        }
        theirs = [[ids[piece] for piece in line] for line in expected]
        sources = [tokenizer.encode_source(line) for line in lines]
        for target in targets:
            translator = Translator(bundle, target, threads=1)
            found = translator.translate_ids(sources, _SEARCH)
            ours = [[t for t in one.tokens if t != END] for [one] in found]
            margins = [
                abs(margin(imported, source, a, b))
                for source, a, b in zip(sources, ours, theirs, strict=True)
                if a != b
            ]
            shown = f"{max(margins):.2f}, {sum(margins) / len(margins):.2f}" if margins else "-"
            print(
                f"| {arguments.model.name} | {target} | {len(lines)} | {len(lines) - len(margins)} "
                f"| {shown} |", flush=True,
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

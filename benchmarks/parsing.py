"""Score the parsers that scripts/parsing_craft.sh has trained.

    python benchmarks/parsing.py measure PLACE --beams 4 1 21 --out FILE
    python benchmarks/parsing.py table DIR [--note TEXT] [--out FILE]

`measure` exports the better checkpoint of PLACE/run to PLACE/bundle, parses the dev and test
sentences of PLACE/data and scores the trees. PLACE/scores.json has the scores so far, from which an
interrupted run continues. `table` prints the scores of the files in DIR, one per number of training
trees, and writes one report.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import Report, benchmark, main, option
from render import text_of

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.distillation.student_training import best_checkpoint
from translate_trt.runtime import Parser, SearchOptions, Translator
from translate_trt.runtime.io.atomic_files import write_json
from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.bracketings import clean, read_bracketing, words_of
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.evaluation.scoring import make_metric
from translate_trt.train.trainer.metrics import read_metrics

TARGETS = ("onnx-fp32", "onnx-int8")
SPLITS = ("valid", "test")


def is_tree_of(tree: str, words: Sequence[str]) -> bool:
    """Whether a line is a well-formed tree with exactly these words."""
    try:
        events = list(read_bracketing(tree))
    except ValueError:
        return False
    return words_of(events) == list(words) and clean(events) == events


def score(
    parser: Parser, options: SearchOptions, lines: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Parse the words of lines, and compare the trees with the gold trees beside the words."""
    sentences = [words.split() for words, _ in lines]
    parses = parser.parse(sentences, options)
    trees = [one.tree for one in parses]
    found = make_metric("evalb", [tree for _, tree in lines])(trees)
    wrong = (not is_tree_of(a, b) for a, b in zip(trees, sentences, strict=True))
    return {
        "sentences": len(trees),
        "F1": found.score,
        **found.details,
        "repaired": sum(one.repaired for one in parses),
        "truncated": sum(one.truncated for one in parses),
        "malformed": sum(wrong),
        "signature": found.signature,
    }


@benchmark(
    "parsing-craft-run",
    option("place", type=Path, help="directory with data and run"),
    option("--beams", type=int, nargs="+", default=[4], help="beam sizes"),
    timed=False,
)
def measure(given: Namespace) -> Report:
    """Export, parse and score one parser."""
    place: Path = given.place
    checkpoint = open_checkpoint(best_checkpoint(place / "run"))
    prepared = open_prepared(place / "data")
    bundle, kept = place / "bundle", place / "scores.json"
    if not bundle.exists():
        compile_bundle(checkpoint, bundle, BuildOptions(targets=TARGETS))
    files = {split: [prepared.path / f"{split}.{kind}.txt" for kind in ("source", "trees")]
             for split in SPLITS}  # fmt: skip
    texts = {split: list(read_parallel(*pair)) for split, pair in files.items()}
    scores: list[dict[str, Any]] = []
    if kept.exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
        scores = found["scores"] if found["weights"] == checkpoint.weights_sha256 else []
    wanted = []
    for target in TARGETS:
        translator = Translator(bundle, target, threads=1, workers=given.threads)
        parser = Parser(translator)
        searches = [(parser, beams) for beams in given.beams]
        if parser.by_attention and target == TARGETS[0]:
            searches.insert(0, (Parser(translator, by_attention=False), given.beams[0]))
        for (own, beams), split in itertools.product(searches, SPLITS):
            key = {"target": target, "beam_size": beams, "by_attention": own.by_attention,
                   "split": split}  # fmt: skip
            wanted.append(key)
            if not any(key.items() <= one.items() for one in scores):
                options = dataclasses.replace(translator.default_options, beam_size=beams)
                scores.append(key | score(own, options, texts[split]))
                write_json(kept, {"weights": checkpoint.weights_sha256, "scores": scores})
    parameters = checkpoint.load_model().parameters()
    results = {
        "size": place.name,
        "trees": prepared.splits["train"]["pairs"],
        "checkpoint": checkpoint.path.name,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "model": dataclasses.asdict(checkpoint.model),
        "train": {k: v for k, v in checkpoint.train.items() if k != "selected"},
        "validations": [
            {"step": entry["step"], **entry["validation"]}
            for entry in read_metrics(place / "run")
            if "validation" in entry
        ],
        "scores": [next(s for s in scores if key.items() <= s.items()) for key in wanted],
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return Report(results, {"device": device})


def merge(paths: Iterable[Path], note: str) -> dict[str, Any]:
    """Merge reports of parsers into one, by the number of training trees."""
    reports: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
    if not reports:
        raise SystemExit("there is no report of a parser; scripts/parsing_craft.sh writes them.")
    reports.sort(key=lambda report: report["results"]["trees"])
    return reports[-1] | {
        "benchmark": "parsing-craft",
        "date": max(report["date"] for report in reports),
        "settings": {"note": note},
        "results": {"parsers": [report["results"] for report in reports]},
    }


@benchmark("parsing-craft", option("reports", type=Path, help="directory of reports"), timed=False)
def table(given: Namespace) -> dict[str, Any]:
    """Merge the reports of parsers, and print their scores."""
    report = merge(given.reports.glob("*.json"), given.note)
    print(text_of("parsing", [report]))
    return report


if __name__ == "__main__":
    main(__doc__)

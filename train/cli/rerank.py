"""`translate-trt rerank`: choose among several translations of each line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import inputs_argument, lines_output_options
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.verbosity import show_progress
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import chunks, display_name, open_input, read_lines
from translate_trt.runtime.json_lines import read_json_objects
from translate_trt.runtime.record_formats import encodable
from translate_trt.train.evaluation.comet_model import DEFAULT_MODEL
from translate_trt.train.evaluation.quality import Calibration, cross_validated, mean_log_prob
from translate_trt.train.evaluation.reranking import (
    METRICS,
    Candidates,
    make_utility,
    probabilities_of,
)
from translate_trt.train.evaluation.sentence_scores import pairwise_chrf

log = logging.getLogger("translate_trt")

_COMET_LINES = 64  # lines whose candidates are scored together

#: The model of the metric comet.
comet_model_flag = click.option(
    "--comet-model",
    default=DEFAULT_MODEL,
    show_default=True,
    help="COMET model, by its name on the Hugging Face Hub or as a .ckpt file. Its checkpoint is "
    "read with pickle: use only those that you trust.",
)


@click.command(cls=Command)
@inputs_argument
@lines_output_options
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    default="chrf",
    show_default=True,
    help="Similarity of translations: sentence-level chrF, BLEU, or COMET (needs unbabel-comet).",
)
@comet_model_flag
@click.option(
    "--weights",
    type=click.Choice(["scores", "uniform"]),
    help="Probabilities of hypotheses: by their scores, as for the n-best of a beam search, or "
    "uniform, as for samples. Default: scores; uniform for several INPUT files.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON object per line, with all hypotheses."
)
@click.option(
    "--calibrate",
    metavar="REFERENCE",
    help="Reference translations of the lines. Fits quality estimates to them and writes the file "
    "for --quality, instead of choosing translations.",
)
@click.option(
    "--quality",
    metavar="FILE",
    help="File that --calibrate wrote for the same model. With --json, each hypothesis then has "
    "quality, its expected sentence chrF, and quality_spread, the standard deviation of the error.",
)
def rerank(
    inputs: tuple[str, ...],
    out: Path | None,
    force: bool,
    metric: str,
    comet_model: str,
    weights: str | None,
    as_json: bool,
    calibrate: str | None,
    quality: str | None,
) -> None:
    """Choose the best of several translations of each line, by minimum Bayes risk.

    The INPUT files, or standard input, are JSON lines as `translate --json`, `translate --n-best`
    and `corpus --json` write them. With several files, such as samples of several seeds, line N of
    each has hypotheses of the same source, which are compared together.

    The utility of a hypothesis is its mean similarity to those of the line; equal hypotheses count
    as often as they occur. A COMET model that needs no references, such as
    Unbabel/wmt22-cometkiwi-da, estimates the quality of each hypothesis from the source instead.

    The output is the hypothesis with the highest utility per line, or with --json the objects of
    the first INPUT with the hypotheses of all, best first, each with its utility (from 0 to 100).

    Estimates of quality are isotonic regressions on the mean log-probability of the tokens. The
    file of --calibrate has their correlation with chrF and calibration error on held-out lines.

    \b
    translate-trt rerank dev.jsonl --calibrate dev.de --output quality.json
    translate-trt rerank nbest.jsonl --quality quality.json --json --output estimated.jsonl
    """  # noqa: D301
    if calibrate is not None:
        if quality is not None or as_json:
            raise OptionError("--calibrate writes the file of --quality; leave --quality and "
                              "--json out.")  # fmt: skip
        _calibrate(inputs, calibrate, out, force)
        return
    if quality is not None and not as_json:
        raise OptionError("--quality adds fields to the objects of --json; add --json.")
    estimates = None if quality is None else Calibration.read(quality)
    utility = make_utility(metric, comet_model)
    by_scores = weights == "scores" or (weights is None and len(inputs) < 2)
    changed = count = 0
    with open_output(out, force, (*inputs, quality)) as results:
        for lines in chunks(_read(inputs, by_scores), _COMET_LINES if metric == "comet" else 1):
            found = utility([line.candidates for line in lines])
            ranked = [line.ranked(own, estimates) for line, own in zip(lines, found, strict=True)]
            results.write(
                encodable(json.dumps(value, ensure_ascii=False) if as_json else _best(value))
                for value in ranked
            )
            count += len(lines)
            changed += sum(
                _best(value) != _best(line.value) for line, value in zip(lines, ranked, strict=True)
            )
    log.info("%d lines, %d of them with another translation than before", count, changed)


class _Line(NamedTuple):
    """An object of the first input, with the hypotheses of all and their probabilities."""

    value: dict[str, Any]
    probabilities: Sequence[float]

    @property
    def candidates(self) -> Candidates:
        texts = [hypothesis["text"] for hypothesis in self.value["hypotheses"]]
        return Candidates(self.value["source"] or "", texts, self.probabilities)

    def ranked(self, utilities: Sequence[float], estimates: Calibration | None) -> dict[str, Any]:
        """Return the object with utilities, the highest first; equal ones keep their order."""
        hypotheses = [
            {**hypothesis, "utility": round(utility, 4), **_quality(hypothesis, estimates)}
            for hypothesis, utility in zip(self.value["hypotheses"], utilities, strict=True)
        ]
        order = sorted(range(len(hypotheses)), key=lambda place: -utilities[place])
        return {**self.value, "hypotheses": [hypotheses[place] for place in order]}


def _quality(hypothesis: dict[str, Any], estimates: Calibration | None) -> dict[str, Any]:
    """Return the fields of a hypothesis's quality, null without tokens; none without estimates."""
    if estimates is None:
        return {}
    mean = mean_log_prob(hypothesis["token_log_probs"])
    found = (None, None) if mean is None else (round(float(x), 2) for x in estimates.estimate(mean))
    return dict(zip(("quality", "quality_spread"), found, strict=True))


def _calibrate(inputs: Sequence[str], reference: str, out: Path | None, force: bool) -> None:
    """Fit estimates to all hypotheses that have tokens, and write and log their measurements.

    Raises:
        InputError: An input is damaged, has too few lines, or not as many as the reference.
    """
    show_progress()  # the measurements are a result
    with open_input(reference) as stream:
        references = list(read_lines(stream, display_name(reference)))
    rows, count = [], 0
    with open_output(out, force, (*inputs, reference)) as results:
        for count, line in enumerate(_read(inputs, False), start=1):
            texts = [*line.candidates.texts, *references[count - 1 : count]]
            scores = pairwise_chrf(texts)[:, -1]
            rows += [
                (mean, score, count)
                for hypothesis, score in zip(line.value["hypotheses"], scores, strict=False)
                if (mean := mean_log_prob(hypothesis["token_log_probs"])) is not None
            ]
        if count != len(references):
            raise InputError(
                f"{display_name(inputs[0])} has {count} lines and {display_name(reference)} has "
                f"{len(references)}; their lines must correspond to each other."
            )
        means, chrf, lines = np.array(rows, np.float64).reshape(-1, 3).T
        held_out = cross_validated(means, chrf, lines.astype(np.int64))
        fitted = Calibration.fit(means, chrf).to_json()
        results.write(json.dumps({"held_out": held_out, **fitted}, indent=1).splitlines())
    log.info("on held-out lines: %s", ", ".join(f"{name} {x}" for name, x in held_out.items()))


def _best(value: dict[str, Any]) -> str:
    """Return the first hypothesis as one line; empty for a line that was not translated."""
    hypotheses = value["hypotheses"]
    return str(hypotheses[0]["text"]).replace("\n", " ") if hypotheses else ""


def _read(inputs: Sequence[str], by_scores: bool) -> Iterator[_Line]:
    """Read the inputs side by side.

    Args:
        inputs: Paths.
        by_scores: Hypotheses are as probable as their scores say, not equally probable.

    Raises:
        InputError: An input is damaged, or differs from the first in its sources or their number.
    """
    files = map(read_json_objects, inputs)
    for number, lines in enumerate(zip_longest(*files, fillvalue=(None, [])), start=1):
        values = [value for value, _ in lines]
        for path, value in zip(inputs, values, strict=True):
            first = values[0]
            if first is None or value is None:
                shorter = path if value is None else inputs[0]
                raise InputError(
                    f"{display_name(shorter)} ends before line {number}, which another input has; "
                    "all inputs must have the hypotheses of the same lines."
                )
            if value["source"] != first["source"]:
                raise InputError(
                    f"{display_name(path)}, line {number} has another source than that line of "
                    f"{display_name(inputs[0])}; all inputs must have the hypotheses of the same "
                    "lines."
                )
        pooled = [hypothesis for value in values for hypothesis in value["hypotheses"]]
        scores = [one.score for _, found in lines for one in found]
        probabilities = probabilities_of(scores if by_scores else [0.0] * len(scores))
        yield _Line({**values[0], "hypotheses": pooled}, probabilities)

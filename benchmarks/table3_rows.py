"""Rows of a report of table3.py: figures of the seeds, beside the paper's."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from translate_trt.train.config import TABLE3, TABLE3_MODELS, Preset, Table3Row, preset

PLAIN = "plain"  # row of the preset itself


@dataclass(frozen=True)
class TableRow:
    """Row of Table 3 as trained here.

    Attributes:
        name: Row's name, or `plain`.
        paper: The paper's row; base for `plain`.
        changes: Settings that differ from the preset.
        perplexity: Perplexity per token, by seed.
        bleu: sacrebleu's BLEU, by seed.
        tokenized: Tokenized BLEU, by seed; empty in reports of older versions.
        difference: Mean tokenized BLEU minus that of `plain`; None for `plain`, and where either is
            missing.
        parameters: Number of parameters.
    """

    name: str
    paper: Table3Row
    changes: str
    perplexity: Sequence[float]
    bleu: Sequence[float]
    tokenized: Sequence[float]
    difference: float | None
    parameters: int

    @property
    def papers_difference(self) -> float:
        """Difference of the paper's BLEU from that of base."""
        return round(self.paper.bleu - TABLE3_MODELS["base"].bleu, 1)

    @property
    def papers_relative_perplexity(self) -> float:
        """The paper's perplexity relative to that of base."""
        return self.paper.perplexity / TABLE3_MODELS["base"].perplexity


def table3_rows(report: dict[str, Any]) -> list[TableRow]:
    """Return the rows of a report, whose first is `plain`."""
    name, results = report["settings"]["preset"], report["results"]
    figures = {row: _by_seed(found["runs"]) for row, found in results.items()}
    plain = figures[PLAIN]
    rows = []
    for row, found in figures.items():
        has_both = row != PLAIN and found["tokenized_bleu"] and plain["tokenized_bleu"]
        rows.append(
            TableRow(
                row,
                TABLE3_MODELS["base"] if row == PLAIN else TABLE3[row],
                "" if row == PLAIN else _changes(preset(name), preset(f"{name}-{row}")),
                found["perplexity"],
                found["bleu"],
                found["tokenized_bleu"],
                statistics.mean(found["tokenized_bleu"]) - statistics.mean(plain["tokenized_bleu"])
                if has_both
                else None,
                results[row]["runs"][0]["parameters"],
            )
        )
    return rows


def _by_seed(runs: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        figure: [run[figure] for run in runs if figure in run]
        for figure in ("perplexity", "bleu", "tokenized_bleu")
    }


def _changes(plain: Preset, varied: Preset) -> str:
    """Describe the settings in which a variation differs from its preset."""
    before, after = (
        {**dataclasses.asdict(one.model), **dataclasses.asdict(one.train)}
        for one in (plain, varied)
    )
    return ", ".join(f"{name} {after[name]}" for name in after if after[name] != before[name])


def has_table3(report: dict[str, Any]) -> bool:
    """Return whether every row was trained with several seeds and scored as in the paper."""
    rows = table3_rows(report)
    return len(rows) == 1 + len(TABLE3) and all(len(row.tokenized) > 1 for row in rows)


def error_of_differences(values: Sequence[Sequence[float]]) -> float:
    """Return two standard errors of the difference between a row's mean and that of `plain`.

    The variance over seeds is pooled over the rows; the error is that of a row with fewest seeds.

    Args:
        values: Figures by row and seed; the first row is `plain`, and rows have two seeds or more.
    """
    freedom = sum(len(row) - 1 for row in values)
    plain, *others = map(len, values)
    return 2 * math.sqrt(sum(map(squares, values)) / freedom * (1 / plain + 1 / min(others)))


def squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = statistics.mean(values)
    return sum((value - mean) ** 2 for value in values)

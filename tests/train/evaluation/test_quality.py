"""Estimates of the quality of translations."""

from __future__ import annotations

import numpy as np
import pytest

from translate_trt.train.evaluation.quality import Calibration, cross_validated, mean_log_prob


def test_isotonic_regression_of_groups() -> None:
    random = np.random.default_rng(1)
    means = random.normal(-1, 0.5, 600)
    scores = 50 + 10 * np.sin(4 * means) + random.normal(0, 5, 600)
    groups = np.array_split(np.argsort(means), 30)

    def mean(first: int, last: int) -> float:
        return float(scores[np.concatenate(groups[first : last + 1])].mean())

    expected = [  # Robertson, Wright and Dykstra (1988): the largest of the least means
        max(min(mean(first, last) for last in range(group, 30)) for first in range(group + 1))
        for group in range(30)
    ]
    fitted = Calibration.fit(means, scores)
    assert fitted.points[:, 1] == pytest.approx(sorted({round(x, 9) for x in expected}))
    assert 1 < len(fitted.points) < 30
    assert (np.diff(fitted.points, axis=0)[:, :2] > 0).all()
    value, spread = fitted.estimate(np.array([-9.0, 9.0]))  # beyond the ends
    assert value.tolist() == fitted.points[[0, -1], 1].tolist()
    assert spread.tolist() == fitted.points[[0, -1], 2].tolist()


def test_measurements_on_held_out_lines() -> None:
    random = np.random.default_rng(1)
    means = random.normal(-1, 0.5, 2_000)
    lines = np.repeat(np.arange(1_000), 2)
    right = cross_validated(means, 50 + 20 * means + random.normal(0, 6, 2_000), lines)
    assert (right["lines"], right["translations"]) == (1_000, 2_000)
    assert right["pearson"] == pytest.approx(10 / np.hypot(10, 6), abs=0.02)
    assert right["spearman"] == pytest.approx(right["pearson"], abs=0.03)
    assert right["spread"] == pytest.approx(6, abs=0.3)
    assert right["calibration_error"] < 1
    # Equal scores within a line, and none that the probability tells: nothing is learned of others.
    wrong = cross_validated(means, np.repeat(random.normal(50, 6, 1_000), 2), lines)
    assert abs(wrong["pearson"]) < 0.1
    constant = cross_validated(means, np.full(2_000, 7.0), lines)
    assert (constant["pearson"], constant["spearman"], constant["spread"]) == (None, None, 0)


def test_mean_log_prob() -> None:
    assert mean_log_prob([-1, -2.5]) == -1.75
    assert mean_log_prob([]) is mean_log_prob([-1.0, None]) is None

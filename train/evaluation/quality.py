"""Quality estimates: the sentence chrF to expect of a translation, and the spread of the errors.

The mean log-probability of a translation's tokens is mapped to chrF by isotonic regression on a
development set with references.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import display_name, open_input, reading

FEWEST_LINES = 100
_FOLDS = 5
# Isotonic regression of single translations would end in steps of one or two: it is of the means
# of up to 50 groups, each of at least 20 translations of similar probability.
_MOST_GROUPS, _SMALLEST_GROUP = 50, 20
_CALIBRATION_BINS = 10

Floats = NDArray[np.float64]


def mean_log_prob(token_log_probs: Sequence[float | None]) -> float | None:
    """Return the mean log-probability of tokens; None without tokens or with an impossible one."""
    known = [number for number in token_log_probs if number is not None]
    return sum(known) / len(known) if known and len(known) == len(token_log_probs) else None


@dataclass(frozen=True)
class Calibration:
    """Map from mean log-probabilities to chrF, linear between points.

    Attributes:
        points: [points, 3] mean log-probability and expected chrF, both ascending, and standard
            deviation of the errors.
    """

    points: Floats

    @classmethod
    def fit(cls, means: Floats, scores: Floats) -> Calibration:
        """Fit by pooling adjacent violators.

        Args:
            means: [translations] mean log-probabilities.
            scores: [translations] chrF of the same translations.
        """
        groups = min(_MOST_GROUPS, max(1, len(means) // _SMALLEST_GROUP))
        blocks: list[NDArray[np.int64]] = []
        for rows in np.array_split(np.argsort(means, kind="stable"), groups):
            blocks.append(rows)
            while len(blocks) > 1 and scores[blocks[-2]].mean() >= scores[blocks[-1]].mean():
                blocks[-2:] = [np.concatenate(blocks[-2:])]
        places, values = (np.array([of[rows].mean() for rows in blocks]) for of in (means, scores))
        errors = (scores - np.interp(means, places, values)) ** 2
        spreads = np.sqrt([errors[rows].mean() for rows in blocks])
        return cls(np.stack((places, values, spreads), axis=1))

    @classmethod
    def read(cls, path: str) -> Calibration:
        """Read a file of `rerank --calibrate`.

        Raises:
            InputError: The file cannot be read, or is damaged.
        """
        name = display_name(path)
        with open_input(path) as stream, reading(name):
            content = stream.read()
        try:
            points = np.array(json.loads(content)["points"], np.float64)
            if points.ndim != 2 or points.shape[1] != 3 or not np.isfinite(points).all():
                raise ValueError("points are no triples of numbers")
            if (np.diff(points[:, :2], axis=0) < 0).any():
                raise ValueError("points are not ascending")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{name} is no calibration ({error}); make it again with rerank --calibrate."
            ) from error
        return cls(points)

    def estimate(self, means: float | Floats) -> tuple[Floats, Floats]:
        """Return the expected chrF of mean log-probabilities, and the spread of its errors."""
        places, *columns = self.points.T
        value, spread = (np.interp(means, places, column) for column in columns)
        return value, spread

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that `read` reads."""
        return {"points": self.points.round(4).tolist()}


def cross_validated(means: Floats, scores: Floats, lines: NDArray[np.int64]) -> dict[str, Any]:
    """Measure estimates on lines that they were not fitted to, in five folds.

    Args:
        means: [translations] mean log-probabilities.
        scores: [translations] chrF.
        lines: [translations] numbers of the lines that they translate.

    Returns:
        Correlations of estimate and chrF, null where one of them does not vary; the expected
        calibration error over ten bins of as many translations; and the spread of the errors.

    Raises:
        InputError: There are too few lines.
    """
    distinct = len(np.unique(lines))
    if distinct < FEWEST_LINES:
        raise InputError(
            f"{distinct} lines have translations with scores; estimates of quality need at least "
            f"{FEWEST_LINES}."
        )
    found = np.empty_like(scores)
    for fold in range(_FOLDS):
        held_out = lines % _FOLDS == fold
        fitted = Calibration.fit(means[~held_out], scores[~held_out])
        found[held_out] = fitted.estimate(means[held_out])[0]
    errors = found - scores
    bins = np.array_split(np.argsort(found, kind="stable"), _CALIBRATION_BINS)
    calibration_error = sum(abs(errors[rows].sum()) for rows in bins) / len(errors)
    return {
        "lines": distinct,
        "translations": len(scores),
        "pearson": _correlation(found, scores),
        "spearman": _correlation(_ranks(found), _ranks(scores)),
        "calibration_error": round(float(calibration_error), 3),
        "spread": round(float(np.sqrt((errors**2).mean())), 3),
    }


def _correlation(one: Floats, other: Floats) -> float | None:
    if not (one.std() and other.std()):
        return None
    return round(float(np.corrcoef(one, other)[0, 1]), 4)


def _ranks(values: Floats) -> Floats:
    """Return ranks; equal values have the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])

"""Confidence of words: the probabilities of their tokens, calibrated on text with references."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import BundleError, InputError

#: Log-probability below which words do not differ any more; it keeps the fit finite.
_LEAST = -30.0
#: Words of each kind, right and wrong, that a calibration needs in the half that it learns from.
_FEWEST_WORDS = 50
_BINS = 10  # of the expected calibration error, as in Guo et al. 2017
_NEWTON_STEPS = 100


@dataclass(frozen=True)
class Word:
    """A word of a translation: the text between two spaces.

    Attributes:
        text: The word, with punctuation that is attached to it.
        log_prob: Sum of the log-probabilities of its tokens; 0 for a word of a forced prefix.
        confidence: Its probability, calibrated if the target is.
    """

    text: str
    log_prob: float
    confidence: float


@dataclass(frozen=True)
class Calibration:
    """Logistic calibration: the confidence of log-probability x is 1 / (1 + exp(-(a x + b))).

    Attributes:
        slope: a; positive, so that more probable words have more confidence.
        intercept: b.
        words: Number of words it was learned from.
        error_before: Expected calibration error of the probabilities on words that were held out.
        error_after: Expected calibration error of the confidences on the same words.
    """

    slope: float
    intercept: float
    words: int
    error_before: float
    error_after: float

    @classmethod
    def from_json(cls, target: str, value: Mapping[str, Any]) -> Calibration:
        """Read the calibration of a target from the manifest.

        Raises:
            BundleError: A number is missing or not possible.
        """
        numbers = [value.get(name) for name in cls.__dataclass_fields__]
        known = all(
            isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
            for one in numbers
        )
        if not known or value["slope"] <= 0:
            raise BundleError(
                f"the calibration of {target} in the manifest is damaged; run translate-trt "
                "calibrate again."
            )
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})

    def to_json(self) -> dict[str, float]:
        """Convert the calibration to JSON values, which `from_json` reads back."""
        return asdict(self)


# ---- calibration ----


def occurrences(words: Sequence[str], reference: str) -> list[bool]:
    """Return for each word of a translation whether it stands in the reference, in order.

    Words are compared as they are, with case and attached punctuation. The matching blocks are
    those of difflib, so that a word that stands once in the reference is right once.
    """
    matcher = SequenceMatcher(None, list(words), reference.split(), autojunk=False)
    right = [False] * len(words)
    for block in matcher.get_matching_blocks():
        right[block.a : block.a + block.size] = [True] * block.size
    return right


def learn_calibration(lines: Sequence[tuple[Sequence[Word], Sequence[bool]]]) -> Calibration:
    """Learn a calibration from every second line, and measure it on the others.

    Args:
        lines: The words of each translation, and which of them are right.

    Raises:
        InputError: There are too few right or wrong words, or likely words are not right more
            often.
    """
    learned, held_out = (_pairs(lines[start::2]) for start in (0, 1))
    log_probs, right = learned
    counts = (int(right.sum()), int((~right).sum()))
    if min(counts) < _FEWEST_WORDS or not held_out[1].size:
        raise InputError(
            f"too few words to learn from: every second one of the {len(lines)} translations has "
            f"{counts[0]} words that are in its reference and {counts[1]} that are not, and at "
            f"least {_FEWEST_WORDS} of each are necessary. Use more lines, and check that the "
            "reference belongs to the source."
        )
    slope, intercept = _fit(log_probs, right)
    if slope <= 0:
        raise InputError(
            "words with a higher probability are no more often in the reference. Check that "
            "the reference belongs to the source."
        )
    log_probs, right = held_out
    return Calibration(
        slope, intercept, learned[1].size,
        calibration_error(np.exp(log_probs), right),
        calibration_error(_sigmoid(slope * log_probs + intercept), right),
    )  # fmt: skip


def calibration_error(confidences: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error: mean distance of confidence from right words.

    Args:
        confidences: Values from 0 to 1, in bins of equal width.
        right: Whether each word is right.
    """
    bins = np.minimum((confidences * _BINS).astype(int), _BINS - 1)
    sums = np.bincount(bins, confidences - right, _BINS)
    return float(np.abs(sums).sum() / right.size)


def _pairs(
    lines: Sequence[tuple[Sequence[Word], Sequence[bool]]],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    log_probs = [word.log_prob for words, _ in lines for word in words]
    right = [one for _, of_line in lines for one in of_line]
    return np.maximum(np.array(log_probs, float), _LEAST), np.array(right, bool)


def _fit(x: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[float, float]:
    """Fit slope and intercept by maximum likelihood, with Platt's targets (1999)."""
    positive, negative = int(right.sum()), int((~right).sum())
    wanted = np.where(right, (positive + 1) / (positive + 2), 1 / (negative + 2))
    features = np.stack([x, np.ones_like(x)])
    found = np.array([0.0, math.log((positive + 1) / (negative + 1))])
    for _ in range(_NEWTON_STEPS):
        p = _sigmoid(found @ features)
        gradient = features @ (wanted - p)
        step = np.linalg.lstsq((features * (p * (1 - p))) @ features.T, gradient, rcond=None)[0]
        # Far from the optimum a full step may overshoot.
        step *= min(1.0, 1.0 / float(np.abs(step).max() + 1e-300))
        found += step
        if float(np.abs(step).max()) < 1e-10:
            break
    return float(found[0]), float(found[1])


def _sigmoid(x: Any) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(x, float))))

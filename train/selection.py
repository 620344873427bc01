"""Selection of the best checkpoint by a validation metric, and the count for early stopping."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

#: Validation metrics, with the names that messages have for them.
METRICS = {"loss": "loss", "bleu": "BLEU", "chrf": "chrF", "f1": "F1"}


def is_better(metric: str, value: float, other: float) -> bool:
    """Whether a value of a metric is better than another; a NaN never is."""
    return value < other if metric == "loss" else value > other


@dataclass(frozen=True)
class Selection:
    """Best validation so far; part of the training state.

    Attributes:
        step: Step of the best validation; -1 before the first.
        scores: Scores of that validation by metric.
        since: Number of validations since then.
        validated: Step of the last validation; -1 before the first.
    """

    step: int = -1
    scores: dict[str, float] = field(default_factory=dict)
    since: int = 0
    validated: int = -1

    def after(self, step: int, scores: dict[str, float], metric: str) -> Selection:
        """Add a validation; an equal score is no improvement.

        Args:
            step: Step of the validation.
            scores: Scores by metric.
            metric: Metric that decides.
        """
        value = scores[metric]
        if math.isfinite(value) and (
            not self.scores or is_better(metric, value, self.scores[metric])
        ):
            return Selection(step, dict(scores), 0, step)
        return dataclasses.replace(self, since=self.since + 1, validated=step)

    @property
    def improved(self) -> bool:
        """Whether the last validation is the best one."""
        return self.step == self.validated >= 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as `from_json` expects them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Selection:
        """Read the fields that `to_json` returned.

        Raises:
            TypeError: The fields are not those of `to_json`.
        """
        found = cls(**values)
        if not isinstance(found.scores, dict):
            raise TypeError("scores")
        return found

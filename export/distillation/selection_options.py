"""Options of the selection of training pairs."""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.runtime.errors import OptionError

#: Sentence metrics that compare a hypothesis with the reference.
METRICS = ("bleu", "chrf")


@dataclass(frozen=True)
class SelectionOptions:
    """Options of the selection.

    Attributes:
        hypotheses: Hypotheses of the teacher per line; None: 8 with references, 1 without.
        metric: Sentence metric that compares hypotheses with the reference.
        keep: Share of the pairs to keep, those with the highest log-probability per token.
        keep_references: Train on the references, too.

    Raises:
        OptionError: A value is out of range.
    """

    hypotheses: int | None = None
    metric: str = "bleu"
    keep: float = 1.0
    keep_references: bool = False

    def __post_init__(self) -> None:
        if self.hypotheses is not None and self.hypotheses < 1:
            raise OptionError(f"hypotheses is {self.hypotheses}; it must be at least 1.")
        if self.metric not in METRICS:
            raise OptionError(f"metric {self.metric!r}: choose {' or '.join(METRICS)}.")
        if not 0.0 < self.keep <= 1.0:
            raise OptionError(f"keep is {self.keep}; it must be above 0 and at most 1.")

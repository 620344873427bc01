"""Acceptance thresholds of `translate-trt verify`."""

from __future__ import annotations

from dataclasses import dataclass

#: Smallest share of identical sentences and near ties where BLEU says nothing. Int8 changes some
#: translations, and a wrong graph nearly all.
LEAST_AGREEMENT_PERCENT = 25.0


@dataclass(frozen=True)
class Thresholds:
    """Acceptance thresholds; None disables a check.

    Attributes:
        identical_percent: Minimum share of sentences with the reference's tokens, or with other
            tokens whose score is within `score_error` of the reference's (near ties).
        score_error: Maximum `score_error` of the sentences with the reference's tokens.
        bleu_loss: Maximum BLEU below the reference. If that is 0, every target would pass;
            `LEAST_AGREEMENT_PERCENT` decides instead.
    """

    identical_percent: float | None = None
    score_error: float | None = None
    bleu_loss: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.identical_percent is not None:
            tied = "" if self.score_error is None else " or tied"
            parts.append(f"at least {self.identical_percent} % identical{tied}")
        if self.score_error is not None:
            parts.append(f"scores within {self.score_error}")
        if self.bleu_loss is not None:
            parts.append(f"BLEU at most {self.bleu_loss} lower")
        return ", ".join(parts)

    def accept(
        self,
        identical_percent: float,
        score_error: float,
        bleu_difference: float,
        reference_bleu: float,
    ) -> bool:
        """Return whether measured values pass every enabled check.

        Args:
            identical_percent: Share of identical sentences and near ties.
            score_error: Largest `score_error` of the identical sentences.
            bleu_difference: BLEU minus the reference's.
            reference_bleu: BLEU of the reference.
        """
        compares = reference_bleu > 0 or identical_percent >= LEAST_AGREEMENT_PERCENT
        return (
            (self.identical_percent is None or identical_percent >= self.identical_percent)
            and (self.score_error is None or score_error <= self.score_error)
            and (self.bleu_loss is None or (bleu_difference >= -self.bleu_loss and compares))
        )


#: Thresholds per precision. FP32 scores differ by at most 1e-4 (docs/kernels.md), and those of
#: another checkpoint of the same run by 1e-2 and more.
THRESHOLDS = {
    "fp32": Thresholds(identical_percent=99.9, score_error=1e-3),
    "fp16": Thresholds(bleu_loss=0.1),
    "bf16": Thresholds(bleu_loss=0.1),
    "int8": Thresholds(bleu_loss=0.3),
}
#: Thresholds of shortlist targets, in any precision: most of the vocabulary is left out.
SHORTLIST_THRESHOLDS = Thresholds(bleu_loss=0.3)

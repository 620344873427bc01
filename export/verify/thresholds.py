"""Acceptance thresholds of `translate-trt verify`."""

from __future__ import annotations

from dataclasses import dataclass

#: Smallest share of identical sentences and near ties where BLEU says little. Int8 changes some
#: translations, and a wrong graph nearly all.
LEAST_AGREEMENT_PERCENT = 25.0
#: BLEU of the reference below which a difference of BLEU says little: all translations may differ.
LEAST_BLEU = 5.0


@dataclass(frozen=True)
class Thresholds:
    """Acceptance thresholds; None disables a check.

    Attributes:
        identical_percent: Minimum share of sentences with the reference's tokens, or with other
            tokens whose score is within `score_error` of the reference's (near ties).
        score_error: Maximum `score_error` of the sentences with the reference's tokens.
        bleu_loss: Maximum BLEU below the reference. If that is below `LEAST_BLEU`, the translations
            must also agree by `LEAST_AGREEMENT_PERCENT`.
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

    def missed(
        self,
        identical_percent: float,
        score_error: float,
        bleu_difference: float,
        reference_bleu: float,
    ) -> tuple[str, ...]:
        """Describe the enabled checks that measured values fail.

        Args:
            identical_percent: Share of identical sentences and near ties.
            score_error: Largest `score_error` of the identical sentences.
            bleu_difference: BLEU minus the reference's.
            reference_bleu: BLEU of the reference.
        """
        missed = []
        agreement = f"{identical_percent:.2f} % identical or tied, must be at least"
        if self.identical_percent is not None and identical_percent < self.identical_percent:
            missed.append(f"{agreement} {self.identical_percent} %")
        if self.score_error is not None and score_error > self.score_error:
            missed.append(f"scores differ by {score_error:.2e}, may by {self.score_error}")
        if self.bleu_loss is not None:
            if bleu_difference < -self.bleu_loss:
                missed.append(f"BLEU {-bleu_difference:.2f} lower, may be {self.bleu_loss}")
            if reference_bleu < LEAST_BLEU and identical_percent < LEAST_AGREEMENT_PERCENT:
                missed.append(
                    f"{agreement} {LEAST_AGREEMENT_PERCENT} %, as PyTorch's BLEU is below "
                    f"{LEAST_BLEU}"
                )
        return tuple(missed)


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

"""What a translation is made of."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import BackendError


@dataclass(frozen=True)
class Hypothesis:
    """One finished hypothesis.

    Attributes:
        tokens: target token ids, without the end symbol.
        score: cumulative log-probability divided by the length penalty; higher is better.
        token_log_probs: natural-log probability of each generated token, 0 of a forced one; the
            last one is the end symbol's unless the hypothesis is truncated.
        truncated: the maximum length came before the end symbol.
        attention: [len(token_log_probs), source tokens + 1] cross-attention of the last decoder
            layer averaged over heads, when asked for; the last column is the source's end symbol,
            and is left out for models that see no such symbol.
    """

    tokens: tuple[int, ...]
    score: float
    token_log_probs: tuple[float, ...] = ()
    truncated: bool = False
    attention: NDArray[np.float32] | None = None


def check_found(found: list[Hypothesis], source_tokens: int) -> list[Hypothesis]:
    """Return the n best of a sentence as they are, of which there must be at least one.

    Args:
        found: of one sentence.
        source_tokens: of the sentence, the end symbol not included; for the message.

    Raises:
        BackendError: a search found nothing, since no candidate of a step had a finite
            log-probability.
    """
    if not found:
        raise BackendError(
            f"the model produced no finite probabilities for a sentence of {source_tokens} source "
            "tokens. Its weights hold NaN or infinity, or its values overflow: check the "
            "checkpoint with translate-trt verify, or use a target of higher precision, such as "
            "onnx-fp32."
        )
    return found


@dataclass(frozen=True)
class TextHypothesis:
    """A hypothesis as text, with what `Hypothesis` tells of it.

    `segments` has one `Hypothesis` for an ordinary line, several for a line that was too long for
    the model and was translated in segments, none for a line without a single token. `score` is the
    sum over the segments.
    """

    text: str
    score: float
    segments: tuple[Hypothesis, ...] = ()

    @property
    def token_log_probs(self) -> tuple[float, ...]:
        """Log-probability of every generated token, segment after segment."""
        return tuple(value for segment in self.segments for value in segment.token_log_probs)

    @property
    def truncated(self) -> bool:
        """True if any segment reached the maximum length before its end symbol."""
        return any(segment.truncated for segment in self.segments)

    @property
    def pieces(self) -> tuple[Hypothesis, ...]:
        """Deprecated name of `segments`."""
        _warn_of_old_name("TextHypothesis.pieces", "segments")
        return self.segments


@dataclass(frozen=True)
class Translation:
    """The n best translations of one line, best first; an empty line has one, empty."""

    hypotheses: tuple[TextHypothesis, ...]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best translation."""
        return self.hypotheses[0].score

    @property
    def segment_count(self) -> int:
        """Into how many segments the line was cut: 1 for nearly all, 0 for an empty one."""
        return len(self.hypotheses[0].segments)

    @property
    def piece_count(self) -> int:
        """Deprecated name of `segment_count`."""
        _warn_of_old_name("Translation.piece_count", "segment_count")
        return self.segment_count


def _warn_of_old_name(old: str, new: str) -> None:
    """Warn the caller of a property that has been renamed."""
    warnings.warn(
        f"{old} is now {new}; the old name will go in the next version.",
        DeprecationWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class Statistics:
    """Load and totals of a service; long lines count with each of their segments.

    Attributes:
        waiting: sentences that no batch has taken yet.
        running: sentences in batches.
        sentences: that were translated.
        source_tokens: of those.
        target_tokens: of the best hypothesis of each.
        steps: that batches took.
        rows: of batches, a step with n sentences counts n.
    """

    waiting: int = 0
    running: int = 0
    sentences: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    steps: int = 0
    rows: int = 0

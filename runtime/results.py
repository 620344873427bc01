"""Translation results and service statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.text.alignment import Alignment
from translate_trt.runtime.text.glossary import Term


@dataclass(frozen=True)
class Hypothesis:
    """A finished hypothesis.

    Attributes:
        tokens: Target token ids without the end symbol.
        score: Cumulative log-probability divided by the length penalty; higher is better.
        token_log_probs: Natural-log probability of each generated token, 0 for forced tokens. The
            last entry belongs to the end symbol unless the hypothesis is truncated.
        truncated: True if the maximum length was reached before the end symbol, or the loop guard
            cut the hypothesis.
        looped: True if the hypothesis was cut because it repeated one phrase.
        attention: [len(token_log_probs), source tokens + 1] cross-attention of the decoder layer
            and heads that the bundle was exported with (`Manifest.attention`), averaged over the
            heads, if requested. The last column is the source's end symbol; it is missing for
            models whose decoder does not see that symbol.
    """

    tokens: tuple[int, ...]
    score: float
    token_log_probs: tuple[float, ...] = ()
    truncated: bool = False
    attention: NDArray[np.float32] | None = None
    looped: bool = False


def check_found(found: list[Hypothesis], source_tokens: int) -> list[Hypothesis]:
    """Return the hypotheses of a sentence unchanged, after checking that the list is not empty.

    Args:
        found: The n best hypotheses of one sentence.
        source_tokens: Source length without the end symbol, for the message.

    Raises:
        BackendError: The list is empty: in some step no candidate had a finite log-probability.
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
    """A hypothesis as text.

    Attributes:
        text: The translation, always one line; of a document, as many lines as the document has.
        score: Sum of the segments' scores.
        segments: One `Hypothesis` for an ordinary line, several for a line that exceeded the
            model's maximum length or was split into sentences, none for a line without tokens.
        alignment: Words of the source that the words of the text translate, if requested.
        terms: Terms of the glossary in the source, in order; None without a glossary.
    """

    text: str
    score: float
    segments: tuple[Hypothesis, ...] = ()
    alignment: Alignment | None = None
    terms: tuple[Term, ...] | None = None

    @property
    def token_log_probs(self) -> tuple[float, ...]:
        """Log-probabilities of all generated tokens, concatenated over the segments."""
        return tuple(value for segment in self.segments for value in segment.token_log_probs)

    @property
    def truncated(self) -> bool:
        """True if any segment was cut before its end symbol."""
        return any(segment.truncated for segment in self.segments)

    @property
    def looped(self) -> bool:
        """True if any segment was cut because it repeated one phrase."""
        return any(segment.looped for segment in self.segments)


@dataclass(frozen=True)
class Translation:
    """The n best translations of one line, best first; a blank line has one empty hypothesis.

    Attributes:
        hypotheses: The n best, best first; or the best of each alternative, in the order of their
            tokens' probabilities.
        sentence_count: Number of sentences that were translated one by one; 1 unless
            `split_sentences` was asked for.
    """

    hypotheses: tuple[TextHypothesis, ...]
    sentence_count: int = 1

    @property
    def text(self) -> str:
        """Text of the best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best translation."""
        return self.hypotheses[0].score

    @property
    def segment_count(self) -> int:
        """Number of segments that the line was cut into; 0 for a blank line, usually 1."""
        return len(self.hypotheses[0].segments)


@dataclass(frozen=True)
class Statistics:
    """Current load and totals of a service; every segment of a long line counts as a sentence.

    Attributes:
        waiting: Sentences in the pending queue.
        running: Sentences in batches.
        sentences: Translated sentences.
        source_tokens: Source tokens of the translated sentences.
        target_tokens: Tokens of the best hypothesis of each translated sentence.
        steps: Decoding steps of all batches.
        rows: Sum of the batch sizes over all steps.
        repeated: Translated sentences that had the result of an equal one.
    """

    waiting: int = 0
    running: int = 0
    sentences: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    steps: int = 0
    rows: int = 0
    repeated: int = 0

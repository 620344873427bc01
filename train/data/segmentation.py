"""Subword regularization: random segmentations of training text.

BPE drops merges (Provilkov et al. 2020, "BPE-Dropout"); of a unigram vocabulary, segmentations are
drawn by their smoothed probabilities (Kudo 2018, "Subword Regularization").
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from translate_trt.runtime.text.tokenizer import without_controls


@functools.lru_cache(maxsize=2)
def _processor(model: Path, modified: int) -> sentencepiece.SentencePieceProcessor:
    """Cache the models of a process; `modified` detects a new file of the same name."""
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


class Segmentation(NamedTuple):
    """Random segmentation, which depends on these numbers and the text alone.

    Attributes:
        alpha: Probability of dropping a merge, or exponent of the probabilities of unigrams.
        seed: Seed of all segmentations.
        number: Number of this one.
    """

    alpha: float
    seed: int
    number: int

    def encode(self, model: Path, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts with a SentencePiece model."""
        processor = _processor(model, model.stat().st_mtime_ns)
        tokens = []
        for text in map(without_controls, texts):
            state = zlib.crc32(f"{self.seed}\n{self.number}\n{text}".encode())
            # 31 bits: the largest of 32 would ask for a seed by the clock.
            sentencepiece.set_random_generator_seed(state >> 1)
            tokens.append(
                processor.encode(text, enable_sampling=True, alpha=self.alpha, nbest_size=-1)
            )
        return tokens

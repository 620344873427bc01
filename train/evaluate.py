"""Validation loss, translations by the reference search, and BLEU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu
import torch

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.data import ParallelData, plan_batches
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search


@dataclass(frozen=True)
class Bleu:
    """Corpus BLEU and what it was computed with.

    Attributes:
        score: 0 to 100.
        signature: sacrebleu's, so that others can compute the same.
    """

    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Bleu:
    """Cased, detokenized BLEU with sacrebleu's defaults (13a tokenization)."""
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Bleu(score.score, str(metric.get_signature()))


@torch.inference_mode()
def validation_loss(model: Transformer, data: ParallelData, batch_tokens: int = 4096) -> float:
    """Negative log-likelihood per target token, in nats, without label smoothing."""
    device = model.embedding.weight.device
    total, tokens = 0.0, 0
    for rows in plan_batches(data.source.lengths, data.target.lengths, batch_tokens, None):
        batch = data.batch(rows).to(device)
        hidden = model(batch.source, batch.source_bias, batch.previous)
        hidden = hidden.flatten(0, 1)[batch.target_index].float()
        _, likelihood = projected_cross_entropy(hidden, model.embedding.weight, batch.targets, 0.0)
        total += float(likelihood)
        tokens += len(batch.targets)
    return total / tokens


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is beyond a float."""
    return math.exp(loss) if loss < 700 else math.inf


def translate_reference(
    model: Transformer, tokenizer: Tokenizer, lines: Sequence[str], options: SearchOptions
) -> tuple[list[str], list[list[Hypothesis]]]:
    """Best translations as text, and all hypotheses, by the PyTorch beam search."""
    sources = [tokenizer.encode_source(line) for line in lines]
    results = beam_search(model, sources, options)
    return [tokenizer.decode(result[0].tokens) for result in results], results

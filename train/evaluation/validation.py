"""Validation loss, and translation by the reference search, of a model or an ensemble."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.parsing import tree_of
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.cudnn_attention import cudnn_attention
from translate_trt.train.data.batches import ParallelData, plan_batches
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.search import Ensemble, Model, beam_search

log = logging.getLogger("translate_trt")

_NONE = Prompt()


@torch.inference_mode()
def validation_loss(model: Transformer, data: ParallelData, batch_tokens: int = 4096) -> float:
    """Compute the negative log-likelihood per target token in nats, without label smoothing."""
    device = model.embedding.weight.device
    data = data.for_model(model)
    total, tokens = 0.0, 0
    for rows in plan_batches(data.source.lengths, data.target.lengths, batch_tokens, None):
        batch = data.batch(rows).to(device)
        with cudnn_attention(device):
            hidden = model(batch.source, batch.source_bias, batch.previous)
        hidden = hidden.flatten(0, 1)[batch.target_index].float()
        _, likelihood = projected_cross_entropy(
            hidden, model.projection_weight, batch.targets, 0.0, bias=model.output_bias
        )
        total += float(likelihood)
        tokens += len(batch.targets)
    return total / tokens


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity on overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def check_same_vocabulary(checkpoints: Sequence[Checkpoint]) -> None:
    """Check, before any weights are read, whether checkpoints can form an ensemble.

    Raises:
        CheckpointError: The vocabularies differ; the message names the difference.
    """
    first, *others = checkpoints
    for other in others:
        if difference := _difference(first, other):
            raise CheckpointError(
                f"{first.path} and {other.path} have different vocabularies, so their "
                f"probabilities cannot be averaged: {difference}. Make an ensemble of checkpoints "
                f"that were trained with the same {first.tokenizers[0].name}."
            )


def _difference(first: Checkpoint, other: Checkpoint) -> str | None:
    """Describe the difference of two vocabularies, or of the annotation of texts."""
    for side, own, others in zip(
        ("source", "target"), first.tokenizers, other.tokenizers, strict=True
    ):
        if own.read_bytes() != others.read_bytes():
            return f"{own} and {others}, of the {side}, have different contents"
    for side in ("input_vocabulary_size", "vocabulary_size"):
        sizes = getattr(first.model, side), getattr(other.model, side)
        if sizes[0] != sizes[1]:
            return f"{side} is {sizes[0]} and {sizes[1]}"
    if first.prompt != other.prompt:
        return f"the prompts are {first.prompt.to_json()} and {other.prompt.to_json()}"
    if first.term_annotation != other.term_annotation:
        return f"annotations are {first.term_annotation} and {other.term_annotation}"
    return None


def load_as_one(checkpoints: Sequence[Checkpoint], device: torch.device) -> tuple[Model, Tokenizer]:
    """Load a checkpoint, or several as an ensemble, and the tokenizer.

    Raises:
        CheckpointError: A checkpoint is damaged, or the vocabularies differ.
    """
    check_same_vocabulary(checkpoints)
    models = [checkpoint.load_model().to(device) for checkpoint in checkpoints]
    tokenizer = Tokenizer(*checkpoints[0].tokenizers)
    return models[0] if len(models) == 1 else Ensemble(models), tokenizer


def translate_reference(
    model: Model,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    options: SearchOptions,
    prompt: Prompt = _NONE,
    heads: AttentionHeads = LAST_LAYER,
) -> tuple[list[str], list[list[Hypothesis]]]:
    """Translate lines with the PyTorch beam search.

    For a model with learned positions, sources are truncated with a warning, such that the
    source, its end symbol and `max_extra_length` tokens fit.

    Args:
        model: Model or ensemble.
        tokenizer: Tokenizer of the checkpoint.
        lines: Source text.
        options: Search options, with languages that the checkpoint has checked.
        prompt: Prompt of the checkpoint.
        heads: Heads whose cross-attention hypotheses have, if the options ask for it.

    Returns:
        The best translations as text, and all hypotheses.

    Raises:
        OptionError: The model does not know the language of a line, or a line lacks one.
    """
    prepared = [prompt.of_line(line, options) for line in lines]
    sources = tokenizer.encode_source_batch([text for text, _ in prepared])
    for line, source, (_, own) in zip(lines, sources, prepared, strict=True):
        if source:
            prompt.check_line(own, f"the line {line!r:.60}")
    if model.longest is not None:
        limit = model.longest - options.max_extra_length - 1 - prompt.source_length
        if limit < 1:  # max_extra_length exceeds the positions, which limit both sides
            limit = max(1, model.longest - 1 - prompt.source_length)
            longest = min(options.max_length or model.longest, model.longest)
            options = replace(options, max_length=longest)
        cut = sum(len(source) > limit for source in sources)
        if cut:
            log.warning(
                "%d of %d lines are cut to %d tokens: the model has learned positions for %d",
                cut, len(lines), limit, model.longest,
            )  # fmt: skip
        sources = [source[:limit] for source in sources]
    sources = [
        [*prompt.of_source(own), *source] if source else []
        for source, (_, own) in zip(sources, prepared, strict=True)
    ]
    prefixes = [prompt.of_target(own) for _, own in prepared]
    results = beam_search(model, sources, options, prefixes, heads=heads)
    return [tokenizer.decode(result[0].tokens) for result in results], results


def reference_trees(
    model: Model,
    tokenizer: Tokenizer,
    lines: Sequence[str],
    options: SearchOptions,
    heads: AttentionHeads | None,
) -> tuple[list[str], list[str]]:
    """Parse lines with the PyTorch beam search.

    Args:
        model: Model or ensemble that writes trees.
        tokenizer: Tokenizer of the checkpoint.
        lines: Words of each sentence, separated by spaces.
        options: Search options.
        heads: Heads of guided alignment, which place the words (`tree_of`); None without.

    Returns:
        The trees, and the labels that they are made of.
    """
    options = replace(options, return_attention=heads is not None)
    labels, results = translate_reference(
        model, tokenizer, lines, options, heads=heads or LAST_LAYER
    )
    sources = tokenizer.encode_source_batch(lines)
    trees = [
        tree_of(tokenizer, line.split(), source, best).text
        for line, source, (best, *_) in zip(lines, sources, results, strict=True)
    ]
    return trees, labels

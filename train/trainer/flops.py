"""Floating-point operations of a model, without padding and recomputation."""

from __future__ import annotations

from translate_trt.train.config import ModelConfig


def forward_flops(config: ModelConfig, source_lengths: list[int], target_lengths: list[int]) -> int:
    """Count the operations of the matmuls of one forward pass; a multiply-add is two operations.

    Other operators (softmax, norms, dropout, embedding) are left out, as is usual for model-FLOPs
    utilization. A backward pass takes twice as many operations.

    Args:
        config: Configuration of the model.
        source_lengths: Tokens of each source sentence.
        target_lengths: Tokens of each target sentence.
    """
    width, heads = config.d_model, config.heads
    keys, values = heads * config.d_k, heads * config.d_v
    own = width * (2 * keys + values) + values * width  # weights of self-attention
    past = 2 * width * width if config.is_recurrent else own
    feed_forward, decoder_feed_forward = 2 * width * config.d_ff, 2 * width * config.decoder_inner
    source, target = sum(source_lengths), sum(target_lengths)
    pairs = list(zip(source_lengths, target_lengths, strict=True))
    weights = config.encoder_layers * (own + feed_forward) * source
    cross = width * keys + values * width
    weights += config.decoder_layers * (past + decoder_feed_forward + cross) * target
    # Cross keys and values, which layers of the same weights share.
    weights += config.distinct_decoder_layers * width * (keys + values) * source
    weights += width * config.vocabulary_size * target
    scores = config.encoder_layers * sum(s * s for s in source_lengths)
    own_scores = 0 if config.is_recurrent else sum(t * t for t in target_lengths)
    scores += config.decoder_layers * (own_scores + sum(s * t for s, t in pairs))
    return 2 * weights + 2 * (keys + values) * scores


def training_flops(
    config: ModelConfig, source_lengths: list[int], target_lengths: list[int]
) -> int:
    """Count the operations of the matmuls of a forward and backward pass."""
    return 3 * forward_flops(config, source_lengths, target_lengths)

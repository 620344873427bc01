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
    feed_forward = 2 * width * config.d_ff
    source, target = sum(source_lengths), sum(target_lengths)
    pairs = list(zip(source_lengths, target_lengths, strict=True))
    weights = config.encoder_layers * (own + feed_forward) * source
    weights += config.decoder_layers * (own + feed_forward + width * keys + values * width) * target
    weights += config.decoder_layers * width * (keys + values) * source  # cross keys and values
    weights += width * config.vocabulary_size * target
    scores = config.encoder_layers * sum(s * s for s in source_lengths)
    scores += config.decoder_layers * sum(t * t + s * t for s, t in pairs)
    return 2 * weights + 2 * (keys + values) * scores


def training_flops(
    config: ModelConfig, source_lengths: list[int], target_lengths: list[int]
) -> int:
    """Count the operations of the matmuls of a forward and backward pass."""
    return 3 * forward_flops(config, source_lengths, target_lengths)

"""How many floating-point operations a model needs, padding and recomputation not counted."""

from __future__ import annotations

from translate_trt.train.config import ModelConfig


def forward_flops(config: ModelConfig, source_lengths: list[int], target_lengths: list[int]) -> int:
    """Operations of the matrix products of one forward pass; a multiply-add is two.

    What is not a product (softmax, norms, dropout, embedding) is left out, as is usual for the
    utilization of a model's FLOPs; a backward pass takes twice as many.

    Args:
        config: the model.
        source_lengths: tokens of each source sentence.
        target_lengths: tokens of each target sentence.
    """
    width, heads = config.d_model, config.heads
    keys, values = heads * config.d_k, heads * config.d_v
    own = width * (2 * keys + values) + values * width  # weights that a token meets
    feed_forward = 2 * width * config.d_ff
    source, target = sum(source_lengths), sum(target_lengths)
    pairs = list(zip(source_lengths, target_lengths, strict=True))
    weights = config.encoder_layers * (own + feed_forward) * source
    weights += config.decoder_layers * (own + feed_forward + width * keys + values * width) * target
    weights += config.decoder_layers * width * (keys + values) * source  # cross keys and values
    weights += width * config.vocabulary_size * target
    looked_at = config.encoder_layers * sum(s * s for s in source_lengths)
    looked_at += config.decoder_layers * sum(t * t + s * t for s, t in pairs)
    return 2 * weights + 2 * (keys + values) * looked_at


def training_flops(
    config: ModelConfig, source_lengths: list[int], target_lengths: list[int]
) -> int:
    """Operations of the matrix products of forward and backward pass: three times the forward's."""
    return 3 * forward_flops(config, source_lengths, target_lengths)

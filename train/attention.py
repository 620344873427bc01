"""The attention weights of every layer and head, as the model applies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from translate_trt.runtime.contract import MASKED
from translate_trt.train.config import END, START
from translate_trt.train.model import Transformer

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionWeights:
    """Where one sentence and its translation looked.

    Attributes:
        source: S tokens, the end symbol included.
        target: T tokens that the decoder read: the start symbol, then the translation.
        encoder: per encoder layer, source over source, [H, S, S].
        decoder: per decoder layer, target over target, [H, T, T].
        cross: per decoder layer, target over source, [H, T, S].
    """

    source: list[int]
    target: list[int]
    encoder: list[NDArray[np.float32]]
    decoder: list[NDArray[np.float32]]
    cross: list[NDArray[np.float32]]

    def of(self, kind: str) -> tuple[list[int], list[int], list[NDArray[np.float32]]]:
        """Query tokens, key tokens and the layers' weights of "encoder", "decoder" or "cross"."""
        sides = {
            "encoder": (self.source, self.source, self.encoder),
            "decoder": (self.target, self.target, self.decoder),
            "cross": (self.target, self.source, self.cross),
        }
        return sides[kind]


@torch.inference_mode()
def attention_weights(
    model: Transformer, source: Sequence[int], target: Sequence[int]
) -> AttentionWeights:
    """All weights of one sentence pair.

    Args:
        model: in evaluation mode.
        source: its tokens, without the end symbol.
        target: likewise.
    """
    device = model.embedding.weight.device
    source_ids, read = [*source, END], [START, *target]
    causal = torch.full((len(read), len(read)), MASKED, device=device).triu(1)
    x = model.embed(torch.tensor([source_ids], device=device))
    encoder: list[Tensor] = []
    for layer in model.encoder_layers:
        y = layer.self_attention_norm.before(x)
        encoder.append(
            layer.self_attention.weights(y, layer.self_attention.keys_values(y)[0], None)
        )
        x = layer(x, None)
    memory = model.encoder_norm(x)
    x = model.embed(torch.tensor([read], device=device))
    decoder: list[Tensor] = []
    cross: list[Tensor] = []
    for decoder_layer in model.decoder_layers:
        own = decoder_layer.self_attention
        y = decoder_layer.self_attention_norm.before(x)
        decoder.append(own.weights(y, own.keys_values(y)[0], causal))
        x, _ = decoder_layer(
            x, None, decoder_layer.cross_attention.keys_values(memory), None, cross
        )
    return AttentionWeights(
        source_ids, read, *([layer[0].float().cpu().numpy() for layer in layers]
                            for layers in (encoder, decoder, cross))
    )  # fmt: skip

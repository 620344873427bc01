"""Random models of a few thousand parameters."""

from __future__ import annotations

from typing import Any

import torch

from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

SIZES: dict[str, Any] = {
    "vocabulary_size": 40, "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16,
    "heads": 2,
}  # fmt: skip


def small_model(seed: int = 0, **changes: Any) -> Transformer:
    """Return a model in evaluation mode; `changes` are fields of ModelConfig."""
    torch.manual_seed(seed)
    return Transformer(ModelConfig(**SIZES | changes)).eval()

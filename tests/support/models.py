"""Small models whose beam search has something to do."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from translate_trt.train.checkpoint import save_checkpoint
from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.data import encode_parallel
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer


def lively_model(
    vocabulary_size: int,
    seed: int = 0,
    steps: int = 150,
    tokens: range = range(4, 40),
    **changes: Any,
) -> Transformer:
    """A model trained for a few seconds to say its source backwards.

    A random one has nearly flat distributions: it would hardly end a sentence, and rounding would
    decide between its candidates. This one is sure enough, and unsure enough to need its beams. It
    knows the given tokens alone; the default ones are bytes, so that what it says is not text.
    `changes` are fields of ModelConfig. One that was trained before is not trained again.
    """
    return copy.deepcopy(_trained(vocabulary_size, seed, steps, tokens, **changes))


@functools.cache
def _trained(
    vocabulary_size: int, seed: int, steps: int, tokens: range, **changes: Any
) -> Transformer:
    torch.manual_seed(seed)
    config = ModelConfig(
        vocabulary_size=vocabulary_size,
        encoder_layers=2,
        decoder_layers=2,
        d_model=32,
        d_ff=48,
        heads=4,
        dropout=0.0,
        **changes,
    )
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        lengths = torch.randint(1, 13, (48,)).tolist()
        sources = [
            torch.randint(tokens.start, tokens.stop, (length,)).tolist() for length in lengths
        ]
        data = encode_parallel(sources, [source[::-1] for source in sources], None)
        batch = data.batch(np.arange(len(sources)))
        hidden = model(batch.source, batch.source_bias, batch.previous)
        hidden = hidden.flatten(0, 1)[batch.target_index]
        loss, _ = projected_cross_entropy(hidden, model.embedding.weight, batch.targets, 0.1)
        (loss / len(batch.targets)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def save_model(model: Transformer, path: Path, tokenizer: Path) -> Path:
    """A checkpoint of that model."""
    save_checkpoint(
        path, model.state_dict(), model.config, TrainConfig(max_length=48), tokenizer, ("en", "de")
    )
    return path

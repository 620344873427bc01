"""Sentences without padding: one after another in a single row, for variable-length attention.

Training on a GPU packs both sides of a batch, so that neither matmuls nor attention compute
padding. Letters: N sentences, S columns of their padded matrix, P tokens, H heads, D columns of a
head.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from translate_trt.train.config import ModelConfig

#: Largest head of the flash kernels, whose heads are multiples of 8 columns.
LARGEST_HEAD = 256


class Packing(NamedTuple):
    """Layout of one side of a batch.

    Attributes:
        positions: [P] positions of the tokens in the flattened matrix [N * S].
        starts: [N + 1] offsets of the sentences in the row of P tokens, and P; int32.
        longest: S.
    """

    positions: Tensor
    starts: Tensor
    longest: int

    @property
    def columns(self) -> Tensor:
        """Position of each token in its sentence, [P]."""
        return self.positions % self.longest

    def pack(self, x: Tensor) -> Tensor:
        """Leave out padding: [N, S, ...] -> [1, P, ...]."""
        return x.flatten(0, 1)[self.positions][None]


class Packings(NamedTuple):
    """Layouts of source and target."""

    source: Packing
    target: Packing


def packing(lengths: Tensor, size: int) -> Packing:
    """Compute the layout of sentences of `lengths` [N] in a matrix of `size` columns."""
    inside = torch.arange(size) < lengths[:, None]
    starts = torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).int()
    return Packing(inside.flatten().nonzero()[:, 0], starts, size)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Packing, keys: Packing, causal: bool
) -> Tensor:
    """Attention of each sentence's queries to its own keys.

    Args:
        query: [1, H, P, D].
        key: [1, H, P', D].
        value: [1, H, P', D].
        queries: Layout of the queries.
        keys: Layout of the keys and values.
        causal: Position t of a sentence attends to its positions up to t only.

    Returns:
        [1, H, P, D].
    """
    # Here, because it loads torch.compile: seconds that other commands need not wait.
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [P, H, D]
    window = (-1, 0) if causal else (-1, -1)
    context: Any = varlen_attn(
        q, k, v, queries.starts, keys.starts, queries.longest, keys.longest, window_size=window
    )
    return cast(Tensor, context.transpose(0, 1)[None])


def reason_for_padding(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, guided: bool
) -> str:
    """Return why training on a GPU keeps padding; empty if it can pack sentences.

    Args:
        config: Shape of the model.
        device: CUDA device.
        dtype: Dtype of the matmuls.
        guided: Whether the loss reads weights of attention.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn

        windows = "window_size" in inspect.signature(varlen_attn).parameters
    except ImportError:  # torch before 2.10
        windows = False
    if not windows:
        return "torch before 2.11 has no varlen_attn with a window"
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return "the flash kernels need an NVIDIA GPU from Ampere on"
    if dtype == torch.float32:
        return "the flash kernels have no float32"
    if config.d_k != config.d_v or config.d_k % 8 or config.d_k > LARGEST_HEAD:
        return (
            f"heads have {config.d_k} columns of keys and {config.d_v} of values; the flash "
            f"kernels need equally many, a multiple of 8 up to {LARGEST_HEAD}"
        )
    if config.attention_dropout:
        return "varlen_attn has no attention_dropout"
    if config.relative_positions:
        return "varlen_attn has no bias of relative positions"
    if config.is_recurrent:
        return "an SSRU runs over the positions of padded sentences"
    return "guided alignment reads weights of attention" if guided else ""

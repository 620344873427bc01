"""CUDA graphs of the model's forward and backward pass, one per shape of a batch.

A replay costs the host one launch in place of hundreds. Graphs have fixed shapes and addresses, so
batches are padded to few shapes (`padded_shape`), and inputs are copied into a graph's own tensors.
The loss, whose number of targets varies, and the optimizer are not captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: Widths of captured batches are multiples of this.
WIDTH_STEP = 4
#: Widest captured batch. Each graph keeps gradients of all weights, 260 MB for `base`, so the few
#: wider batches run without one.
WIDEST = 96


def padded_shape(rows: int, longest: int, tokens: int) -> tuple[int, int]:
    """Return rows and width of a padded batch, the same for both sides.

    Args:
        rows: Number of pairs.
        longest: Tokens of the longest sentence.
        tokens: Elements per side that a batch may have, unless it is a single longer pair.
    """
    width = -(-longest // WIDTH_STEP) * WIDTH_STEP
    return max(rows, tokens // width), width


class _Forward(nn.Module):
    """Module whose method `forward` make_graphed_callables may replace."""

    def __init__(self, forward: nn.Module) -> None:
        super().__init__()
        self.whole = forward

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.whole(*inputs)
        return found


class ShapeGraphs:
    """A module in training that replays a CUDA graph per shape of its first input.

    A backward pass leaves gradients in tensors of the graph, which the next replay overwrites.
    Weights must therefore have a `.grad` to which they are added (`keep_gradients`); to weights
    without one, autograd would assign the graph's own tensor.

    Args of the constructor:
        forward: Module that takes tensors whose shapes the first one determines.
    """

    def __init__(self, forward: nn.Module) -> None:
        self._forward = forward
        self._graphs: dict[torch.Size, Callable[..., Any]] = {}
        self._pool: Any = None
        # Graphs read buffers by address, and a longer sentence replaces the table of sinusoids.
        self._buffers: list[Tensor] = []

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the module's output, valid until the next call."""
        shape = inputs[0].shape
        if shape[1] > WIDEST:
            found: Tensor = self._forward(*inputs)
            return found
        if shape not in self._graphs:
            # Graphs share memory: the backward pass of one ends before another one is replayed.
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            self._buffers += self._forward.buffers()
            own = tuple(tensor.clone() for tensor in inputs)
            self._graphs[shape] = torch.cuda.make_graphed_callables(
                _Forward(self._forward), own, allow_unused_input=True, pool=self._pool
            )
        captured: Tensor = self._graphs[shape](*inputs)
        return captured


def keep_gradients(module: nn.Module) -> None:
    """Set the gradients of all weights to zero, in place where there are some."""
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()

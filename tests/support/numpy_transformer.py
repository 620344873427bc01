"""Transformer in numpy, written from the toolkits' formulas and independent of our model.

What differs between toolkits is handed in: names of weights, embeddings, activation, order of
LayerNorm. One sentence at a time, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Array = np.ndarray
#: By name: the activations that toolkits have.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "swish": lambda x: x / (1 + np.exp(-x)),
}


def tensor2tensor_sinusoids(places: Array, width: int) -> Array:
    """Compute the sinusoids of tensor2tensor, [positions, width]: all sines, then all cosines."""
    half = width // 2
    angles = places[:, None] * np.exp(np.arange(half) * -(np.log(10_000) / (half - 1)))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


class RandomWeights:
    """Random tensors by name."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(1)

    def add(self, name: str, *shape: int) -> None:
        self.values[name] = torch.randn(shape, generator=self._generator) * 0.3

    def add_linear(self, name: str, rows: int, columns: int, bias: bool = True) -> None:
        self.add(f"{name}.weight", rows, columns)
        if bias:
            self.add(f"{name}.bias", rows)

    def add_norm(self, name: str, width: int) -> None:
        self.add_linear(name, width, 1)
        self.values[f"{name}.weight"] = self.values[f"{name}.weight"].reshape(-1) + 1


@dataclass
class NumpyTransformer:
    """Layers of a Transformer.

    Attributes:
        heads: of every attention.
        pre_norm: LayerNorm is before each sub-layer, and behind the last layer.
        activation: between the feed-forward matmuls.
        epsilon: LayerNorm's.
        linear: weight [in, out] and bias [out] by name: STACK.LAYER.{self,cross}.{query,key,value,
            output}, STACK.LAYER.{inner,outer}, and of recurrent decoders
            STACK.LAYER.{forget,candidate}.
        norm: scale and bias: STACK.LAYER.{self,cross,feed}, and STACK of the last one.
        recurrent: the decoder has an SSRU (Kim et al. 2019) in place of self-attention.
    """

    heads: int
    pre_norm: bool
    activation: Callable[[Array], Array]
    epsilon: float
    linear: Callable[[str], tuple[Array, Array]]
    norm: Callable[[str], tuple[Array, Array]]
    recurrent: bool = False

    def decode(self, source: Array, target: Array, layers: Sequence[int]) -> Array:
        """Return the output [T, d_model] for embeddings [S, d_model] and [T, d_model]."""
        memory = self._stack("encoder", source, layers[0], None)
        return self._stack("decoder", target, layers[1], memory)

    def layer_norm(self, name: str, x: Array) -> Array:
        scale, bias = self.norm(name)
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        return centred / deviation * scale + bias

    def _stack(self, stack: str, x: Array, count: int, memory: Array | None) -> Array:
        for index in range(count):
            layer = f"{stack}.{index}"
            hidden = np.triu(np.full((len(x), len(x)), -np.inf), 1) if memory is not None else 0.0
            if self.recurrent and memory is not None:
                x = self._sublayer(f"{layer}.self", x, lambda y, n=layer: self._recur(n, y))
            else:
                x = self._sublayer(
                    f"{layer}.self",
                    x,
                    lambda y, h=hidden, n=layer: self._attend(f"{n}.self", y, y, h),
                )
            if memory is not None:
                x = self._sublayer(
                    f"{layer}.cross",
                    x,
                    lambda y, n=layer: self._attend(f"{n}.cross", y, memory, 0.0),
                )
            x = self._sublayer(f"{layer}.feed", x, lambda y, n=layer: self._feed_forward(n, y))
        return self.layer_norm(stack, x) if self.pre_norm else x

    def _sublayer(self, name: str, x: Array, function: Callable[[Array], Array]) -> Array:
        if self.pre_norm:
            return x + function(self.layer_norm(name, x))
        return self.layer_norm(name, x + function(x))

    def _project(self, name: str, x: Array) -> Array:
        weight, bias = self.linear(name)
        return x @ weight + bias

    def _feed_forward(self, layer: str, x: Array) -> Array:
        return self._project(f"{layer}.outer", self.activation(self._project(f"{layer}.inner", x)))

    def _recur(self, layer: str, x: Array) -> Array:
        states, state = [], np.zeros(x.shape[-1])
        for row in x:
            forget = 1 / (1 + np.exp(-self._project(f"{layer}.forget", row).reshape(-1)))
            candidate = self._project(f"{layer}.candidate", row).reshape(-1)
            state = forget * state + (1 - forget) * candidate
            states.append(np.maximum(state, 0))
        return np.stack(states)

    def _attend(self, name: str, x: Array, memory: Array, hidden: Array | float) -> Array:
        query, key, value = (
            np.stack(np.split(self._project(f"{name}.{part}", read), self.heads, -1))
            for part, read in (("query", x), ("key", memory), ("value", memory))
        )  # [H, T or S, D]
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1]) + hidden
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._project(f"{name}.output", np.concatenate(list(weights @ value), -1))

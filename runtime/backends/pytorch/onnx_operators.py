"""ONNX operators as PyTorch calls, one table entry for each operator that export writes.

An entry binds the attributes of a node and returns a function of the node's inputs. Inputs that
PyTorch needs as numbers, such as the shape of Reshape, arrive as a number or a tuple of numbers
(`Operator.host`); all others are tensors. Attributes that an entry does not read are refused, so no
setting is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from translate_trt.runtime.errors import BundleError

#: A node's computation: inputs to output, or to a sequence of outputs. Absent inputs are None.
Call: TypeAlias = Callable[..., Any]

#: PyTorch types by `onnx.TensorProto.DataType`.
DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip

# Rows up to this width are sorted whole; wider ones first select blocks of this width.
_TOP_K_BLOCK = 64
_TOP_K_SORTED = 1024


class Attributes:
    """Attributes of a node, each of which must be read.

    Args:
        operator: Name of the operator, for messages.
        values: Attributes by name.
    """

    def __init__(self, operator: str, values: Mapping[str, Any]) -> None:
        self._operator = operator
        self._unread = dict(values)

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or a default value."""
        return self._unread.pop(name, default)

    def expect(self, **values: Any) -> None:
        """Refuse other values of these attributes.

        Raises:
            BundleError: An attribute has another value.
        """
        for name, value in values.items():
            if (found := self.get(name, value)) != value:
                raise BundleError(
                    f"the torch backend has no {self._operator} with {name}={found!r}; "
                    "upgrade translate-trt, or export the bundle again."
                )

    def check_read(self) -> None:
        """Refuse attributes that the operator did not read.

        Raises:
            BundleError: There are unread attributes.
        """
        self.expect(**dict.fromkeys(self._unread))


@dataclass(frozen=True)
class Operator:
    """Entry of the table.

    Attributes:
        bind: Binds a node's attributes and returns its computation.
        host: Indices of inputs that arrive as numbers: one for a tensor of rank 0, and a tuple for
            rank 1.
        scalars: Indices of inputs that arrive as a number if they are constants of rank 0.
    """

    bind: Callable[[Attributes], Call]
    host: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Largest k values of each row with their indices, in a total order.

    Values descend, and of equal values the lowest index comes first (rule 8 of docs/beam-search.md;
    NaN is the largest value). `torch.topk` does not promise an order among equal values; a stable
    sort does. Sorting a row of the vocabulary would be expensive, so a wide row is reduced first:
    its k best entries are in the k best of its blocks by (largest entry, index), because every
    better block has an entry that precedes all of a worse one.

    Args:
        x: [..., V].
        k: At most V.

    Returns:
        Values and indices [..., k].
    """
    width = x.shape[-1]
    blocks = -(-width // _TOP_K_BLOCK)
    if width <= _TOP_K_SORTED or blocks <= k:
        values, order = x.sort(dim=-1, descending=True, stable=True)
        return values[..., :k], order[..., :k]
    whole = width // _TOP_K_BLOCK
    split = x[..., : whole * _TOP_K_BLOCK].view(*x.shape[:-1], whole, _TOP_K_BLOCK)
    largest = split.amax(-1)
    if whole < blocks:
        last = x[..., whole * _TOP_K_BLOCK :].amax(-1, keepdim=True)
        largest = torch.cat((largest, last), -1)  # [..., B]
    best = top_k(largest, k)[1].sort(-1).values  # ascending, so that their entries are
    columns = torch.arange(_TOP_K_BLOCK, device=x.device)
    indices = (best[..., None] * _TOP_K_BLOCK + columns).flatten(-2)  # [..., k * 64]
    entries = x.gather(-1, indices.clamp(max=width - 1))
    entries = entries.masked_fill(indices >= width, -torch.inf)  # never among the first k
    values, order = entries.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], indices.gather(-1, order[..., :k])


def scatter_slots(positions: Tensor, update: Tensor) -> Tensor:
    """Slots that `TensorScatter` writes.

    Args:
        positions: First slot of each row [N].
        update: New entries [N, H, K, D].

    Returns:
        Slots [N, 1, K, 1].
    """
    adjacent = torch.arange(update.shape[2], device=update.device)
    return (positions[:, None] + adjacent)[:, None, :, None]


# ---- operators with attributes or several forms ----


def _arg_max(attributes: Attributes) -> Call:
    axis, keep = attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
    attributes.expect(select_last_index=0)
    return lambda x: x.argmax(axis, keepdim=keep)


def _attention(attributes: Attributes) -> Call:
    scale = attributes.get("scale", None)
    attributes.expect(is_causal=0, softcap=0.0, qk_matmul_output_mode=0)

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, bias, scale=scale)

    return call


def _cast(attributes: Attributes) -> Call:
    number = attributes.get("to", None)
    if number not in DTYPES:
        raise BundleError(
            f"the torch backend has no Cast to the ONNX type {number}; export the bundle again."
        )
    return lambda x: x.to(DTYPES[number])


def _concat(attributes: Attributes) -> Call:
    axis = attributes.get("axis", None)
    return lambda *xs: torch.cat(xs, axis)


def _cumulative_sum(attributes: Attributes) -> Call:
    attributes.expect(exclusive=0, reverse=0)
    return lambda x, axis: x.cumsum(axis)


def _gather(attributes: Attributes) -> Call:
    axis = attributes.get("axis", 0)

    def call(x: Tensor, indices: Tensor | int) -> Tensor:
        if isinstance(indices, int):
            return x.select(axis, indices)
        return x[(*(slice(None),) * (axis % x.ndim), indices)]

    return call


def _gather_elements(attributes: Attributes) -> Call:
    axis = attributes.get("axis", 0)
    return lambda x, indices: x.gather(axis, indices)  # export writes no negative indices


def _gelu(attributes: Attributes) -> Call:
    approximate = attributes.get("approximate", b"none").decode()
    return lambda x: F.gelu(x, approximate=approximate)


def _layer_normalization(attributes: Attributes) -> Call:
    attributes.expect(axis=-1, stash_type=1)  # statistics in float32, which PyTorch uses always
    epsilon = attributes.get("epsilon", 1e-5)

    def call(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], scale, shift, epsilon)

    return call


def _mod(attributes: Attributes) -> Call:
    return torch.fmod if attributes.get("fmod", 0) else torch.remainder


def _reduce(function: Call) -> Callable[[Attributes], Call]:
    def bind(attributes: Attributes) -> Call:
        keep = bool(attributes.get("keepdims", 1))
        attributes.expect(noop_with_empty_axes=0)

        def call(x: Tensor, axes: tuple[int, ...] | None = None) -> Tensor:
            reduced: Tensor = function(x, axes or tuple(range(x.ndim)), keepdim=keep)
            return reduced

        return call

    return bind


def _reshape(attributes: Attributes) -> Call:
    copies = not attributes.get("allowzero", 0)  # a zero stands for the size of the input

    def call(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.reshape([x.shape[i] if copies and not n else n for i, n in enumerate(shape)])

    return call


def _rms_norm(attributes: Attributes) -> Call:
    epsilon = attributes.get("epsilon", None)
    return lambda x, scale: F.rms_norm(x, scale.shape, scale, epsilon)


def _shape(attributes: Attributes) -> Call:
    start, end = attributes.get("start", 0), attributes.get("end", None)
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64)


def _along_axis(function: Call, default: int) -> Callable[[Attributes], Call]:
    def bind(attributes: Attributes) -> Call:
        axis = attributes.get("axis", default)
        return lambda *inputs: function(*inputs, axis)

    return bind


def _split(attributes: Attributes) -> Call:
    axis, count = attributes.get("axis", 0), attributes.get("num_outputs", None)

    def call(x: Tensor, sizes: tuple[int, ...] | None = None) -> Any:
        return torch.chunk(x, count, axis) if sizes is None else torch.split(x, [*sizes], axis)

    return call


def _tensor_scatter(attributes: Attributes) -> Call:
    attributes.expect(axis=2, mode=b"linear")

    def call(cache: Tensor, update: Tensor, slots: Tensor) -> Tensor:
        """`slots` is the result of `scatter_slots`, which all caches of a step share."""
        return cache.scatter_(2, slots.expand_as(update), update)

    return call


def _top_k(attributes: Attributes) -> Call:
    attributes.expect(axis=-1, largest=1, sorted=1)
    return lambda x, k: top_k(x, k[0])


def _linear(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Matmul with a bias, which cuBLASLt adds before it stores: one launch."""
    return torch.addmm(bias, x.flatten(0, -2), weights).view(*x.shape[:-1], -1)


def _linear_relu(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Compute ReLU of the same in one launch."""
    return torch._addmm_activation(bias, x.flatten(0, -2), weights).view(*x.shape[:-1], -1)


def _transpose(attributes: Attributes) -> Call:
    axes = attributes.get("perm", None)
    return lambda x: x.permute(axes)


# ---- operators without attributes ----


def _div(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    own = (*(1,) * (len(shape) - x.ndim), *x.shape)
    given = (*(1,) * (x.ndim - len(shape)), *shape)
    return x.expand([b if a == 1 else a for a, b in zip(own, given, strict=True)])


def _slice(
    x: Tensor,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Tensor:
    index = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        index[i if axes is None else axes[i]] = slice(start, end, steps[i] if steps else 1)
    return x[tuple(index)]


def _squeeze(x: Tensor, axes: tuple[int, ...] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(axes)


def _unsqueeze(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _plain(function: Call, host: tuple[int, ...] = ()) -> Operator:
    """Operator without attributes."""
    return Operator(lambda _: function, host)


#: Operators of the standard domain, and fused operators that are calls of PyTorch, by name.
OPERATORS: dict[str, Operator] = {
    "Add": _plain(torch.add),
    "And": _plain(torch.logical_and),
    "ArgMax": Operator(_arg_max),
    "Attention": Operator(_attention),
    "Cast": Operator(_cast),
    "Clip": _plain(torch.clamp, host=(1, 2)),
    "Concat": Operator(_concat),
    "CumSum": Operator(_cumulative_sum, host=(1,)),
    "Div": _plain(_div),
    "Equal": _plain(torch.eq),
    "Exp": _plain(torch.exp),
    "Expand": _plain(_expand, host=(1,)),
    "Gather": Operator(_gather, scalars=(1,)),
    "GatherElements": Operator(_gather_elements),
    "Gelu": Operator(_gelu),
    "GpuLinear": _plain(_linear),
    "GpuLinearRelu": _plain(_linear_relu),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "Identity": _plain(lambda x: x),
    "LayerNormalization": Operator(_layer_normalization),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Log": _plain(torch.log),
    "LogSoftmax": Operator(_along_axis(torch.log_softmax, -1)),
    "MatMul": _plain(torch.matmul),
    "Max": _plain(torch.maximum),
    "Min": _plain(torch.minimum),
    "Mod": Operator(_mod),
    "Mul": _plain(torch.mul),
    "Neg": _plain(torch.neg),
    "Not": _plain(torch.logical_not),
    "Or": _plain(torch.logical_or),
    "Pow": _plain(torch.pow),
    "Range": _plain(torch.arange, host=(0, 1, 2)),
    "ReduceMax": Operator(_reduce(torch.amax), host=(1,)),
    "ReduceMean": Operator(_reduce(torch.mean), host=(1,)),
    "ReduceSum": Operator(_reduce(torch.sum), host=(1,)),
    "Relu": _plain(torch.relu),
    "Reshape": Operator(_reshape, host=(1,)),
    "RmsNorm": Operator(_rms_norm),
    "Shape": Operator(_shape),
    "Sigmoid": _plain(torch.sigmoid),
    "Slice": _plain(_slice, host=(1, 2, 3, 4)),
    "Softmax": Operator(_along_axis(torch.softmax, -1)),
    "Split": Operator(_split, host=(1,)),
    "Squeeze": _plain(_squeeze, host=(1,)),
    "Sub": _plain(torch.sub),
    "TensorScatter": Operator(_tensor_scatter),
    "TopK": Operator(_top_k, host=(1,)),
    "Transpose": Operator(_transpose),
    "Unsqueeze": _plain(_unsqueeze, host=(1,)),
    "Where": _plain(torch.where),
}

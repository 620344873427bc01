"""Total order of candidates: integer keys that hold a value and its index.

Values descend, and of equal values the indices ascend (rule 8 of docs/beam-search.md); NaN is the
largest value. That is the order of ONNX's TopK. No two candidates have equal keys, so the best ones
do not depend on the order in which a GPU compares.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Lower than every key.
EMPTY = tl.constexpr(-(2**63))

# Bits of an index, which a key holds inverted. The 32 bits above are the value's.
_INDEX_BITS = tl.constexpr(31)
_INDEX_MASK = tl.constexpr(2**31 - 1)
_HIGHEST = tl.constexpr(2**63 - 1)


@triton.jit
def order_of(values):
    """Map float32 to int32 of the same order, with one number for NaN and one for both zeros."""
    values += 0.0  # -0.0 becomes 0.0
    bits = values.to(tl.int32, bitcast=True)
    # Of negative numbers, larger bits are smaller values.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(values != values, 0x7FFFFFFF, ordered)


@triton.jit
def make_keys(ordered, indices):
    """Combine numbers of `order_of` with indices from 0 to 2 ** 31 - 1."""
    return (ordered.to(tl.int64) << _INDEX_BITS) | (indices ^ _INDEX_MASK)


@triton.jit
def value_of(ordered):
    """Invert `order_of`."""
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_value(keys):
    """Return the float32 values of keys."""
    return value_of((keys >> _INDEX_BITS).to(tl.int32))


@triton.jit
def key_index(keys):
    """Return the int64 indices of keys; 2 ** 31 - 1 of `EMPTY`."""
    return (keys & _INDEX_MASK) ^ _INDEX_MASK


@triton.jit
def best_keys(keys, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """Return the COUNT largest of different keys, in descending order, in a vector [SIZE].

    `EMPTY` stands for keys that are missing, and in the rest of the vector.
    """
    places = tl.arange(0, SIZE)
    best = tl.full([SIZE], EMPTY, tl.int64)
    last = tl.full([], _HIGHEST, tl.int64)
    for rank in range(COUNT):
        last = tl.max(tl.where(keys < last, keys, EMPTY))
        best = tl.where(places == rank, last, best)
    return best


@triton.jit
def ranks_of(keys):
    """Count the larger keys of each of a few keys [M], by comparing all pairs."""
    return tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), 1)

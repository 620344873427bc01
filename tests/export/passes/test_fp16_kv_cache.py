"""FP16 KV caches: only keys and values change their type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from support.graphs import (
    Axes,
    assert_close,
    build,
    feeds,
    node,
    operators,
    run,
    slots,
    weights,
    written,
)

from translate_trt.export.passes.fp16_kv_cache import Fp16KvCache

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16
SIZE, HEADS = 16, 2
HEAD = SIZE // HEADS


def encoder() -> ir.Model:
    """Keys and values of two layers from one matmul."""
    nodes = [
        node("MatMul", "x w", "both"),
        node("Split", "both sizes", "k v", axis=-1),
        *(
            made
            for name, kept in (("k", "cross_key_0"), ("v", "cross_value_0"))
            for made in (
                node("Reshape", f"{name} by_head", f"{name}_heads"),
                node("Transpose", f"{name}_heads", kept, perm=[0, 2, 1, 3]),
            )
        ),
        node("Neg", "both", "source_bias"),
    ]
    kept: Axes = ["N", HEADS, "S", HEAD]
    return build(
        nodes, {"x": ["N", "S", SIZE]},
        {"source_bias": ["N", "S", 2 * SIZE], "cross_key_0": kept, "cross_value_0": kept},
        {"w": weights(SIZE, 2 * SIZE), "sizes": np.array([SIZE, SIZE]),
         "by_head": np.array([0, 0, HEADS, HEAD])},
    )  # fmt: skip


def step() -> ir.Model:
    """Step with a cache that is written, then read directly and transposed, and a source cache."""
    nodes = [
        node("Reshape", "k by_head", "k_heads"),
        node("Transpose", "k_heads", "k_first", perm=[0, 2, 1, 3]),
        node("ScatterND", "self_key_0 places k_first", "next_self_key_0"),
        node("Transpose", "next_self_key_0", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "q turned", "scores"),
        node("MatMul", "scores next_self_key_0", "context"),
        node("ReduceMax", "cross_key_0 last", "largest"),
        node("Add", "k k", "twice"),
    ]
    cache: Axes = ["N", HEADS, "P", HEAD]
    return build(
        nodes,
        {"q": ["N", HEADS, "K", HEAD], "k": ["N", "K", SIZE], "self_key_0": cache,
         "cross_key_0": ["N", HEADS, "S", HEAD]},
        {"context": ["N", HEADS, "K", HEAD], "largest": ["N", HEADS, "S", 1],
         "twice": ["N", "K", SIZE], "next_self_key_0": cache},
        {"places": slots(HEADS), "by_head": np.array([0, 0, HEADS, HEAD]),
         "last": np.array([-1])},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "matches", "casts"), [(encoder, 2, 1), (step, 3, 3)], ids=["encoder", "step"]
)
def test_caches_alone_are_in_16_bits(
    make: Callable[[], ir.Model], matches: int, casts: int
) -> None:
    model = make()
    inputs = feeds(model)
    kept = {name for name in inputs if name.startswith(("self_", "cross_"))}
    for name in kept:  # numbers that FP16 represents exactly
        inputs[name] = inputs[name].astype(np.float16).astype(np.float32)
    right, before = run(model, inputs), operators(model)
    outcome = Fp16KvCache().run(model)
    assert (outcome.matches, outcome.refused) == (matches, ())
    for value in (*model.graph.inputs, *model.graph.outputs):
        cache = str(value.name).startswith(("self_", "next_self_", "cross_"))
        assert value.dtype == (HALF if cache else FLOAT), value.name
    found = run(model, {n: x.astype(np.float16) if n in kept else x for n, x in inputs.items()})
    assert_close(found, right, "float16")
    for name in ("twice", "source_bias", "largest"):  # not keys or values
        if name in right:
            np.testing.assert_array_equal(found[name], right[name])
    added = operators(model) - before
    assert added["Cast"] == casts
    assert added["Clip"] == added.total() - casts
    after = written(model)
    Fp16KvCache().run(model)
    assert written(model) == after


def test_numbers_are_cast_before_they_are_moved() -> None:
    for model, name in ((encoder(), "both"), (step(), "k")):
        Fp16KvCache().run(model)
        clips = [n for n in model.graph if n.op_type == "Clip"]
        assert {str(n.inputs[0].name) for n in clips if n.inputs[0]} == {name}
        moved = [n for n in model.graph if n.op_type in ("Reshape", "Split")]
        assert {value.dtype for n in moved for value in n.outputs} == {HALF}


def test_what_is_beyond_16_bits_becomes_the_largest() -> None:
    model = step()
    Fp16KvCache().run(model)
    inputs = feeds(model)
    inputs["k"][0, 0, :2] = [1e6, -1e30]
    found = run(model, inputs)["next_self_key_0"]
    place = slots(HEADS)[0, 0, 0]
    np.testing.assert_array_equal(found[tuple(place)][:2], [65504, -65504])
    assert np.isfinite(found).all()

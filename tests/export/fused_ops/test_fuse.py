"""Fused operators: which subgraphs they replace, and that their bodies compute the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import (
    Array,
    Axes,
    assert_left_alone,
    assert_rewrites,
    build,
    feeds,
    node,
    run,
    weights,
)
from support.operators import blocked, in_panels

from translate_trt.export.fused_ops.declarations import DOMAIN, OPERATORS, function
from translate_trt.export.fused_ops.fuse import FuseOps
from translate_trt.export.importers.vocabulary import BANNED_BIAS
from translate_trt.export.passes.base import Outcome
from translate_trt.export.passes.fp16_kv_cache import Fp16KvCache
from translate_trt.export.passes.int8 import DynamicInt8
from translate_trt.export.passes.top_k import TopKFirst
from translate_trt.export.roles import EMBEDDING, RESIDUAL, set_roles
from translate_trt.export.targets import DYNAMIC_OPSET, STATIC_OPSET
from translate_trt.runtime.bundle.contract import MASKED

pytestmark = pytest.mark.slow

ROWS = 24
# The second needs padding columns.
COLUMNS = [32, 20]


def fused(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if n.domain == DOMAIN]


def assert_same_bits(model: ir.Model, matches: int, *refused: str) -> Counter[str]:
    """`assert_rewrites`, and the outputs are equal to the last bit."""
    inputs = feeds(model)
    right = run(model, inputs)
    left = assert_rewrites(FuseOps(), model, matches, refused)
    for name, found in run(model, inputs).items():
        np.testing.assert_array_equal(found, right[name], err_msg=name)
    return left


# ---- matmuls ----

EPILOGUES: dict[str, list[NodeProto]] = {
    "": [node("Add", "b matmul", "y")],
    "Relu": [node("Add", "matmul b", "biased"), node("Relu", "biased", "y")],
    "Gelu": [node("Add", "matmul b", "biased"), node("Gelu", "biased", "y")],
    "Swish": [
        node("Add", "matmul b", "biased"), node("Sigmoid", "biased", "share"),
        node("Mul", "share biased", "y"),
    ],
    "Add": [node("Add", "matmul b", "biased"), node("Add", "r biased", "y")],
    "AddNorm": [
        node("Add", "matmul b", "biased"), node("Add", "biased r", "sum"),
        node("LayerNormalization", "sum gamma beta", "y", axis=-1, epsilon=1e-3),
    ],
}  # fmt: skip
#: A sum that is read beside its LayerNorm, as in models with norms first.
AND_NORM = [*EPILOGUES["AddNorm"], node("Neg", "sum", "z")]


def matmul(
    *nodes: NodeProto, rows: int = ROWS, columns: int = 32, positive: bool = False,
    outputs: tuple[str, ...] = ("y",), residual: Axes | None = None, int8: bool = True,
) -> ir.Model:  # fmt: skip
    """A matmul x W with an epilogue, in 8 bits or not."""
    constants = {
        "w": weights(rows, columns), "b": weights(columns), "beta": weights(columns, seed=1),
        "gamma": weights(columns, seed=2),
    }  # fmt: skip
    first = [node("Relu", "x", "rows")] if positive else [node("Neg", "x", "rows")]
    whole = ("N", "T", columns)
    used = {name for n in nodes for name in n.input}
    inputs: dict[str, Axes] = {"x": ["N", "T", rows]}
    if "r" in used:
        inputs["r"] = whole if residual is None else residual
    model = build(
        [*first, node("MatMul", "rows w", "matmul"), *nodes], inputs,
        dict.fromkeys(outputs, whole),
        {name: array for name, array in constants.items() if name in used | {"w"}},
        opset=DYNAMIC_OPSET,
    )  # fmt: skip
    if int8:
        DynamicInt8().run(model)
    return model


@pytest.mark.parametrize(
    ("rows", "columns", "kind"),
    [
        *((ROWS, columns, kind) for columns in COLUMNS for kind in ("8", "8Positive")),
        (ROWS, 64, ""),
        (7, 20, ""),
    ],
)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_matmuls_include_their_epilogue(epilogue: str, rows: int, columns: int, kind: str) -> None:
    positive = kind == "8Positive"
    model = matmul(
        *EPILOGUES[epilogue], rows=rows, columns=columns, positive=positive, int8=bool(kind)
    )
    name = f"Linear{kind}{epilogue}"
    assert assert_same_bits(model, 1) == {"Relu" if positive else "Neg": 1, name: 1}
    assert set(model.functions) == {(DOMAIN, name, "")}
    assert model.opset_imports[DOMAIN] == 1
    if epilogue == "AddNorm":
        assert fused(model)[0].attributes["epsilon"].as_float() == pytest.approx(1e-3)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_sum_that_is_read_beside_its_norm_is_an_output_too(columns: int, int8: bool) -> None:
    model = matmul(*AND_NORM, columns=columns, int8=int8, outputs=("y", "z"))
    name = "Linear8AddAndNorm" if int8 else "LinearAddAndNorm"
    assert assert_same_bits(model, 1) == {"Neg": 2, name: 1}
    (one,) = fused(model)
    assert [x.name for x in one.outputs] == ["sum", "y"]
    assert one.attributes["epsilon"].as_float() == pytest.approx(1e-3)


@pytest.mark.parametrize(("columns", "int8"), [(32, True), (20, True), (64, False), (100, False)])
def test_weights_are_stored_in_padded_blocks_or_panels(columns: int, int8: bool) -> None:
    model = matmul(*EPILOGUES[""], columns=columns, int8=int8)
    before = {name: x.const_value.numpy() for name, x in model.graph.initializers.items()}  # type: ignore[union-attr]
    FuseOps().run(model)
    found = [x.const_value.numpy() for x in fused(model)[0].inputs[1:]]  # type: ignore[union-attr]
    if int8:
        scales = [*before["w_scale"], *[0.0] * (32 - columns)]
        expected = [blocked(before["w_int8"]), np.array(scales, np.float32), before["b"]]
    else:
        expected = [in_panels(before["w"]), before["b"]]
    for stored, right in zip(found, expected, strict=True):
        assert stored.dtype == right.dtype
        np.testing.assert_array_equal(stored, right)
    assert set(model.graph.initializers) == {str(x.name) for x in fused(model)[0].inputs[1:]}


def test_a_matrix_that_is_no_constant_of_two_axes_is_left_alone() -> None:
    one = [node("MatMul", "x w", "y")]
    left = {"x": ["N", "T", 8], "w": ["N", 8, 5]}
    assert_left_alone(FuseOps(), build(one, left, {"y": ["N", "T", 5]}, opset=DYNAMIC_OPSET))
    stacked = build(one, {"x": ["N", "T", 8]}, {"y": ["N", "T", 5]}, {"w": weights(2, 8, 5)},
                    DYNAMIC_OPSET)  # fmt: skip
    assert_left_alone(FuseOps(), stacked)
    first = build([node("MatMul", "w x", "y")], {"x": [8, "T"]}, {"y": [5, "T"]},
                  {"w": weights(5, 8)}, DYNAMIC_OPSET)  # fmt: skip
    assert_left_alone(FuseOps(), first)


@pytest.mark.parametrize("int8", [True, False])
def test_a_matmul_without_a_bias_gets_zeros(int8: bool) -> None:
    model = matmul(node("Neg", "matmul", "y"), int8=int8)
    assert assert_same_bits(model, 1) == {"Neg": 2, "Linear8" if int8 else "Linear": 1}


def test_a_row_of_zeros_gives_the_bias() -> None:
    model = matmul(*EPILOGUES[""])
    FuseOps().run(model)
    found = run(model, {"x": np.zeros((2, 5, ROWS), np.float32)})["y"]
    np.testing.assert_array_equal(found, np.broadcast_to(weights(32), found.shape))


SUM = [node("Add", "matmul b", "biased"), node("Add", "biased r", "sum")]
# Nodes after the matmul, suffix of the operator that includes as many of them as it can, and the
# nodes that are left.
NEAR_MISSES: dict[str, tuple[list[NodeProto], str, Counter[str]]] = {
    "the norm is over two axes": (
        [*SUM, node("LayerNormalization", "sum gamma beta", "y", axis=1), node("Neg", "y", "z")],
        "Add", Counter(LayerNormalization=1, Neg=2),
    ),
    "the norm does not shift": (
        [*SUM, node("LayerNormalization", "sum gamma", "y", axis=-1), node("Neg", "y", "z")],
        "Add", Counter(LayerNormalization=1, Neg=2),
    ),
    "there are two norms": (
        [*EPILOGUES["AddNorm"], node("LayerNormalization", "sum beta gamma", "z", axis=-1)],
        "Add", Counter(Norm=2, Neg=1),
    ),
    "the matmul is read twice": (
        [node("Add", "matmul b", "y"), node("Neg", "matmul", "z")], "",
        Counter(Add=1, Neg=2),
    ),
    "the biased matmul is read twice": (
        [node("Add", "matmul b", "biased"), node("Relu", "biased", "y"),
         node("Neg", "biased", "z")],
        "", Counter(Relu=1, Neg=2),
    ),
    "GELU is the approximation": (
        [node("Add", "matmul b", "biased"), node("Gelu", "biased", "y", approximate="tanh"),
         node("Neg", "y", "z")],
        "", Counter(Gelu=1, Neg=2),
    ),
    "swish's share is read elsewhere": (
        [node("Add", "matmul b", "biased"), node("Sigmoid", "biased", "share"),
         node("Mul", "biased share", "y"), node("Neg", "share", "z")],
        "", Counter(Sigmoid=1, Mul=1, Neg=2),
    ),
    "the share is of something else": (
        [node("Add", "matmul b", "biased"), node("Sigmoid", "rows", "share"),
         node("ReduceMax", "share", "most", keepdims=1), node("Mul", "biased most", "y"),
         node("Neg", "y", "z")],
        "", Counter(Sigmoid=1, ReduceMax=1, Mul=1, Neg=2),
    ),
    "it is added to itself": (
        [node("Add", "matmul b", "biased"), node("Add", "biased biased", "y"),
         node("Neg", "y", "z")],
        "", Counter(Add=1, Neg=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("case", NEAR_MISSES)
def test_values_that_are_read_elsewhere_are_not_fused(case: str, int8: bool) -> None:
    nodes, epilogue, left = NEAR_MISSES[case]
    name = ("Linear8" if int8 else "Linear") + epilogue
    two_axes = "two axes" in case
    model = matmul(*nodes, outputs=("y", "z"), int8=int8)
    if two_axes:  # gamma and beta are then of both
        for constant in ("gamma", "beta"):
            value = model.graph.initializers[constant]
            value.const_value = ir.tensor(weights(5, 32), name=constant)
            value.shape = ir.Shape([5, 32])
    assert assert_same_bits(model, 1 + left["Norm"]) == Counter({name: 1}) + left


@pytest.mark.parametrize("int8", [True, False])
def test_a_sum_of_the_residual_stream_stays_an_output(int8: bool) -> None:
    model = matmul(*EPILOGUES["AddNorm"], int8=int8)
    total = next(n for n in model.graph if n.op_type == "LayerNormalization").inputs[0]
    assert total is not None
    total.name = "decoder.5.feed_forward"
    set_roles(model, RESIDUAL, {total.name})
    left = assert_same_bits(model, 1)
    name = "Linear8AddAndNorm" if int8 else "LinearAddAndNorm"
    assert left == {"Neg": 1, name: 1}
    assert fused(model)[0].outputs[0].name == "decoder.5.feed_forward"


@pytest.mark.parametrize("int8", [True, False])
def test_a_residual_must_have_the_axes_of_the_matmul(int8: bool) -> None:
    model = matmul(*EPILOGUES["Add"], residual=["N", 1, 32], int8=int8)
    name = "Linear8" if int8 else "Linear"
    assert assert_same_bits(model, 1) == {"Neg": 1, name: 1, "Add": 1}


@pytest.mark.parametrize("int8", [True, False])
def test_a_matmul_that_is_a_graph_output(int8: bool) -> None:
    model = matmul(*EPILOGUES["Relu"], outputs=("y", "matmul", "biased"), int8=int8)
    name = "Linear8" if int8 else "Linear"
    assert assert_same_bits(model, 1) == {"Neg": 1, name: 1, "Add": 1, "Relu": 1}


def test_a_matrix_that_has_no_blocks_is_left_alone() -> None:
    model = matmul(*EPILOGUES["AddNorm"], rows=30)
    left = assert_same_bits(model, 1, "the matrix has 30 rows, which is no multiple of 4")
    assert left["MatMulInteger"] == 1
    assert left["AddNorm"] == 1  # which any matmul may have


# ---- candidates ----


def ranked(
    *more: NodeProto, columns: int = 37, int8: bool = False, outputs: tuple[str, ...] = (),
    lookups: tuple[str, ...] = ("at",), given: bool = False, count: int = 5,
    bias: Array | None = None,
) -> ir.Model:  # fmt: skip
    """Top-k of a vocabulary's log-probabilities, and those at a column.

    Args:
        given: Whether logits are an input instead of the result of a matmul.
        bias: Bias of the logits.
    """
    matmul = [node("MatMul", "x w", "logits")]
    if bias is not None:
        matmul = [node("MatMul", "x w", "matmul"), node("Add", "matmul b", "logits")]
    nodes = [
        *([] if given else matmul),
        node("LogSoftmax", "logits", "p", axis=-1),
        node("TopK", "p count", "values indices", axis=-1),
        *(node("GatherElements", f"p {name}_column", name, axis=-1) for name in lookups), *more,
    ]  # fmt: skip
    columns_of = {f"{name}_column": ["N", "K", 1] for name in lookups}
    axes: dict[str, Axes] = {"values": ["N", "K", "C"], "indices": ["N", "K", "C"]}
    model = build(
        nodes,
        {**({"logits": ["N", "K", columns]} if given else {"x": ["N", "K", ROWS]}), **columns_of},
        {**axes, **dict.fromkeys(lookups, ("N", "K", 1)),
         **dict.fromkeys(outputs, ("N", "K", columns))},
        {**({} if given else {"w": weights(ROWS, columns)}), "count": np.array([count]),
         **({} if bias is None else {"b": bias})},
        opset=DYNAMIC_OPSET, types={"indices": "int", **dict.fromkeys(columns_of, "int")},
    )  # fmt: skip
    TopKFirst().run(model)
    if int8:
        DynamicInt8().run(model)
    return model


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("columns", [32, 37, 64])
def test_candidates(columns: int, biased: bool, int8: bool) -> None:
    bias = 9 * weights(columns, seed=3)
    bias[[0, 5]] = BANNED_BIAS
    model = ranked(int8=int8, columns=columns, bias=bias if biased else None)
    # One match more than is left: candidates are first fused as TopLogits.
    name = "Biased" * biased + ("Candidates8" if int8 else "VocabularyCandidates")
    assert assert_same_bits(model, 2) == {name: 1}
    assert {name for _, name, _ in model.functions} == {name, "TopLogits"}
    found = run(model, feeds(model))["indices"]
    assert not biased or not np.isin(found, [0, 5]).any()


@pytest.mark.parametrize("int8", [True, False])
def test_a_bias_for_all_columns_alike_is_no_bias_of_candidates(int8: bool) -> None:
    model = ranked(int8=int8, bias=np.ones(1, np.float32))
    left = assert_same_bits(model, 2)
    assert left == {"Linear8" if int8 else "Linear": 1, "Add": 1, "TopLogits": 1}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("int8", [True, False])
def test_columns_that_fill_up_are_no_candidates(int8: bool, biased: bool) -> None:
    # 15 of 32 columns are padding, or 47 of 64.
    bias = np.full(17, BANNED_BIAS, np.float32) if biased else None
    model = ranked(int8=int8, columns=17, count=17, bias=bias)
    FuseOps().run(model)
    found = run(model, feeds(model))
    for row in found["indices"].reshape(-1, 17):
        assert sorted(row) == list(range(17))
    near = 2e-3 if biased else 1e-5  # so close are floats of 1e4 to each other
    assert np.allclose(np.exp(found["values"]).sum(-1), 1, atol=near)


@pytest.mark.parametrize("lookups", [(), ("at", "beside")])
def test_another_number_of_lookups_is_left_alone(lookups: tuple[str, ...]) -> None:
    reason = "not exactly one log-probability is looked up besides the best"
    assert_left_alone(FuseOps(), ranked(lookups=lookups, given=True), reason)


def test_logits_that_are_read_elsewhere_are_made() -> None:
    model = ranked(node("Neg", "logits", "z"), int8=True, outputs=("z",))
    left = assert_same_bits(model, 2)
    assert left["TopLogits"] == 1  # the matmul has not become one that hides columns
    assert left["Linear8"] == 1
    model = ranked(node("Neg", "logits", "z"), outputs=("z",))
    left = assert_same_bits(model, 2)
    assert left == {"Neg": 1, "Linear": 1, "TopLogits": 1}
    model = ranked(int8=True)
    reader = ir.node("Neg", [next(n for n in model.graph if n.op_type == "TopK").inputs[0]])
    reader.outputs[0].name = "z"
    model.graph.append(reader)
    model.graph.outputs.append(reader.outputs[0])
    outcome = FuseOps().run(model)
    assert outcome.matches == 1
    assert [reason.split(": ")[1] for reason in outcome.refused] == [
        "the logits are read elsewhere too"
    ]


# ---- attention ----

HEADS, SIZE = 4, 8
WIDTH = HEADS * SIZE


def places(slots: str = "slots") -> list[NodeProto]:
    """Indices of sentence, head and slot, as a step computes them."""
    return [
        node("Shape", slots, "rows"), node("Concat", "rows heads", "sizes", axis=0),
        node("Expand", "sentence sizes", "each_sentence"),
        node("Expand", "head sizes", "each_head"),
        node("Unsqueeze", f"{slots} last", "slot"), node("Expand", "slot sizes", "each_slot"),
        node("Unsqueeze", "each_sentence last", "n"), node("Unsqueeze", "each_head last", "h"),
        node("Unsqueeze", "each_slot last", "p"), node("Concat", "n h p", "places", axis=-1),
    ]  # fmt: skip


def cached(parts: str = "q k v", value_places: str = "places", made: bool = True) -> ir.Model:
    """Attention over caches into which a merged projection is written."""
    taken = np.array([[4, 0, 7], [8, 1, 2]])
    constants = {
        "splits": np.array([WIDTH] * 3), "by_head": np.array([0, 0, HEADS, SIZE]),
        "heads": np.array([HEADS]), "last": np.array([-1]),
        "sentence": np.arange(2)[:, None, None], "head": np.arange(HEADS),
    }  # fmt: skip
    axes = np.broadcast_arrays(constants["sentence"], constants["head"], taken[..., None])
    if not made or value_places != "places":
        constants["given"] = np.stack(axes, -1)
    nodes = [
        *(places() if made else [node("Identity", "given", "places")]),
        node("Split", "qkv splits", parts, axis=-1),
        node("Reshape", "k by_head", "k_heads"), node("Reshape", "v by_head", "v_heads"),
        node("ScatterND", "pk places k_heads", "ks"),
        node("ScatterND", f"pv {value_places} v_heads", "vs"),
        node("MultiHeadAttention", "q ks vs _ _ bias", "y", num_heads=HEADS, scale=1.0),
    ]  # fmt: skip
    cache: Axes = ["N", HEADS, "P", SIZE]
    return build(
        nodes,
        {"qkv": ["N", "K", 3 * WIDTH], "pk": cache, "pv": cache, "bias": ["N", 1, "K", "P"],
         "slots": ["N", "K"]},
        {"y": ["N", "K", WIDTH], "ks": cache, "vs": cache}, constants, DYNAMIC_OPSET,
        {"slots": "int"}, known={"y": ["N", "K", WIDTH]},
    )  # fmt: skip


SLOTS = {"slots": np.array([[4, 0, 7], [8, 1, 2]])}


@pytest.mark.parametrize("half", [False, True])
def test_attention_over_caches(half: bool) -> None:
    model = cached()
    for old, new in (("pk", "self_key_0"), ("pv", "self_value_0"), ("ks", "next_self_key_0"),
                     ("vs", "next_self_value_0")):  # fmt: skip
        values = (*model.graph.inputs, *model.graph.outputs)
        next(x for x in values if x.name == old).name = new
    if half:
        Fp16KvCache().run(model)
    hidden = np.where(np.random.default_rng(0).random((2, 1, 3, 9)) < 0.5, MASKED, 0.0)
    given: dict[str, Array] = {**SLOTS, "bias": hidden.astype(np.float32)}
    name = "CachedAttention16" if half else "CachedAttention"
    assert assert_rewrites(FuseOps(), model, 1, given=given) == {name: 1}
    names = ["qkv", "self_key_0", "self_value_0", "slots", "bias"]
    assert [x.name for x in fused(model)[0].inputs] == names
    outputs = ["y", "next_self_key_0", "next_self_value_0"]
    assert [x.name for x in fused(model)[0].outputs] == outputs


def test_caches_in_another_order_or_in_other_places_are_left_alone() -> None:
    order = "queries, keys and values are not the outputs of one matmul, in this order"
    for parts in ("k v q", "q v k"):
        assert_left_alone(FuseOps(), cached(parts), order, given=SLOTS)
    where = "the slots that are written are not known"
    assert_left_alone(FuseOps(), cached(value_places="given"), where, given=SLOTS)
    assert_left_alone(FuseOps(), cached(made=False), where, given=SLOTS)


def over_source(
    bias: Axes, key: Axes, mean: str = "", heads: Sequence[int] = (), axis: int = 1
) -> ir.Model:
    """Attention over the source and, of these keys, the mean weights over an axis of some heads."""
    repeated = bias[2] == 1
    nodes = [
        node("Shape", "q", "beams", start=1, end=2),
        node("Concat", "ones beams one", "sizes", axis=0), node("Expand", "bias sizes", "rows"),
    ] if repeated else []  # fmt: skip
    attention = f"q k v _ _ {'rows' if repeated else 'bias'}"
    nodes.append(node("MultiHeadAttention", attention, "y", num_heads=HEADS, scale=1.0))
    constants = {"ones": np.array([1, 1]), "one": np.array([1])} if repeated else {}
    inputs: dict[str, Axes] = {"q": ["N", "K", WIDTH], "k": key, "v": key, "bias": bias}
    outputs: dict[str, Axes] = {"y": ["N", "K", WIDTH]}
    if mean:
        outputs["z"] = [None, None, None]
        constants |= {"shape": np.array([0, 0, HEADS, SIZE]), "axis": np.array([axis]),
                      "heads": np.array(heads)}  # fmt: skip
        nodes += [
            node("Reshape", "q shape", "by_head"),
            node("Transpose", "by_head", "queries", perm=[0, 2, 1, 3]),
            node("Transpose", mean, "columns", perm=[0, 1, 3, 2]),
            node("MatMul", "queries columns", "scores"), node("Add", "scores bias", "masked"),
            node("Softmax", "masked", "weights", axis=-1),
            *([node("Gather", "weights heads", "some", axis=1)] if heads else []),
            node("ReduceMean", f"{'some' if heads else 'weights'} axis", "z", keepdims=0),
        ]  # fmt: skip
    return build(nodes, inputs, outputs, constants, DYNAMIC_OPSET)


def test_attention_over_the_source() -> None:
    heads: Axes = ["N", HEADS, "S", SIZE]
    model = over_source(["N", 1, 1, "S"], heads)
    assert assert_same_bits(model, 1) == {"BeamAttention": 1}
    assert [x.name for x in fused(model)[0].inputs] == ["q", "k", "v", "bias"]
    reason = "beams have different biases"
    assert_left_alone(FuseOps(), over_source(["N", 1, "K", "S"], heads), reason)
    # Keys without heads belong to an encoder.
    reason = "queries, keys and values are not the outputs of one matmul, in this order"
    assert_left_alone(FuseOps(), over_source(["N", 1, 1, "S"], ["N", "S", WIDTH]), reason)


@pytest.mark.parametrize("heads", [(), (3, 1)])
@pytest.mark.parametrize("half", [False, True])
def test_attention_over_the_source_and_its_mean(half: bool, heads: tuple[int, ...]) -> None:
    model = (
        halves_over_source("k", "v", mean="k", heads=heads)
        if half
        else over_source(["N", 1, 1, "S"], ["N", HEADS, "S", SIZE], "k", heads)
    )
    assert assert_same_bits(model, 2) == {f"BeamAttentionMean{'16' if half else ''}": 1}
    (one,) = fused(model)
    assert one.attributes["averaged"].as_ints() == (heads or (0, 1, 2, 3))
    assert [x.name for x in one.outputs] == ["y", "z"]


@pytest.mark.parametrize(("mean", "axis"), [("v", 1), ("k", 2)])
def test_other_means_are_left_alone(mean: str, axis: int) -> None:
    model = over_source(["N", 1, 1, "S"], ["N", HEADS, "S", SIZE], mean, axis=axis)
    reasons = ["no fused attention has these weights"] if mean == "v" else []
    left = assert_rewrites(FuseOps(), model, 1, reasons)
    assert left["BeamAttention"] == left["ReduceMean"] == 1


def halves_over_source(*kept: str, **changes: Any) -> ir.Model:
    """Attention over the source, with keys, values or both in FP16."""
    model = over_source(["N", 1, 1, "S"], ["N", HEADS, "S", SIZE], **changes)
    for value in model.graph.inputs:
        if value.name in kept:
            value.name = f"cross_{value.name}"
    Fp16KvCache().run(model)
    return model


def test_attention_over_a_source_of_16_bits() -> None:
    model = halves_over_source("k", "v")
    assert assert_same_bits(model, 1) == {"BeamAttention16": 1}
    assert [x.name for x in fused(model)[0].inputs] == ["q", "cross_k", "cross_v", "bias"]
    reason = "keys and values have different element types"
    assert_left_alone(FuseOps(), halves_over_source("k"), reason)


def of_tokens(parts: str = "q k v", bias: Axes | None = None, value_size: int = SIZE) -> ir.Model:
    """Self-attention of an encoder over the result of one projection."""
    bias = bias or ["N", 1, 1, "S"]
    repeated, joined = bias[2] == 1, HEADS * value_size
    nodes = [
        node("Split", "qkv splits", parts, axis=-1),
        *([node("Shape", "q", "tokens", start=1, end=2),
           node("Concat", "ones tokens one", "sizes", axis=0),
           node("Expand", "bias sizes", "rows")] if repeated else []),
        node("MultiHeadAttention", f"q k v _ _ {'rows' if repeated else 'bias'}", "y",
             num_heads=HEADS, scale=1.0),
    ]  # fmt: skip
    constants = {"splits": np.array([WIDTH, WIDTH, joined])}
    if repeated:
        constants |= {"ones": np.array([1, 1]), "one": np.array([1])}
    outer: Axes = ["N", "S"]
    known: dict[str, Axes] = {"q": [*outer, WIDTH], "k": [*outer, WIDTH], "v": [*outer, joined]}
    return build(
        nodes, {"qkv": [*outer, 2 * WIDTH + joined], "bias": bias}, {"y": [*outer, joined]},
        constants, DYNAMIC_OPSET, known=known,
    )  # fmt: skip


def test_attention_of_tokens_over_each_other() -> None:
    model = of_tokens()
    assert assert_same_bits(model, 1) == {"SelfAttention": 1}
    assert [x.name for x in fused(model)[0].inputs] == ["qkv", "bias"]
    reason = "queries, keys and values are not the outputs of one matmul, in this order"
    assert_left_alone(FuseOps(), of_tokens("k q v"), reason)
    reason = "tokens have different biases"
    assert_left_alone(FuseOps(), of_tokens(bias=["N", 1, "S", "S"]), reason)
    reason = "keys and values have different sizes"
    assert_left_alone(FuseOps(), of_tokens(value_size=2 * SIZE), reason)


def handed_on(*more: NodeProto, outputs: tuple[str, ...] = ("cross_key_0", "cross_value_0"),
              perm: tuple[int, ...] = (0, 2, 1, 3)) -> ir.Model:  # fmt: skip
    """The encoder's split of one matmul for all keys and values into heads."""
    constants = {"splits": np.array([WIDTH, WIDTH]), "by_head": np.array([0, 0, HEADS, SIZE])}
    nodes = [node("Split", "x splits", "k v", axis=-1)]
    for part, name in (("k", "cross_key_0"), ("v", "cross_value_0")):
        nodes.append(node("Reshape", f"{part} by_head", f"{part}_heads"))
        nodes.append(node("Transpose", f"{part}_heads", name, perm=perm))
    heads: Axes = ["N", HEADS, "S", SIZE]
    known: dict[str, Axes] = {f"{part}_heads": ["N", "S", HEADS, SIZE] for part in "kv"}
    return build(
        [*nodes, *more], {"x": ["N", "S", 2 * WIDTH]}, dict.fromkeys(outputs, heads), constants,
        DYNAMIC_OPSET, known=known,
    )  # fmt: skip


@pytest.mark.parametrize("half", [False, True])
def test_heads_that_an_encoder_hands_on(half: bool) -> None:
    model = handed_on()
    if half:
        Fp16KvCache().run(model)
    name = "SplitHeads16" if half else "SplitHeads"
    assert assert_same_bits(model, 2) == {name: 2}
    key, value = fused(model)
    assert [key.inputs[0].name, value.inputs[0].name] == ["x", "x"]
    ends = [
        [one.attributes[name].as_ints()[0] for name in ("begin", "end")] for one in (key, value)
    ]
    assert ends == [[0, WIDTH], [WIDTH, 2 * WIDTH]]


def test_heads_that_stay_in_the_graph_are_left_alone() -> None:
    use = [node("Neg", "cross_key_0", "y"), node("Neg", "cross_value_0", "z")]
    assert_left_alone(FuseOps(), handed_on(*use, outputs=("y", "z")))
    assert_left_alone(FuseOps(), handed_on(perm=(0, 2, 3, 1)))


# ---- residual connections ----


def residual(*more: NodeProto, other: Axes | None = None, **attributes: float) -> ir.Model:
    nodes = [
        node("Add", "x r", "sum"),
        node("LayerNormalization", "sum gamma beta", "y", **{"axis": -1, **attributes}), *more,
    ]  # fmt: skip
    whole = ("N", "T", 8)
    outputs = dict.fromkeys(["y", *(n.output[0] for n in more)], whole)
    constants = {"gamma": weights(8), "beta": weights(8, seed=1)}
    return build(nodes, {"x": whole, "r": other or whole}, outputs, constants, DYNAMIC_OPSET)


def test_a_sum_and_its_norm() -> None:
    model = residual(epsilon=0.5)
    assert assert_same_bits(model, 1) == {"AddNorm": 1}
    assert fused(model)[0].attributes["epsilon"].as_float() == 0.5
    assert "com.microsoft" not in function("AddNorm", DYNAMIC_OPSET).opset_imports


def test_other_sums_and_norms() -> None:
    read = residual(node("Neg", "sum", "z"))
    assert assert_same_bits(read, 1) == {"AddAndNorm": 1, "Neg": 1}
    model = residual()
    model.graph[0].outputs[0].name = "encoder.embedding"
    set_roles(model, RESIDUAL, {"encoder.embedding"})
    assert assert_same_bits(model, 1) == {"AddAndNorm": 1}
    assert [x.name for x in fused(model)[0].outputs] == ["encoder.embedding", "y"]
    assert assert_same_bits(residual(other=["T", 8]), 1) == {"Add": 1, "Norm": 1}
    flat = build([node("LayerNormalization", "x gamma", "y", axis=-1)], {"x": ["N", 8]},
                 {"y": ["N", 8]}, {"gamma": weights(8)}, DYNAMIC_OPSET)  # fmt: skip
    assert_left_alone(FuseOps(), flat)


# ---- embedding ----


def embedded(
    *more: NodeProto,
    int8: bool = False,
    axis: int = 1,
    table: str = "table",
    scaled: str | None = None,
    source: str = "",
) -> ir.Model:
    """Rows of a table at tokens plus their positions.

    Args:
        more: further nodes.
        int8: whether the table is in 8 bits.
        axis: that positions of sentences get.
        table: name of the table.
        scaled: operands of a Mul.
        source: what has as many columns as there are positions; "" for positions of sentences.
    """
    found = "found" if scaled else "rows"
    positions = [
        node("Shape", source, "size", start=1, end=2),
        node("Slice", "position_table zero size zero axis", "place_row"),
    ] if source else [
        node("Gather", "position_table positions", "place", axis=0),
        node("Unsqueeze", "place axis", "place_row"),
    ]  # fmt: skip
    nodes = [
        node("Gather", f"{table} tokens", found, axis=0),
        *([node("Mul", scaled, "rows")] if scaled else []), *positions,
        node("Add", "rows place_row", "y"), *more,
    ]  # fmt: skip
    inputs: dict[str, Axes] = {"tokens": ["N", "K"], "positions": ["N"], "x": ["N", 8],
                               "given": [11, 8], "others": ["N", "K"]}  # fmt: skip
    constants = {"table": weights(11, 8), "w": weights(8, 8), "axis": np.array([axis]),
                 "zero": np.array([0]),
                 "position_table": weights(7, 8, seed=1), "vector": weights(8),
                 "c": np.array(0.5, np.float32)}  # fmt: skip
    rows: Axes = (None, None, 8)
    names = ["y", *(n.output[0] for n in more)]
    # Without a matmul the int8 pass has nothing to do.
    last = node("MatMul", "x w", "z") if int8 else node("Neg", "x", "z")
    model = build(
        [*nodes, last], inputs,
        {**dict.fromkeys(names, rows), "z": ["N", 8]}, constants, DYNAMIC_OPSET,
        {"tokens": "int", "positions": "int"},
    )  # fmt: skip
    if int8:
        set_roles(model, EMBEDDING, {table})
        DynamicInt8().run(model)
    return model


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("operands", [None, "found c", "c found"])
@pytest.mark.parametrize("source", ["", "tokens"])
def test_an_embedding_and_its_factor(source: str, operands: str | None, int8: bool) -> None:
    model = embedded(int8=int8, scaled=operands, source=source)
    name = "EmbedSource" if source else "Embed"
    counts = {f"{name}8": 1, "Linear8": 1} if int8 else {name: 1, "Neg": 1}
    assert assert_same_bits(model, 1 + int8) == counts
    (one,) = (node for node in fused(model) if node.op_type.startswith("Embed"))
    assert one.attributes["factor"].value == (0.5 if operands else 1)
    tables = ["table_int8", "table_scale"] if int8 else ["table"]
    names = [*tables, "position_table", "tokens", *([] if source else ["positions"])]
    assert [x.name for x in one.inputs] == names


def test_another_embedding_is_left_alone() -> None:
    assert_left_alone(FuseOps(), embedded(scaled="found vector"))
    one = FuseOps()
    assert_left_alone(one, embedded(axis=0), given={"positions": np.array([1])})
    assert_left_alone(one, embedded(table="given"))
    assert_left_alone(one, embedded(node("Neg", "place_row", "other")))
    assert_left_alone(one, embedded(source="others"))


# ---- the source ----


def masked(hidden: int = 0, number: float = MASKED, ids: str = "source_ids") -> ir.Model:
    """The bias that masks padding, and of each sentence as many tokens as are hidden."""
    nodes = [
        node("Shape", ids, "size", start=1, end=2), node("Squeeze", "size", "end"),
        node("Range", "zero end one", "positions"),
        *([node("Sub", "source_lengths hidden", "visible")] if hidden else []),
        node("Unsqueeze", f"{'visible' if hidden else 'source_lengths'} axis", "ends"),
        node("GreaterOrEqual", "positions ends", "padding"),
        node("Where", "padding masked shown", "row"), node("Unsqueeze", "row axes", "bias"),
    ]  # fmt: skip
    inputs: dict[str, Axes] = {"source_ids": ["N", "S"], "source_lengths": ["N"],
                               "others": ["N", "S"]}  # fmt: skip
    constants = {
        "zero": np.array(0), "one": np.array(1), "hidden": np.array(hidden), "axis": np.array([1]),
        "axes": np.array([1, 2]), "masked": np.float32(number), "shown": np.float32(0),
    }  # fmt: skip
    return build(nodes, inputs, {"bias": ["N", 1, 1, "S"]}, constants, DYNAMIC_OPSET,
                 dict.fromkeys(inputs, "int"))  # fmt: skip


LENGTHS = {"source_lengths": np.array([3, 7])}


@pytest.mark.parametrize("hidden", [0, 1])
def test_the_bias_of_the_source(hidden: int) -> None:
    model = masked(hidden)
    assert assert_rewrites(FuseOps(), model, 1, given=LENGTHS) == {"SourceBias": 1}
    assert fused(model)[0].attributes["hidden"].value == hidden


def test_another_bias_is_left_alone() -> None:
    for other in (masked(2), masked(number=-1e4), masked(ids="others")):
        assert_left_alone(FuseOps(), other, given=LENGTHS)


# ---- recurrent units ----


def recurrent(
    *more: NodeProto, one: float = 1, sizes: tuple[int, int] = (8, 8), parts: str = "g x",
    last: int = 2, parents: Axes = ("N", "K"), state: str = "state",
) -> ir.Model:  # fmt: skip
    """A recurrent unit whose next state is that of the beams' parents."""
    nodes = [
        node("Split", "gates sizes", parts, axis=-1), node("Sigmoid", "g", "f"),
        node("Mul", f"f {state}", "kept"), node("Sub", "one f", "rest"),
        node("Mul", "rest x", "new"), node("Add", "kept new", "sum"), node("Relu", "sum", "y"),
        node("Unsqueeze", "parents last", "row"), node("Shape", "state", "shape"),
        node("Expand", "row shape", "indices"),
        node("GatherElements", "sum indices", "next", axis=1), *more,
    ]  # fmt: skip
    whole: Axes = ("N", "K", 8)
    outputs = dict.fromkeys(["y", "next", *(n.output[0] for n in more)], whole)
    inputs: dict[str, Axes] = {"gates": ["N", "K", sum(sizes)], "state": whole, "parents": parents}
    constants = {"one": np.float32(one), "sizes": np.array(sizes), "last": np.array([last]),
                 "vector": weights(8)}  # fmt: skip
    return build(nodes, inputs, outputs, constants, DYNAMIC_OPSET, types={"parents": "int"})


PARENTS = {"parents": np.array([[2, 0, 0], [1, 1, 2]])}


@pytest.mark.parametrize("last", [-1, 2])
def test_a_recurrent_unit_and_the_order_of_its_state(last: int) -> None:
    model = recurrent(last=last)
    left = assert_rewrites(FuseOps(), model, 2, given=PARENTS)
    assert left == {"RecurrentUnit": 1, "FollowParents": 1}
    unit, follow = fused(model)
    assert [x.name for x in unit.inputs] == ["gates", "state"]
    assert follow.inputs[0] is unit.outputs[0]
    assert follow.inputs[1].name == "parents"


def test_other_recurrences_are_left_alone() -> None:
    for changed, reason in (
        (recurrent(node("Neg", "f", "z")), None),
        (recurrent(node("Neg", "rest", "z")), None),
        (recurrent(one=2), None),
        (recurrent(parts="x g"), "the logits of the forget gate and the input are not the halves "
         "of one value"),
        (recurrent(state="vector"), "the state is not an input of the graph with the axes of the "
         "forget gate"),
    ):  # fmt: skip
        left = assert_rewrites(FuseOps(), changed, 1, (reason,) if reason else (), PARENTS)
        assert left["FollowParents"] == left["Sigmoid"] == 1


def test_rows_of_others_than_parents_are_left_alone() -> None:
    model = recurrent(parents=("K", "N"))
    given = {"parents": np.zeros((3, 2), np.int64)}
    model.graph.inputs[2].shape = ir.Shape(["K", "N"])
    assert isinstance(FuseOps().run(model), Outcome)
    assert "FollowParents" not in {one.op_type for one in fused(model)}, given


# ---- functions ----


@pytest.mark.parametrize("name", [op.name for op in OPERATORS.values() if op.body])
def test_a_function_imports_what_its_body_uses(name: str) -> None:
    opset = STATIC_OPSET if OPERATORS[name].gpu else DYNAMIC_OPSET
    one = function(name, opset)
    assert one.opset_imports[""] == opset
    assert one.identifier() == (DOMAIN, name, "")
    assert {n.domain for n in one} == set(one.opset_imports)
    onnx.checker.check_function(ir.to_proto(one))


def test_a_graph_without_fused_operators_has_no_functions() -> None:
    model = build([node("Relu", "x", "y")], {"x": ["N"]}, {"y": ["N"]})
    assert FuseOps().run(model) == Outcome(0)
    assert not model.functions
    assert DOMAIN not in model.opset_imports

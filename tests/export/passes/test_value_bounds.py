"""Value bounds: no input exceeds them, and unknown operators have none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, helper
from support.graphs import Array, Axes, build, node, run, slots, weights

from translate_trt.export.fused_ops.declarations import DOMAIN, RMS_NORM
from translate_trt.export.fused_ops.matching import add_functions
from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.value_bounds import bound_of_constant, bounds_of

SIZE, HEADS = 8, 2
X: dict[str, Axes] = {"x": ["N", "T", SIZE]}
ROUNDING = 1 + 1e-5  # of float32, in sums of up to 100 terms
NORM = node("LayerNormalization", "x scale shift", "n", axis=-1)
RMS = helper.make_node(RMS_NORM, ["x", "scale"], ["n"], domain=DOMAIN, epsilon=1e-6)
CONSTANTS: dict[str, Array] = {
    "scale": weights(SIZE), "shift": weights(SIZE, seed=1), "row": weights(SIZE, seed=5),
    "w": weights(SIZE, 6), "b": weights(6), "tall": weights(SIZE, 24), "wide": weights(24, SIZE),
    "half": np.array(0.5, np.float32), "table": weights(11, SIZE, seed=3),
    "heads": np.array([0, 0, HEADS, SIZE // HEADS]), "joined": np.array([0, 0, SIZE]),
    "sizes": np.array([2, 3, 1]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    "three": np.array([3]), "last": np.array([-1]), "ids": np.array([0, 1, 0]),
    "halves": np.array([12, 12]),
    "wider": np.array([1, 5, SIZE]), "vector": weights(11), "square": weights(SIZE, SIZE, seed=4),
    "bias": weights(5, 5), "wide_scale": weights(5, SIZE), "rows": np.array([3, 2]),
    "zeros": np.array([0, 0, 0]), "ends": np.array([1, 3, SIZE]), "most": np.array([1, 3, 5]),
    "before": np.array([-99]), "column": weights(SIZE, 1), "stacked": weights(2, SIZE, 3),
}  # fmt: skip


def model(
    nodes: list[NodeProto], inputs: Mapping[str, Axes] = X, types: Mapping[str, str] | None = None
) -> ir.Model:
    """Build a graph whose float values are all outputs."""
    names = [name for one in nodes for name in one.output if name]
    read = {name for one in nodes for name in one.input} - set(names) - inputs.keys()
    constants = {name: CONSTANTS[name] for name in read if name}
    known: dict[str, Axes] = {}
    for one in nodes:
        if one.domain:
            heads: Axes = ["N", HEADS, "P", SIZE // HEADS]
            known |= dict(zip(one.output, (["N", "T", SIZE], heads, heads), strict=False))
        if "axis" in one.input:  # computed, so that ONNX infers no sizes
            known[one.output[0]] = ["N", "T", SIZE]
    given = build(nodes, inputs, {}, constants, opset=24, known=known, types=types)
    add_functions(given)
    made = {value.name: value for one in given.graph for value in one.outputs}
    given.graph.outputs.extend(made[name] for name in names)
    return given


def assert_bounded(
    given: ir.Model, feeds: Mapping[str, Array], known: Mapping[str, Bound] | None = None
) -> dict[str, Bound]:
    """Check that no value exceeds its bound; return the bounds by name."""
    # Bounds require that keys, for example, are not outputs of the graph.
    outputs = list(given.graph.outputs)
    given.graph.outputs.clear()
    given.graph.outputs.extend(v for v in outputs if not v.uses())
    bounds = {str(v.name): (v, b) for v, b in bounds_of(given, known or {}).items()}
    given.graph.outputs.clear()
    given.graph.outputs.extend(outputs)
    found = run(given, feeds)
    for name, (value, bound) in bounds.items():
        if name not in found:
            continue
        array = found[name].astype(np.float64)
        producer = value.producer()
        if producer is not None and producer.op_type == "Transpose":
            perm = producer.attributes["perm"].as_ints()
            if perm[-1] != len(perm) - 1:  # keys
                array = array.swapaxes(-1, -2)
        assert np.abs(array).max() <= bound.largest * ROUNDING, name
        if len(bound.columns) > 1:
            assert len(bound.columns) == array.shape[-1], name
            assert (np.abs(array) <= bound.columns * ROUNDING).all(), name
        assert np.linalg.norm(array, axis=-1).max() <= bound.norm * ROUNDING, name
    return {name: bound for name, (_, bound) in bounds.items()}


def worst(nodes: list[NodeProto]) -> list[NDArray[np.float32]]:
    """Adversarial inputs: random magnitudes, signs, single features, columns of weights."""
    random = np.random.default_rng(len(nodes))
    found = [random.standard_normal((2, 5, SIZE)) * 10.0**power for power in (-3, 0, 4)]
    found.append(np.sign(found[1]))
    found.append(np.broadcast_to(np.eye(SIZE)[:5] * 1e3, (2, 5, SIZE)))
    matrices = [CONSTANTS[name] for one in nodes for name in one.input if name in CONSTANTS]
    for array in matrices:
        if array.ndim == 2 and len(array) == SIZE:
            # LayerNorm scales each feature afterwards; this turns its output to the column.
            columns = (array * CONSTANTS["scale"][:, None]).T
            for begin in range(0, len(columns), 5):
                five = np.resize(columns[begin : begin + 5], (5, SIZE))
                found.append(np.stack([five, -five]))
    return [x.astype(np.float32) for x in found]


SPLIT = [node("Reshape", "n heads", "split"), node("Transpose", "split", "h", perm=[0, 2, 1, 3])]
SOFTMAX = [NORM, *SPLIT, node("Transpose", "split", "kt", perm=[0, 2, 3, 1]),
           node("MatMul", "h kt", "scores"),
           node("Softmax", "scores", "weights", axis=-1)]  # fmt: skip

BOUNDED = {
    "LayerNormalization": [NORM],
    "its axis counted": [node("LayerNormalization", "x scale shift", "n", axis=2)],
    "RMSNorm": [RMS],
    "gated": [RMS, node("MatMul", "n tall", "t"), node("Split", "t halves", "a c", axis=-1),
              node("Gelu", "a", "g", approximate="tanh"), node("Mul", "g c", "y")],
    "MatMul": [NORM, node("MatMul", "n w", "y")],
    "MatMul to more columns": [NORM, node("MatMul", "n tall", "t"), node("MatMul", "t wide", "y")],
    "Add of a bias": [NORM, node("MatMul", "n w", "p"), node("Add", "p b", "y")],
    "Add of a number": [NORM, node("Add", "n half", "a"), node("MatMul", "a square", "y")],
    "Add of two": [NORM, node("MatMul", "n square", "p"), node("Add", "p n", "y")],
    "feed-forward": [NORM, node("MatMul", "n tall", "t"), node("Relu", "t", "r"),
                     node("MatMul", "r wide", "y")],
    "Split": [NORM, node("MatMul", "n w", "p"), node("Split", "p sizes", "a c y", axis=-1)],
    "Split, its axis counted": [NORM, node("MatMul", "n w", "p"),
                                node("Split", "p sizes", "a c y", axis=2)],
    "heads": [NORM, *SPLIT],
    "heads joined": [NORM, *SPLIT, node("Transpose", "h", "u", perm=[0, 2, 1, 3]),
                     node("Reshape", "u joined", "y")],
    "Slice": [NORM, node("Slice", "n zero three one", "s"), node("MatMul", "s w", "y")],
    "Slice without axes": [NORM, node("Slice", "n zeros ends", "s"), node("MatMul", "s w", "y")],
    "Slice that reverses": [NORM, node("Add", "two three", "a"), node("Sub", "a three", "axis"),
                            node("Slice", "n last before axis last", "s"),
                            node("MatMul", "s w", "y")],
    "Unsqueeze": [NORM, node("Unsqueeze", "n one", "u"), node("MatMul", "u w", "y")],
    "Concat": [NORM, node("MatMul", "n square", "p"), node("Concat", "n p n", "y", axis=1)],
    "Gather of rows": [node("Gather", "table ids", "g", axis=0), node("MatMul", "g w", "y")],
    "Gather of positions": [NORM, node("Gather", "n one", "g", axis=0)],
    "Cast": [NORM, node("Cast", "n", "c", to=11), node("Cast", "c", "y", to=1)],
    "Identity": [NORM, node("Identity", "n", "i")],
    "Expand": [node("Gather", "table zero", "g"), node("Expand", "g wider", "y")],
    "scores": SOFTMAX[:-1],
    "scores and a number": [*SOFTMAX[:-1], node("Add", "scores half", "y")],
    "attention": [*SOFTMAX, node("MatMul", "weights h", "y")],
    "Attention": [NORM, *SPLIT, node("Attention", "h h h bias", "y")],
    "MultiHeadAttention": [NORM, node("MultiHeadAttention", "n n n", "y", num_heads=HEADS)],
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_no_input_passes_its_bound(name: str) -> None:
    nodes = BOUNDED[name]
    given = model(nodes)
    last = nodes[-1].output[-1]
    for x in worst(nodes):
        bounds = assert_bounded(given, {"x": x} if given.graph.inputs else {})
        assert last in bounds
        assert np.isfinite(bounds[last].largest)


@pytest.mark.parametrize("seed", range(20))
def test_no_input_passes_the_bounds_of_a_random_graph(seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes, values = [NORM], ["n"]  # all [N, T, SIZE]
    for index in range(int(random.integers(2, 9))):
        x, y, new = *random.choice(values, 2), f"v{index}"
        nodes += [
            [node("MatMul", f"{x} square", new)],
            [node("Add", f"{x} {y}", new)],
            [node("Add", f"row {x}", new)],
            [node("Add", f"half {x}", new)],
            [node("Relu", x, new)],
            [node("MatMul", f"{x} tall", f"{new}t"), node("MatMul", f"{new}t wide", new)],
            [node("LayerNormalization", f"{x} shift scale", new, axis=-1)],
            [node("Reshape", f"{x} heads", f"{new}s"),
             node("Transpose", f"{new}s", f"{new}k", perm=[0, 2, 3, 1]),
             node("Reshape", f"{y} heads", f"{new}u"),
             node("Transpose", f"{new}u", f"{new}q", perm=[0, 2, 1, 3]),
             node("MatMul", f"{new}q {new}k", f"{new}p"),
             node("Softmax", f"{new}p", f"{new}w", axis=-1),
             node("MatMul", f"{new}w {new}q", f"{new}c"),
             node("Transpose", f"{new}c", f"{new}d", perm=[0, 2, 1, 3]),
             node("Reshape", f"{new}d joined", new)],
            [node("MultiHeadAttention", f"{x} {y} {x}", new, num_heads=HEADS)],
        ][int(random.integers(9))]  # fmt: skip
        values.append(new)
    given = model(nodes)
    for x in worst(nodes):
        bounds = assert_bounded(given, {"x": x})
        assert bounds.keys() >= set(values)


def test_the_bound_of_a_matmul_of_a_norm_is_nearly_reached() -> None:
    size, columns = 64, 16
    matrix = weights(size, columns)
    matrix -= matrix.mean(0)  # what a norm writes has no mean, so it can reach these columns alone
    nodes = [node("LayerNormalization", "x one zero", "n"), node("MatMul", "n w", "y")]
    constants = {"w": matrix, "one": np.ones(size, np.float32), "zero": np.zeros(size, np.float32)}
    given = build(nodes, {"x": ["N", size]}, {"y": ["N", columns]}, constants)
    (bound,) = (b for v, b in bounds_of(given, {}).items() if v.name == "y")
    reached = run(given, {"x": np.ascontiguousarray(matrix.T)})["y"].max(0)
    # Cauchy-Schwarz is an equality for aligned vectors; epsilon and rounding are left.
    assert (reached <= bound.columns * ROUNDING).all()
    assert (bound.columns <= 1.001 * reached).all()


@pytest.mark.parametrize("operator", ["Concat", "ScatterND"])
def test_caches_hold_what_steps_wrote(operator: str) -> None:
    """Rows are appended, or written into slots that are used again."""
    scatter = operator == "ScatterND"
    nodes = [
        NORM, node("MatMul", "n square", "p"), node("Reshape", "p heads", "s"),
        node("Transpose", "s", "h", perm=[0, 2, 1, 3]),
        node("ScatterND", "self_key_0 places h", "next_self_key_0") if scatter else
        node("Concat", "self_key_0 h", "next_self_key_0", axis=2),
        node("Transpose", "next_self_key_0", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "h kt", "scores"),
    ]  # fmt: skip
    places = {"places": slots(HEADS)} if scatter else {}
    inputs: dict[str, Axes] = {
        "x": ["N", "K", SIZE], "self_key_0": ["N", HEADS, "P", SIZE // HEADS],
        **dict.fromkeys(places, (2, HEADS, 3, 3)),
    }  # fmt: skip
    given = model(nodes, inputs, types={"places": "int"})
    given.graph.outputs.clear()
    made = {value.name: value for one in given.graph for value in one.outputs}
    given.graph.outputs.extend([made["next_self_key_0"], made["scores"]])
    bounds = {str(v.name): b for v, b in bounds_of(given, {}).items()}
    np.testing.assert_array_equal(bounds["next_self_key_0"].columns, bounds["h"].columns)
    cache = np.zeros((2, HEADS, 9 if scatter else 0, SIZE // HEADS), np.float32)
    random = np.random.default_rng(0)
    for x in worst(nodes):
        rows = x.reshape(-1, SIZE)
        chosen = rows[random.integers(0, len(rows), (2, 3))]
        found = run(given, {"x": chosen, "self_key_0": cache, **places})
        cache = found["next_self_key_0"]
        for name in ("next_self_key_0", "scores"):
            assert np.abs(found[name]).max() <= bounds[name].largest * ROUNDING
    assert cache[:, :, [4, 0, 7]].any()


@pytest.mark.parametrize(
    ("last", "reduction"), [(4, "none"), (3, "add"), (3, "max")], ids=["numbers", "add", "max"]
)
def test_a_cache_whose_rows_are_mixed_has_no_bound(last: int, reduction: str) -> None:
    # Single numbers that go to any column, or numbers on top of others.
    one = node("ReduceMax", "h last", "new", keepdims=0)
    nodes = [
        NORM, *SPLIT, one if last == 4 else node("Identity", "h", "new"),
        node("ScatterND", "self_key_0 places new", "next_self_key_0", reduction=reduction),
    ]  # fmt: skip
    past: Axes = ["N", HEADS, "P", SIZE // HEADS]
    inputs: dict[str, Axes] = {
        "x": ["N", "K", SIZE], "self_key_0": past, "places": [2, HEADS, 3, last],
    }  # fmt: skip
    given = model(nodes, inputs, types={"places": "int"})
    assert "next_self_key_0" not in {str(v.name) for v in bounds_of(given, {})}


def test_static_caches_and_those_inside_an_attention() -> None:
    scatter = [NORM, *SPLIT, node("TensorScatter", "self_key_0 h at", "next_self_key_0", axis=2)]
    past: Axes = ["N", HEADS, 12, SIZE // HEADS]
    given = model(scatter, {**X, "self_key_0": past, "at": ["N"]})
    bounds = {str(v.name): b for v, b in bounds_of(given, {}).items()}
    np.testing.assert_array_equal(bounds["next_self_key_0"].columns, bounds["h"].columns)
    inside = [
        NORM,
        node("MultiHeadAttention", "n n n _ _ _ self_key_0 self_value_0",
             "y next_self_key_0 next_self_value_0", num_heads=HEADS),
    ]  # fmt: skip
    growing: Axes = ["N", HEADS, "P", SIZE // HEADS]
    given = model(inside, {**X, "self_key_0": growing, "self_value_0": growing})
    known = {str(v.name) for v in bounds_of(given, {})}
    assert {"y", "next_self_key_0", "next_self_value_0"} <= known
    # The same, but the next step is not given what this one appended.
    for output in given.graph.outputs[-2:]:
        output.name = f"other_{output.name}"
    assert "y" not in {str(v.name) for v in bounds_of(given, {})}


UNBOUNDED = {
    "an input": [node("Identity", "x", "y")],
    "an unknown operator": [NORM, node("Exp", "n", "y")],
    "Mul with an input": [NORM, node("Mul", "n x", "y")],
    "a sum with an input": [NORM, node("Add", "n x", "y")],
    "a matmul of an input": [node("MatMul", "x w", "y")],
    "a norm over more": [node("LayerNormalization", "x wide_scale", "y", axis=1)],
    "Concat with an input": [NORM, node("Concat", "n n x", "y", axis=1)],
    "Concat of features": [NORM, node("Concat", "n n", "y", axis=-1)],
    "Concat of features, counted": [NORM, node("Concat", "n n", "y", axis=2)],
    "Slice of features": [NORM, node("Slice", "n zero three two", "y")],
    "Slice of features, from the end": [NORM, node("Slice", "n zero three last", "y")],
    "Slice of features without axes": [NORM, node("Slice", "n zeros most", "y")],
    "Split of positions": [NORM, node("Split", "n rows", "a y", axis=1)],
    "Split in equal parts": [NORM, node("Split", "n", "a y", axis=-1, num_outputs=2)],
    "Unsqueeze behind features": [NORM, node("Unsqueeze", "n three", "y")],
    "Expand of features": [NORM, node("MatMul", "n column", "s"), node("Expand", "s wider", "y")],
    "Gather of features": [NORM, node("Gather", "n ids", "y", axis=2)],
    "Gather of numbers": [node("Gather", "vector ids", "y")],
    "features moved away": [NORM, node("Transpose", "n", "t", perm=[0, 2, 1]),
                            node("MatMul", "t bias", "y")],
    "features moved to the front": [NORM, node("Transpose", "n", "y", perm=[2, 0, 1])],
    "a matmul with rows": [NORM, node("MatMul", "n stacked", "y")],
    "a mean of transposed rows": [*SOFTMAX[:3], node("Softmax", "h", "weights", axis=-1),
                                  node("Transpose", "h", "t", perm=[0, 1, 3, 2]),
                                  node("MatMul", "weights t", "y")],
    "a softmax over another axis": [*SOFTMAX[:-1], node("Softmax", "scores", "weights", axis=1),
                                    node("MatMul", "weights h", "y")],
    "Attention with a past": [NORM, *SPLIT, node("Attention", "h h h _ h h", "y k v")],
}  # fmt: skip


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_nothing_can_be_said(name: str) -> None:
    given = model(UNBOUNDED[name], {"x": [2, 5, SIZE]} if "norm over" in name else X)
    assert "y" not in {str(value.name) for value in bounds_of(given, {})}


def test_bounds_of_constants() -> None:
    bound = bound_of_constant(np.array([[3.0, -4.0], [0.0, 1.0]]))
    assert bound.columns.tolist() == [3.0, 4.0]
    assert bound.norm == 5.0
    assert bound.largest == 4.0
    assert bound_of_constant(np.array(-2.0)).largest == 2.0


def test_a_number_that_is_added_counts_for_every_feature() -> None:
    zeros = Bound.of(np.zeros(4), 0.0)
    total = zeros + bound_of_constant(np.array(1.0))
    assert total.norm == pytest.approx(2.0)  # of (1, 1, 1, 1)
    assert total.columns.tolist() == [1.0] * 4
    scores = Bound(np.array([3.0]), np.inf)  # of any number of keys
    assert (scores + bound_of_constant(np.array(1.0))).norm == np.inf

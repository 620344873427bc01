"""Handmade small graphs: build, run, count nodes, compare before and after a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from translate_trt.export.passes.base import Outcome, Pass

Array = NDArray[Any]
Axes = Sequence[int | str | None]

#: Largest difference, as a share of the largest magnitude of an output, by data type.
TOLERANCES = {
    # A sum of up to 64 products in another order: 64 roundings of 6e-8 at the very most.
    "float32": 4e-6,
    # Both factors and the result are rounded to 11 bits (4.9e-4 each), twice in a row at most.
    "float16": 4e-3,
    # The same with 8 bits (3.9e-3).
    "bfloat16": 3e-2,
}

#: What a letter stands for in random inputs. All differ, so that no axis is taken for another.
SIZES = {"N": 2, "T": 5, "S": 7, "K": 3, "P": 9, "V": 11}

_TYPES = {
    "float": TensorProto.FLOAT, "int": TensorProto.INT64, "half": TensorProto.FLOAT16,
    "bool": TensorProto.BOOL,
}  # fmt: skip


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node; names are separated by spaces, `_` is an omitted input."""
    names = ["" if name == "_" else name for name in inputs.split()]
    domain = "com.microsoft" if operator in _ONNX_RUNTIMES else ""
    return helper.make_node(operator, names, outputs.split(), domain=domain, **attributes)


_ONNX_RUNTIMES = ("MatMulIntegerToFloat", "MultiHeadAttention")


def slots(heads: int) -> Array:
    """Return the indices [N, heads, K, 3] of a ScatterND into a cache [N, heads, P, D]."""
    taken = np.array([[4, 0, 7], [8, 1, 2]])
    n, k = taken.shape
    places = np.broadcast_arrays(
        np.arange(n)[:, None, None], np.arange(heads)[:, None], taken[:, None]
    )
    assert (n, k) == (SIZES["N"], SIZES["K"])
    return np.stack(places, -1)


def build(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Axes],
    outputs: Mapping[str, Axes],
    constants: Mapping[str, Array] | None = None,
    opset: int = 20,
    types: Mapping[str, str] | None = None,
    infer: bool = True,
    known: Mapping[str, Axes] | None = None,
) -> ir.Model:
    """Return a model of these nodes.

    Args:
        nodes: in order.
        inputs: axes by name; letters are symbolic.
        outputs: the same.
        constants: initializers by name.
        opset: of ONNX's operators.
        types: "int", "half" or "bool" by the name of an input or output; others are "float".
        infer: infer the shapes of what is in between.
        known: axes of what ONNX has no inference for.
    """

    def declare(values: Mapping[str, Axes]) -> list[onnx.ValueInfoProto]:
        kinds = {name: _TYPES[(types or {}).get(name, "float")] for name in values}
        return [helper.make_tensor_value_info(n, kinds[n], list(a)) for n, a in values.items()]

    initializers = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(
        nodes, "test", declare(inputs), declare(outputs), initializers,
        value_info=declare(known or {}),
    )  # fmt: skip
    domains = {"com.microsoft": 1, **{one.domain: 1 for one in nodes}, "": opset}
    imports = [helper.make_opsetid(*one) for one in domains.items()]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto) if infer else proto)


def operators(model: ir.Model) -> Counter[str]:
    """Count the nodes of each operator."""
    return Counter(n.op_type for n in model.graph)


def signature(model: ir.Model) -> list[tuple[str | None, Any, tuple[str, ...] | None]]:
    """Return name, type and axes of every input, then of every output."""
    values = (*model.graph.inputs, *model.graph.outputs)
    return [
        (v.name, v.dtype, None if v.shape is None else tuple(str(axis) for axis in v.shape))
        for v in values
    ]


def written(model: ir.Model) -> list[object]:
    """Describe a graph completely, except names of nodes and unused constants."""
    nodes = [
        (n.op_type, [x and x.name for x in n.inputs], [x.name for x in n.outputs],
         sorted((name, str(a.value)) for name, a in n.attributes.items()))
        for n in model.graph
    ]  # fmt: skip
    constants = sorted(
        (name, array.const_value.tobytes())
        for name, array in model.graph.initializers.items()
        if array.const_value is not None and array.uses()
    )
    return [signature(model), nodes, constants]


def feeds(
    model: ir.Model, seed: int = 0, given: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return random inputs: normal floats, integers below 4; `given` replaces some of them."""
    random = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [axis if isinstance(axis, int) else SIZES[str(axis)] for axis in value.shape]
        if value.dtype == ir.DataType.INT64:
            values[str(value.name)] = random.integers(0, 4, shape)
        else:
            dtype = np.float16 if value.dtype == ir.DataType.FLOAT16 else np.float32
            values[str(value.name)] = random.standard_normal(shape).astype(dtype)
    return {**values, **(given or {})}


def run(model: ir.Model, inputs: Mapping[str, Array], by_onnx: bool = False) -> dict[str, Array]:
    """Run a model in ONNX Runtime without graph optimizations; return its outputs by name.

    Or by ONNX's reference: ONNX Runtime's CPU Attention does not broadcast a bias over queries.
    """
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    if by_onnx:
        results = ReferenceEvaluator(proto).run(None, dict(inputs))
        return dict(zip([output.name for output in proto.graph.output], results, strict=True))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_close(
    found: Mapping[str, Array], right: Mapping[str, Array], kind: str = "float32"
) -> None:
    """Check integers, infinities and NaNs for equality, floats within a tolerance."""
    assert found.keys() == right.keys()
    for name, expected in right.items():
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(found[name][~finite], expected[~finite], err_msg=name)
        numbers = expected[finite].astype(np.float64)
        largest = np.abs(numbers).max() if numbers.size else 0.0
        difference = np.abs(found[name][finite].astype(np.float64) - numbers)
        bound = 0.0 if expected.dtype.kind in "ib" else TOLERANCES[kind] * largest
        assert difference.size == 0 or difference.max() <= bound, (name, difference.max(), bound)


def assert_rewrites(
    one: Pass,
    model: ir.Model,
    matches: int,
    refused: Sequence[str] = (),
    given: Mapping[str, Array] | None = None,
    by_onnx: bool = False,
) -> Counter[str]:
    """Apply a pass; check the number of matches, equal outputs, the signature and idempotence.

    Args:
        one: the pass.
        model: rewritten in place.
        matches: places that must have been rewritten.
        refused: how each reason given must begin, after the name of the place.
        given: inputs that must not be random.
        by_onnx: run what is left by ONNX's reference.

    Returns:
        How many nodes of each operator are left.
    """
    before, inputs = signature(model), feeds(model, given=given)
    right = run(model, inputs)
    outcome = one.run(model)
    assert outcome.matches == matches, outcome
    assert_reasons(outcome, refused)
    assert signature(model) == before
    assert_close(run(model, inputs, by_onnx), right)
    once = written(model)
    again = one.run(model)
    assert again.matches == 0
    assert again.refused == outcome.refused
    assert written(model) == once
    return operators(model)


def assert_reasons(outcome: Outcome, expected: Sequence[str]) -> None:
    """Check the reasons of refusals, apart from the node that each names."""
    found = [reason.split(": ", 1)[1] for reason in outcome.refused]
    assert len(found) == len(expected), found
    for one, other in zip(found, expected, strict=True):
        assert one.startswith(other), (one, other)


def assert_left_alone(
    one: Pass, model: ir.Model, *reasons: str, given: Mapping[str, Array] | None = None
) -> None:
    """Check that a pass changes nothing and gives its reasons."""
    before = written(model)
    assert_rewrites(one, model, 0, reasons, given)
    assert written(model) == before


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return normal random weights, all different."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)

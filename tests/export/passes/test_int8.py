"""Int8 quantization: matmuls and tables it covers, others it leaves, and its error."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from translate_trt.export.fused_ops.declarations import DOMAIN, SHORTLIST_CANDIDATES
from translate_trt.export.passes import int8 as dynamic_int8
from translate_trt.export.passes.int8 import DynamicInt8, quantize_weights
from translate_trt.export.roles import EMBEDDING, set_input_magnitudes, set_roles
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime.backends.onnxruntime import EXACT_INT8
from translate_trt.runtime.errors import TranslateTrtError

INT8 = ir.DataType.INT8
RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.standard_normal((24, 10)).astype(np.float32)
OTHER = RANDOM.standard_normal((24, 6)).astype(np.float32)
TABLE = RANDOM.standard_normal((30, 24)).astype(np.float32)
POSITIONS = RANDOM.standard_normal((30, 24)).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto], outputs: list[str], **constants: NDArray[np.generic]
) -> ir.Model:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", 24]),
         helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", "T"])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["N", "T", None]) for o in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    # Only the opsets that earlier passes import.
    opset = [helper.make_opsetid("", DYNAMIC_OPSET), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opset, ir_version=10)
    given = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    set_roles(given, EMBEDDING, {"embedding.table"})
    return given


def run(given: ir.Model, x: NDArray[np.float32], tokens: NDArray[np.int64] | None = None):
    proto = ir.to_proto(given)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.add_session_config_entry(*EXACT_INT8)
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    if tokens is None:
        tokens = np.zeros(x.shape[:2], np.int64)
    feeds = {"x": x, "tokens": tokens}
    return session.run(None, {v.name: feeds[v.name] for v in session.get_inputs()})


def matmuls() -> ir.Model:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["x", "v"], ["z"]),
    ]
    return model(nodes, ["y", "z"], w=WEIGHTS, v=OTHER)


def operators(given: ir.Model) -> list[str]:
    return [node.op_type for node in given.graph]


def test_matmuls_become_8_bit_and_share_their_activation() -> None:
    given = matmuls()
    assert DynamicInt8().run(given).matches == 2
    names = operators(given)
    assert names.count("MatMulInteger") == 2
    assert names.count("MatMul") == 0
    assert names.count("QuantizeLinear") == 1  # quantized once for both readers
    types = {name: value.dtype for name, value in given.graph.initializers.items()}
    assert types["w_int8"] == types["v_int8"] == INT8
    assert "w" not in types
    assert [output.name for output in given.graph.outputs] == ["y", "z"]


@pytest.mark.parametrize(("columns", "slices"), [(10, 1), (16, 0), (32, 0), (33, 1)])
def test_columns_are_filled_up_for_the_kernel_and_cut_off_again(columns: int, slices: int) -> None:
    weights = RANDOM.standard_normal((24, columns)).astype(np.float32)
    given = model([helper.make_node("MatMul", ["x", "w"], ["y"])], ["y"], w=weights)
    x = RANDOM.standard_normal((8, 16, 24)).astype(np.float32)  # 128 rows
    (right,) = run(given, x)
    DynamicInt8().run(given)
    shape = given.graph.initializers["w_int8"].shape
    assert shape is not None
    assert shape[1] % 16 == 0
    assert operators(given).count("Slice") == slices
    (found,) = run(given, x)
    assert found.shape == right.shape == (8, 16, columns)
    assert np.abs(found - right).max() < 0.03 * np.abs(right).max()
    alone = [run(given, x[:1, row : row + 1])[0][0, 0] for row in range(3)]
    np.testing.assert_array_equal(found[0, :3], alone)


def test_outputs_are_within_the_8_bit_step() -> None:
    x = RANDOM.standard_normal((3, 5, 24)).astype(np.float32)
    expected = run(matmuls(), x)
    given = matmuls()
    DynamicInt8().run(given)
    for found, right, weights in zip(run(given, x), expected, (WEIGHTS, OTHER), strict=True):
        # Each factor is off by at most half a step of largest / 127, so a dot product by:
        x_step = np.abs(x).max(-1, keepdims=True) / 127 / 2
        w_step = np.abs(weights).max(0) / 127 / 2
        bound = x_step * np.abs(weights).sum(0) + np.abs(x).sum(-1, keepdims=True) * w_step
        bound = bound + 24 * x_step * w_step
        assert (np.abs(found - right) <= 1.001 * bound + 1e-5).all()
        assert np.abs(found - right).mean() < 0.03 * np.abs(right).mean()
        assert (found != right).any()


def test_a_row_alone_and_in_a_batch_is_the_same_to_the_bit() -> None:
    given = matmuls()
    DynamicInt8().run(given)
    x = RANDOM.standard_normal((3, 3, 24)).astype(np.float32)
    x[2] *= 1e4  # a neighbour that would ruin a shared scale
    x[0, 1] = x[1, 2] = 0
    together = run(given, x)
    for row in np.ndindex(3, 3):
        for alone, batch in zip(run(given, x[row][None, None]), together, strict=True):
            np.testing.assert_array_equal(alone[0, 0], batch[row])
            assert np.isfinite(batch[row]).all()
            assert x[row].any() or not batch[row].any()


# ---- outputs of a ReLU ----


def rectified(*more: str) -> ir.Model:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
        *[helper.make_node("MatMul", ["x", "v"], [name]) for name in more],
    ]
    constants = {"w": WEIGHTS, **({"v": OTHER} if more else {})}
    return model(nodes, ["y", *more], **constants)


def test_what_has_no_sign_is_stored_without_one() -> None:
    x = RANDOM.standard_normal((3, 5, 24)).astype(np.float32)
    given = rectified("z")
    right = run(given, x)
    DynamicInt8().run(given)
    proto = ir.to_proto(given)
    zero_points = {
        one.output[0]: numpy_helper.to_array(constant).item()
        for one in proto.graph.node if one.op_type == "MatMulInteger"
        for constant in proto.graph.initializer if constant.name == one.input[2]
    }  # fmt: skip
    assert sorted(zero_points.values()) == [0, 128]
    y, z = run(given, x)
    # Steps are largest / 255 without a sign and largest / 127 with one.
    positive = np.maximum(x, 0)
    for found, expected, value, weights, steps in (
        (y, right[0], positive, WEIGHTS, 255), (z, right[1], x, OTHER, 127),
    ):  # fmt: skip
        x_step = np.abs(value).max(-1, keepdims=True) / steps / 2
        w_step = np.abs(weights).max(0) / 127 / 2
        bound = x_step * np.abs(weights).sum(0) + np.abs(value).sum(-1, keepdims=True) * w_step
        assert (np.abs(found - expected) <= 1.001 * (bound + 24 * x_step * w_step) + 1e-5).all()


def test_the_largest_of_a_relu_takes_the_largest_byte() -> None:
    x = np.abs(RANDOM.standard_normal((1, 4, 24))).astype(np.float32)
    given = rectified()
    DynamicInt8().run(given)
    (quantize,) = (one for one in given.graph if one.op_type == "QuantizeLinear")
    output = quantize.outputs[0]
    output.shape = ir.Shape(["N", "T", 24])
    given.graph.outputs.append(output)
    values = run(given, x)[1]
    assert values.dtype == np.uint8
    assert (values.max(-1) == 255).all()
    np.testing.assert_array_equal(values.argmax(-1), x.argmax(-1))
    step = x.max(-1, keepdims=True) / 255
    assert (np.abs(values * step - x) <= 0.501 * step).all()


def test_a_relu_that_rests_gives_zeros() -> None:
    given = rectified()
    DynamicInt8().run(given)
    x = RANDOM.standard_normal((1, 3, 24)).astype(np.float32)
    x[0, 1] = -np.abs(x[0, 1])
    (found,) = run(given, x)
    np.testing.assert_array_equal(found[0, 1], 0.0)
    assert found[0, 0].any()


# ---- the vocabulary ----


def ranked(
    columns: int, k: int, seed: int = 0, bias: NDArray[np.float32] | None = None
) -> ir.Model:
    """Build a top-k of logits beside their softmax."""
    weights = np.random.default_rng(seed).standard_normal((24, columns)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits" if bias is None else "matmul"]),
        *([] if bias is None else [helper.make_node("Add", ["matmul", "b"], ["logits"])]),
        helper.make_node("TopK", ["logits", "k"], ["best", "index"]),
        helper.make_node("Softmax", ["logits"], ["shares"]),
        helper.make_node("GatherElements", ["shares", "index"], ["share"], axis=-1),
        helper.make_node("Cast", ["index"], ["column"], to=TensorProto.FLOAT),
    ]
    more = {} if bias is None else {"b": bias}
    return model(nodes, ["best", "column", "share"], w=weights, k=np.array([k]), **more)


@pytest.mark.parametrize("columns", [17, 31, 32, 320, 333])
def test_columns_that_fill_up_the_vocabulary_are_never_chosen(columns: int) -> None:
    given = ranked(columns, k=columns)  # all of them
    x = RANDOM.standard_normal((3, 5, 24)).astype(np.float32)
    x[1] *= 1e4
    x[2] *= 1e-4
    x[0, 3] = 0
    right = run(given, x)
    assert DynamicInt8().run(given).matches == 1
    names = operators(given)
    assert names.count("MatMulIntegerToFloat") == 1
    assert names.count("Slice") == names.count("MatMulInteger") == 0
    best, column, share = run(given, x)
    expected = np.broadcast_to(np.arange(columns), column.shape)
    np.testing.assert_array_equal(np.sort(column, -1), expected)
    assert np.abs(best).max() < 1e9
    # Probabilities cover the real columns only; those of a row of zeros are uniform.
    some = np.abs(x).max(-1) > 0
    np.testing.assert_allclose(share[some].sum(-1), 1, rtol=1e-5)
    assert np.ptp(share[~some]) == 0
    for row in np.ndindex(3, 5):
        close = np.abs(best[row] - right[0][row]).max()
        assert close <= 0.03 * np.abs(right[0][row]).max()


@pytest.mark.parametrize("columns", [32, 333])
def test_a_bias_is_added_to_what_rows_have_scaled(columns: int) -> None:
    bias = RANDOM.standard_normal(columns).astype(np.float32)
    bias[3] = -1e4
    given = ranked(columns, k=columns, bias=bias)
    x = RANDOM.standard_normal((2, 3, 24)).astype(np.float32)
    x[0, 1] = 0
    right = run(given, x)
    assert DynamicInt8().run(given).matches == 1
    assert operators(given).count("MatMulIntegerToFloat") == 1
    best, column, share = run(given, x)
    assert (column[..., -1] == 3).all()
    np.testing.assert_array_equal(best[0, 1], np.sort(bias)[::-1])
    np.testing.assert_allclose(share.sum(-1), 1, rtol=1e-5)
    close = 0.03 * np.abs(right[0][..., :-1]).max()
    np.testing.assert_allclose(best[..., :-1], right[0][..., :-1], rtol=0, atol=close)


def test_a_row_of_logits_alone_and_in_a_batch_is_the_same_to_the_bit() -> None:
    given = ranked(333, k=9)
    DynamicInt8().run(given)
    x = RANDOM.standard_normal((8, 4, 24)).astype(np.float32)
    x[5] *= 1e4
    together = run(given, x)
    for index in range(8):
        for alone, batch in zip(run(given, x[index : index + 1]), together, strict=True):
            np.testing.assert_array_equal(alone[0], batch[index])


def test_a_matmul_that_is_read_otherwise_has_no_column_too_many() -> None:
    given = ranked(333, k=9)
    logits = next(v for one in given.graph for v in one.outputs if v.name == "logits")
    given.graph.outputs.append(logits)
    DynamicInt8().run(given)
    assert operators(given).count("MatMulIntegerToFloat") == 0
    x = RANDOM.standard_normal((1, 2, 24)).astype(np.float32)
    assert run(given, x)[3].shape == (1, 2, 333)


def test_near_misses_are_left_alone() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["b"]),  # no constant
        helper.make_node("MatMul", ["x", "stack"], ["c"]),  # a constant, but no matrix
        helper.make_node("Gather", ["positions", "tokens"], ["d"]),  # not an embedding table
    ]
    stack = RANDOM.standard_normal((1, 24, 4)).astype(np.float32)
    given = model(nodes, ["a", "b", "c", "d"], w=WEIGHTS, stack=stack, positions=POSITIONS)
    assert DynamicInt8().run(given).matches == 1
    assert operators(given).count("MatMul") == 2
    assert given.graph.initializers["positions"].dtype == ir.DataType.FLOAT


def test_embedding_tables_are_stored_in_8_bits_per_row() -> None:
    nodes = [
        helper.make_node("Gather", ["embedding.table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    constants = {"embedding.table": TABLE, "w": WEIGHTS}
    given = model(
        [*nodes, helper.make_node("Identity", ["x"], ["same"])], ["e", "y", "same"], **constants
    )
    assert DynamicInt8().run(given).matches == 2
    assert given.graph.initializers["embedding.table_int8"].dtype == INT8
    tokens = np.array([[0, 7, 29]])
    found = run(given, np.zeros((1, 3, 24), np.float32), tokens)[0]
    step = steps(TABLE, 1)[tokens][..., None]
    assert (np.abs(found - TABLE[tokens]) <= 0.501 * step).all()


def test_a_table_that_two_read_is_quantized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Gather", ["embedding.table", "tokens"], ["e"]),
        helper.make_node(
            SHORTLIST_CANDIDATES,
            ["e", "embedding.table", "shortlist", "column", "count"],
            ["values", "indices", "at_column"],
            domain=DOMAIN,
        ),
    ]
    given = model(nodes, ["values"], **{"embedding.table": TABLE})
    axes: list[int] = []

    def counted(
        weights: NDArray[np.float32], axis: int
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        axes.append(axis)
        return quantize_weights(weights, axis)

    monkeypatch.setattr(dynamic_int8, "quantize_weights", counted)
    assert DynamicInt8().run(given).matches == 2
    assert axes == [1]
    (lookup,) = (n for n in given.graph if n.op_type == "Gather" and n.outputs[0].dtype == INT8)
    (listed,) = (n for n in given.graph if n.op_type == f"{SHORTLIST_CANDIDATES}8")
    assert lookup.inputs[0] is listed.inputs[1]
    assert set(given.graph.initializers) == {"embedding.table_int8", "embedding.table_scale"}


def test_a_second_run_finds_nothing_and_changes_nothing() -> None:
    given = matmuls()
    DynamicInt8().run(given)
    before = operators(given)
    with pytest.raises(TranslateTrtError, match="constant matrix"):
        DynamicInt8().run(given)
    assert operators(given) == before


def steps(weights: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Scales for which neither a weight nor a sum of neighbours has more than 127 steps."""
    columns = weights if axis == 0 else weights.T
    sums = columns[::2] + columns[1::2]
    return np.maximum(np.abs(columns).max(0), np.abs(sums).max(0)) / 127


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_are_per_column_or_per_row(axis: int) -> None:
    weights = WEIGHTS * np.logspace(-3, 3, 10, dtype=np.float32)
    quantized, scales = quantize_weights(weights, axis)
    np.testing.assert_allclose(scales, steps(weights, axis), rtol=1e-6)
    assert quantized.dtype == np.int8
    columns = (quantized if axis == 0 else quantized.T).astype(int)
    assert 127 <= np.abs(columns[::2] + columns[1::2]).max() <= 128
    error = np.abs(quantized * np.expand_dims(scales, axis) - weights)
    assert (error <= 0.501 * np.expand_dims(scales, axis)).all()


def test_a_column_of_zeros() -> None:
    quantized, scales = quantize_weights(np.zeros((4, 2), np.float32), axis=0)
    assert (quantized == 0).all()
    assert (scales > 0).all()


# ---- recorded activation scales ----


def steps_of(x: NDArray[np.float32], multiplier: float) -> NDArray[np.float32]:
    """Quantize an activation as intgemm does."""
    return np.clip(np.rint(x * np.float32(multiplier)), -127, 127)


def output_of(given: ir.Model, operator: str) -> list[ir.Value]:
    """Make the results of an operator outputs of the graph, and return them."""
    found = [node.outputs[0] for node in given.graph if node.op_type == operator]
    for value in found:
        value.shape = ir.Shape(["N", "T", 24])
        given.graph.outputs.append(value)
    return found


def test_a_recorded_scale_rounds_and_clips_as_intgemm_does() -> None:
    multiplier = 42.5
    given = matmuls()
    set_input_magnitudes(given, {"w": 127 / multiplier, "v": 127 / multiplier})
    assert DynamicInt8().run(given).matches == 2
    assert len(output_of(given, "QuantizeLinear")) == 1  # once for both readers
    x = (4 * RANDOM.standard_normal((3, 50, 24))).astype(np.float32)
    # Halfway between two steps, and where the integers end.
    x[0, 0, :8] = np.float32([0.5, 1.5, -0.5, -2.5, 126.5, -126.5, 127.5, -127.5]) / 42.5
    x[0, 1, :4] = [1e9, -1e9, 127.49 / multiplier, -128 / multiplier]
    y, z, quantized = run(given, x)
    expected = steps_of(x, multiplier)
    assert quantized.dtype == np.uint8
    np.testing.assert_array_equal(quantized.astype(int) - 128, expected)
    assert (np.abs(x * multiplier) > 127.5).mean() > 0.2  # clipped
    assert quantized.min() == 1
    for found, weights in ((y, WEIGHTS), (z, OTHER)):
        integers, scales = quantize_weights(weights, axis=0)
        np.testing.assert_allclose(
            found, expected @ integers * scales / np.float32(multiplier), rtol=1e-5, atol=1e-5
        )


def test_activations_of_other_scales_are_quantized_apart() -> None:
    given = matmuls()
    set_input_magnitudes(given, {"w": 2.0, "v": 3.0})
    DynamicInt8().run(given)
    x = RANDOM.standard_normal((1, 4, 24)).astype(np.float32) * 2
    output_of(given, "QuantizeLinear")
    *_, of_w, of_v = run(given, x)
    np.testing.assert_array_equal(of_w.astype(int) - 128, steps_of(x, 127 / 2))
    np.testing.assert_array_equal(of_v.astype(int) - 128, steps_of(x, 127 / 3))


@pytest.mark.parametrize("columns", [10, 32])
@pytest.mark.parametrize("of_relu", [False, True])
def test_a_bias_belongs_to_a_matmul_of_a_recorded_scale(columns: int, of_relu: bool) -> None:
    weights = RANDOM.standard_normal((24, columns)).astype(np.float32)
    bias = RANDOM.standard_normal(columns).astype(np.float32)
    nodes = [
        helper.make_node("Relu" if of_relu else "Identity", ["x"], ["input"]),
        helper.make_node("MatMul", ["input", "w"], ["matmul"]),
        helper.make_node("Add", ["matmul", "b"], ["y"]),
    ]
    given = model(nodes, ["y"], w=weights, b=bias)
    set_input_magnitudes(given, {"w": 2.5})
    DynamicInt8().run(given)
    assert operators(given).count("Add") == 0
    x = RANDOM.standard_normal((2, 9, 24)).astype(np.float32)
    (found,) = run(given, x)
    integers, scales = quantize_weights(weights, axis=0)
    steps = steps_of(np.maximum(x, 0) if of_relu else x, 127 / 2.5)
    expected = steps @ integers * scales * np.float32(2.5 / 127) + bias
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for row in np.ndindex(2, 9):  # no row depends on others
        (alone,) = run(given, x[row][None, None])
        np.testing.assert_array_equal(alone[0, 0], found[row])


@pytest.mark.parametrize("columns", [32, 333])
@pytest.mark.parametrize("biased", [False, True])
def test_a_vocabulary_with_a_recorded_scale(columns: int, biased: bool) -> None:
    bias = RANDOM.standard_normal(columns).astype(np.float32) if biased else None
    given = ranked(columns, k=columns, bias=bias)
    set_input_magnitudes(given, {"w": 3.5})
    x = RANDOM.standard_normal((2, 3, 24)).astype(np.float32)
    right = run(given, x)
    assert DynamicInt8().run(given).matches == 1
    names = operators(given)
    assert names.count("MatMulIntegerToFloat") == names.count("QuantizeLinear") == 1
    assert names.count("Slice") == names.count("Add") == 0
    best, column, share = run(given, x)
    expected = np.broadcast_to(np.arange(columns), column.shape)
    np.testing.assert_array_equal(np.sort(column, -1), expected)
    np.testing.assert_allclose(share.sum(-1), 1, rtol=1e-5)
    assert np.abs(best - right[0]).max() <= 0.05 * np.abs(right[0]).max()


def test_scales_that_a_pass_lost_are_an_error() -> None:
    given = matmuls()
    set_input_magnitudes(given, {"w": 2.0})
    with pytest.raises(TranslateTrtError, match="recorded activation"):
        DynamicInt8().run(given)


def test_integers_of_merged_matrices_are_restored() -> None:
    """Matrices of one scale each, of which no column but one has the largest integer."""
    integers = RANDOM.integers(-90, 91, (24, 30)).astype(np.int8)
    integers[3, 4], integers[5, 17], integers[0, 29] = 127, -127, 127
    integers[:, 8] = 0
    scales = np.repeat(np.float32([0.013, 0.0007, 3.3]), 10)
    weights = (integers * scales).astype(np.float32)
    for axis, one in ((0, weights), (1, weights.T)):
        found, steps = quantize_weights(one, axis)
        np.testing.assert_array_equal(found, integers if axis == 0 else integers.T)
        some = np.arange(30) != 8
        np.testing.assert_allclose(steps[some], scales[some], rtol=1e-6)


def test_columns_beside_stored_integers_are_quantized_as_usual() -> None:
    """Far smaller numbers than a step of the stored matrix, and far larger ones."""
    stored = RANDOM.integers(-90, 91, (24, 3)).astype(np.float32)
    stored[0, 0] = 127
    others = RANDOM.standard_normal((24, 2)).astype(np.float32) * np.float32([1e-6, 1e6])
    quantized, scales = quantize_weights(np.concatenate([stored, others], axis=1), axis=0)
    np.testing.assert_array_equal(quantized[:, :3], stored)
    np.testing.assert_allclose(scales[3:], steps(others, 0), rtol=1e-6)

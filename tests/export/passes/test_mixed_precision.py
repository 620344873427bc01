"""Mixed precision: types, numerical results, caches, and matmuls that stay in FP32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto
from support.graphs import (
    Array,
    Axes,
    assert_close,
    build,
    feeds,
    node,
    operators,
    run,
    signature,
    slots,
    weights,
    written,
)

from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.mixed_precision import MixedPrecision
from translate_trt.export.roles import EMBEDDING, set_roles
from translate_trt.runtime.bundle.contract import MASKED
from translate_trt.runtime.errors import TranslateTrtError

FLOAT, FP16, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
SIZE, HEADS, INNER = 16, 2, 24
SCALED = 0.3  # weights of this size keep a layer's values near 1
#: Of a LayerNorm that neither scales nor shifts.
NORM: dict[str, Array] = {
    "scale": np.ones(SIZE, np.float32), "shift": np.zeros(SIZE, np.float32),
}  # fmt: skip


def norm(x: str, y: str) -> NodeProto:
    return node("LayerNormalization", f"{x} scale shift", y, axis=-1)


def matmul(x: str, name: str, y: str) -> list[NodeProto]:
    return [node("MatMul", f"{x} w_{name}", f"{y}_p"), node("Add", f"{y}_p b_{name}", y)]


def heads(x: str, perm: list[int]) -> list[NodeProto]:
    return [
        node("Reshape", f"{x} heads", f"{x}_s"),
        node("Transpose", f"{x}_s", f"{x}_h", perm=perm),
    ]


def layer(**changes: Array) -> ir.Model:
    """Build a post-norm layer with embedding, caches and log-probabilities."""
    nodes = [
        node("Gather", "embedding ids", "e"), node("Gather", "positions at", "where"),
        node("Add", "e where", "x"), norm("x", "n"),
        *matmul("n", "q", "q"), *matmul("n", "k", "k"), *matmul("n", "v", "v"),
        *heads("q", [0, 2, 1, 3]), *heads("k", [0, 2, 1, 3]), *heads("v", [0, 2, 1, 3]),
        node("ScatterND", "self_key_0 places k_h", "next_self_key_0"),
        node("ScatterND", "self_value_0 places v_h", "next_self_value_0"),
        node("Transpose", "next_self_key_0", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q_h kt", "scores"), node("Add", "scores bias", "biased"),
        node("Softmax", "biased", "weights", axis=-1),
        node("MatMul", "weights next_self_value_0", "context"),
        node("Transpose", "context", "turned", perm=[0, 2, 1, 3]),
        node("Reshape", "turned joined", "c"), *matmul("c", "o", "o"),
        node("Add", "n o", "sum1"), norm("sum1", "n1"),
        *matmul("n1", "inner", "inner"), node("Relu", "inner", "relu"),
        *matmul("relu", "outer", "outer"), node("Add", "n1 outer", "sum2"), norm("sum2", "n2"),
        node("MatMul", "n2 vocabulary", "logits"),
        node("LogSoftmax", "logits", "log_probs", axis=-1),
        node("Identity", "weights", "attention"),
    ]  # fmt: skip
    constants: dict[str, Array] = {
        "embedding": weights(11, SIZE), "positions": weights(12, SIZE, seed=1),
        "scale": 1 + 0.1 * weights(SIZE), "shift": 0.1 * weights(SIZE, seed=1),
        "heads": np.array([0, 0, HEADS, SIZE // HEADS]), "joined": np.array([0, 0, SIZE]),
        "vocabulary": SCALED * weights(SIZE, 11), "places": slots(HEADS),
        "w_inner": SCALED * weights(SIZE, INNER), "b_inner": SCALED * weights(INNER),
        "w_outer": SCALED * weights(INNER, SIZE), "b_outer": SCALED * weights(SIZE),
    }  # fmt: skip
    for index, name in enumerate("qkvo"):
        constants[f"w_{name}"] = SCALED * weights(SIZE, SIZE, seed=index)
        constants[f"b_{name}"] = SCALED * weights(SIZE, seed=index)
    past: Axes = ["N", HEADS, "P", SIZE // HEADS]
    inputs: dict[str, Axes] = {
        "ids": ["N", "K"], "at": ["N", "K"], "bias": ["N", 1, "K", "P"], "self_key_0": past,
        "self_value_0": past,
    }  # fmt: skip
    outputs: dict[str, Axes] = {
        "log_probs": ["N", "K", 11], "attention": ["N", HEADS, "K", "P"],
        "next_self_key_0": past, "next_self_value_0": past,
    }  # fmt: skip
    model = build(
        nodes, inputs, outputs, {**constants, **changes}, types={"ids": "int", "at": "int"}
    )
    set_roles(model, EMBEDDING, {"embedding"})
    return model


def types(model: ir.Model) -> dict[str, ir.DataType | None]:
    """Types of all values, as ONNX infers them from inputs and constants."""
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    inferred = ir.from_proto(proto)
    values = [*inferred.graph.inputs, *inferred.graph.initializers.values()]
    values += [output for one in inferred.graph for output in one.outputs]
    return {str(value.name): value.dtype for value in values}


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_matmuls_and_caches_have_16_bits_and_islands_32(dtype: ir.DataType) -> None:
    model = layer()
    before = signature(model)
    outcome = MixedPrecision(dtype).run(model)
    assert operators(model)["MatMul"] == 9
    fine = dtype == FP16  # precise enough for logits
    assert outcome.matches == (9 if fine else 8)
    assert outcome.refused == (
        () if fine else ("logits: kept in FP32: candidates are ranked by it",)
    )
    found = types(model)
    for one in model.graph:
        kinds = {found[str(x.name)] for x in one.inputs if x is not None}
        if one.op_type == "MatMul":
            assert kinds == {FLOAT if one.outputs[0].name == "logits" and not fine else dtype}
        if one.op_type in ("LayerNormalization", "Softmax", "LogSoftmax"):
            assert kinds == {FLOAT}
    for name in ("x", "sum1", "sum2", "biased", "log_probs", "attention"):  # residuals, scores
        assert found[name] == FLOAT, name
    for name in ("relu", "next_self_key_0", "next_self_value_0", "self_key_0", "self_value_0"):
        assert found[name] == dtype, name
    stored = {name: value.dtype for name, value in model.graph.initializers.items()}
    assert stored["positions"] == stored["scale"] == FLOAT
    for name in ("embedding", "w_q", "b_inner"):
        assert name not in stored
    assert ("vocabulary" in stored) == (not fine)
    assert len([n for n, kind in stored.items() if kind == dtype]) == (12 if fine else 11)
    # Names and axes are unchanged; only the caches change their type.
    for (name, kind, axes), (old, _, old_axes) in zip(signature(model), before, strict=True):
        assert (name, axes) == (old, old_axes)
        expected = ir.DataType.INT64 if name in ("ids", "at") else FLOAT
        assert kind == (dtype if "self_" in str(name) else expected)


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_a_second_run_changes_nothing(dtype: ir.DataType) -> None:
    model = layer()
    MixedPrecision(dtype).run(model)
    before = written(model)
    assert MixedPrecision(dtype).run(model).matches == 0
    assert written(model) == before


def test_fp16_is_near_fp32() -> None:
    model = layer()
    inputs = feeds(model)
    right = run(model, inputs)
    MixedPrecision(FP16).run(model)
    caches = {n: a.astype(np.float16) for n, a in inputs.items() if n.startswith("self_")}
    found = run(model, {**inputs, **caches})
    assert found["next_self_key_0"].dtype == np.float16
    assert found["log_probs"].dtype == np.float32
    assert_close(found, right, "float16")
    assert any((found[name] != right[name]).any() for name in right)


@pytest.mark.parametrize("value", [65520.0, -1e5, np.nan])
def test_weights_beyond_fp16_are_refused_by_name(value: float) -> None:
    table = weights(11, SIZE)
    table[3, 4] = value
    message = "the weights embedding reach .*, beyond FP16's 65504; choose a bf16 or fp32"
    with pytest.raises(TranslateTrtError, match=message):
        MixedPrecision(FP16).run(layer(embedding=table))
    assert MixedPrecision(BF16).run(layer(embedding=table)).matches == 8


@pytest.mark.parametrize(
    ("value", "reason"), [(7e4, "the result could reach"), (np.nan, "no bound")]
)
def test_a_matrix_beyond_fp16_leaves_its_matmul_in_fp32(value: float, reason: str) -> None:
    matrix = SCALED * weights(SIZE, INNER)
    matrix[3, 4] = value
    model = layer(w_inner=matrix)
    outcome = MixedPrecision(FP16).run(model)
    assert outcome.refused[0].startswith("inner_p: kept in FP32: ")
    assert reason in outcome.refused[0]
    assert model.graph.initializers["w_inner"].dtype == FLOAT


# ---- values beyond the range of FP16 ----


def feed_forward() -> ir.Model:
    """Feed-forward layer whose second matmul exceeds 65,504 for ordinary inputs."""
    nodes = [
        norm("x", "n"), *matmul("n", "inner", "inner"), node("Relu", "inner", "relu"),
        *matmul("relu", "outer", "outer"), node("Add", "n outer", "sum"), norm("sum", "y"),
    ]  # fmt: skip
    constants = NORM | {
        "w_inner": 100 * weights(SIZE, INNER), "b_inner": weights(INNER),
        "w_outer": 100 * weights(INNER, SIZE), "b_outer": weights(SIZE),
    }  # fmt: skip
    rows: Axes = ["N", "T", SIZE]
    return build(nodes, {"x": rows}, {"y": rows}, constants)


def test_a_matmul_that_could_overflow_stays_in_fp32() -> None:
    model = feed_forward()
    inputs = feeds(model)
    right = run(model, inputs)
    outcome = MixedPrecision(FP16).run(model)
    assert outcome.matches == 1
    (reason,) = outcome.refused
    assert reason.startswith("outer_p: kept in FP32: the result could reach")
    assert_close(run(model, inputs), right, "float16")


def test_a_bias_that_lifts_the_result_beyond_counts() -> None:
    rows: Axes = ["N", "T", SIZE]
    constants = NORM | {"w_a": weights(SIZE, SIZE), "b_a": np.full(SIZE, 4e4, np.float32)}
    model = build([norm("x", "n"), *matmul("n", "a", "y")], {"x": rows}, {"y": rows}, constants)
    (reason,) = MixedPrecision(FP16).run(model).refused
    assert reason.startswith("y_p: kept in FP32: the result could reach 4e+04")


def test_a_value_without_a_bound_stays_in_fp32() -> None:
    rows: Axes = ["N", "T", SIZE]
    model = build([node("MatMul", "x w", "y")], {"x": rows}, {"y": rows},
                  {"w": weights(SIZE, SIZE)})  # fmt: skip
    before = written(model)
    assert MixedPrecision(FP16).run(model).refused == ("y: kept in FP32: no bound is known for x",)
    assert written(model) == before
    bound = Bound(np.full(SIZE, 10.0), 40.0)
    assert MixedPrecision(FP16, {"x": bound}).run(model).matches == 1


def test_outputs_that_are_no_caches_keep_their_type() -> None:
    rows: Axes = ["N", "T", SIZE]
    nodes = [norm("x", "n"), node("MatMul", "n w", "y"), node("Relu", "y", "z")]
    constants = NORM | {"w": weights(SIZE, SIZE)}
    model = build(nodes, {"x": rows}, {"y": rows, "z": rows}, constants)
    before, inputs = signature(model), feeds(model)
    right = run(model, inputs)
    assert MixedPrecision(FP16).run(model).matches == 1
    assert signature(model) == before
    assert_close(run(model, inputs), right, "float16")


# ---- caches ----


def caching(factor: float, normed: bool = True, static: bool = False) -> ir.Model:
    nodes = [
        *([norm("x", "n")] if normed else [node("Sin", "x", "n")]),
        *matmul("n", "k", "k"), *heads("k", [0, 2, 1, 3]),
        node("TensorScatter", "self_key_0 k_h at", "next_self_key_0", axis=2) if static else
        node("ScatterND", "self_key_0 places k_h", "next_self_key_0"),
    ]  # fmt: skip
    constants = NORM | {
        "w_k": factor * weights(SIZE, SIZE), "b_k": weights(SIZE),
        "heads": np.array([0, 0, HEADS, SIZE // HEADS]), "places": slots(HEADS),
    }  # fmt: skip
    past: Axes = ["N", HEADS, 24 if static else "P", SIZE // HEADS]
    inputs: dict[str, Axes] = {"x": ["N", "K", SIZE], "self_key_0": past}
    if static:
        inputs["at"] = ["N"]
    return build(nodes, inputs, {"next_self_key_0": past}, constants, opset=24,
                 types={"at": "int"})  # fmt: skip


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("factor", "normed", "message"),
    [(3e4, True, r"next_self_key_0 could reach \S+, beyond FP16"),
     (1.0, False, "next_self_key_0 have no known bound, beyond FP16")],
)  # fmt: skip
def test_caches_that_could_overflow_are_refused(
    static: bool, factor: float, normed: bool, message: str
) -> None:
    with pytest.raises(TranslateTrtError, match=message):
        MixedPrecision(FP16).run(caching(factor, normed, static))
    model = caching(factor, normed, static)
    MixedPrecision(BF16).run(model)
    assert types(model)["next_self_key_0"] == BF16


@pytest.mark.parametrize("static", [False, True])
def test_caches_are_read_and_written_in_16_bits(static: bool) -> None:
    model = caching(1.0, static=static)
    inputs = feeds(model)
    right = run(model, inputs)
    MixedPrecision(FP16).run(model)
    found = run(model, {**inputs, "self_key_0": inputs["self_key_0"].astype(np.float16)})
    assert found["next_self_key_0"].dtype == np.float16
    assert_close(found, right, "float16")


def test_what_leaves_an_encoder_in_32_bits_is_cast_at_its_end() -> None:
    # The input of the matmul is too large for FP16, its result is not.
    nodes = [node("MatMul", "x w", "cross_key_0")]
    rows: Axes = ["N", "T", SIZE]
    model = build(nodes, {"x": rows}, {"cross_key_0": rows}, {"w": 1e-3 * weights(SIZE, SIZE)})
    outcome = MixedPrecision(FP16, {"x": Bound.of(np.full(SIZE, 4e4))}).run(model)
    assert outcome.refused == ("cross_key_0: kept in FP32: x could reach 4e+04",)
    assert types(model)["cross_key_0"] == FP16
    assert operators(model) == {"MatMul": 1, "Cast": 1}
    assert outcome.output_bounds["cross_key_0"].largest < 65504  # the bound of the step's input
    x = np.full((1, 2, SIZE), 4e4, np.float32)
    assert np.isfinite(run(model, {"x": x})["cross_key_0"]).all()


# ---- masks ----


@pytest.mark.parametrize("operator", ["MatMul", "Attention", "MultiHeadAttention"])
def test_a_row_that_sees_nothing_is_no_nan(operator: str) -> None:
    rows: Axes = ["N", "T", SIZE]
    split = [*matmul("n", "q", "q"), *matmul("n", "k", "k"), *matmul("n", "v", "v")]
    if operator == "Attention":
        for name in "qkv":
            split += heads(name, [0, 2, 1, 3])
        attend = [node("Attention", "q_h k_h v_h bias", "y", scale=1.0)]
        out: Axes = ["N", HEADS, "T", SIZE // HEADS]
    elif operator == "MatMul":
        split += [*heads("q", [0, 2, 1, 3]), *heads("k", [0, 2, 3, 1]), *heads("v", [0, 2, 1, 3])]
        attend = [
            node("MatMul", "q_h k_h", "s"), node("Add", "s bias", "biased"),
            node("Softmax", "biased", "w", axis=-1), node("MatMul", "w v_h", "y"),
        ]  # fmt: skip
        out = ["N", HEADS, "T", SIZE // HEADS]
    else:
        attend = [node("MultiHeadAttention", "q k v _ _ bias", "y", num_heads=HEADS, scale=1.0)]
        out = rows
    constants = NORM | {"heads": np.array([0, 0, HEADS, SIZE // HEADS])}
    for index, name in enumerate("qkv"):
        constants[f"w_{name}"] = SCALED * weights(SIZE, SIZE, seed=index)
        constants[f"b_{name}"] = SCALED * weights(SIZE, seed=index)
    model = build([norm("x", "n"), *split, *attend], {"x": rows, "bias": ["N", 1, "T", "T"]},
                  {"y": out}, constants, opset=23)  # fmt: skip
    bias = np.zeros((2, 1, 5, 5), np.float32)
    bias[0] = MASKED  # the whole sentence
    bias[1, :, :, 3:] = MASKED
    inputs = feeds(model, given={"bias": bias})
    right = run(model, inputs)
    outcome = MixedPrecision(FP16).run(model)
    assert outcome.refused == ()
    assert operators(model)["Max"] == (operator != "MatMul")  # whose bias is added in FP32
    found = run(model, inputs)
    assert np.isfinite(found["y"]).all()
    assert_close({"y": found["y"][1:]}, {"y": right["y"][1:]}, "float16")


def test_a_copy_in_16_bits_leaves_the_original_as_it_was() -> None:
    model = layer()
    before = written(model)
    MixedPrecision(FP16).run(model.clone())
    assert written(model) == before


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=lambda dtype: dtype.name)
def test_the_size_of_a_cache_is_read_without_converting_it(dtype: ir.DataType) -> None:
    model = build(
        [node("Shape", "self_key_0", "sizes")], {"self_key_0": ["N", 2, "P", 4]}, {"sizes": [4]},
        types={"sizes": "int"}, opset=23,
    )  # fmt: skip
    MixedPrecision(dtype).run(model)
    assert operators(model) == {"Shape": 1}
    assert model.graph.inputs[0].dtype == dtype

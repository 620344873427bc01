"""Each compiled operator against a plain numpy reading of what it says it computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from translate_trt.runtime import kernels
from translate_trt.runtime.contract import MASKED

Array = NDArray[Any]
Session = Callable[[Mapping[str, Array]], list[Array]]

HIDDEN = -1e30


@pytest.fixture(params=(1, 3), ids=("one thread", "three threads"))
def make_session(request: pytest.FixtureRequest, compiled_kernels: str) -> Callable[..., Session]:
    """A session with one node of domain translate_trt; what is not constant is an input."""

    def make(
        operator: str,
        values: Mapping[str, Array],
        outputs: int = 1,
        constant: tuple[str, ...] = (),
        **attributes: Any,
    ) -> Session:
        names = [f"y{i}" for i in range(outputs)]
        node = helper.make_node(operator, list(values), names, domain="translate_trt", **attributes)
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
                )
                for name, value in values.items()
                if name not in constant
            ],
            [helper.make_empty_tensor_value_info(name) for name in names],
            [numpy_helper.from_array(values[name], name) for name in constant],
        )
        for output, kind in zip(graph.output, _output_types(operator), strict=True):
            output.type.tensor_type.elem_type = kind
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("translate_trt", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = request.param
        options.register_custom_ops_library(str(kernels.library()))
        session = ort.InferenceSession(model.SerializeToString(), options)

        def run(changed: Mapping[str, Array] = {}) -> list[Array]:  # only read
            fed = {**values, **changed}
            return list(session.run(None, {k: v for k, v in fed.items() if k not in constant}))

        return run

    return make


_CANDIDATES = ("Candidates", "TopLogits", "ListedCandidates", "VocabularyCandidates")


def _output_types(operator: str) -> list[int]:
    if operator.removesuffix("8") in _CANDIDATES:
        return [TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT]
    return [TensorProto.FLOAT] * (3 if operator == "CachedAttention" else 1)


# ---- numpy ----


def quantize(x: Array, positive: bool) -> tuple[Array, Array]:
    """Signed integers (without the zero point) and the scale of each row."""
    scale = np.abs(x).max(-1, keepdims=True) * np.float32(1 / (255 if positive else 127))
    with np.errstate(invalid="ignore"):
        ratio = np.rint(np.nan_to_num(x / scale))
    return np.clip(ratio, 0 if positive else -128, 255 if positive else 127).astype(int), scale


def product(x: Array, weights: Array, scales: Array, positive: bool) -> Array:
    values, scale = quantize(x, positive)
    return ((values @ weights.astype(int)).astype(np.float32) * scale * scales).astype(np.float32)


def normalized(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return (centred / spread * gamma + beta).astype(np.float32)


def blocked(weights: Array) -> Array:
    """[I, O] as [O' / 16, I / 4, 16, 4], with columns of zeros."""
    filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 16)))
    inputs, outputs = filled.shape
    parts = filled.reshape(inputs // 4, 4, outputs // 16, 16)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def matrix(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Array, Array, Array]:
    """Weights [I, O], scales [O], and both as the operators take them is up to the caller."""
    weights = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    return weights, rng.random(outputs, dtype=np.float32) / 100 + 1e-3, blocked(weights)


# ---- products in 8 bits ----

SIZES = [
    (1, 4, 1),
    (4, 64, 64),
    (6, 20, 17),
    (7, 512, 96),
    (16, 100, 33),
    (70, 36, 130),
    (133, 128, 80),
]
AFTER = ("", "Relu", "Add", "AddNorm")


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SIZES)
@pytest.mark.parametrize(
    ("positive", "after"), [*itertools.product((False, True), AFTER)],
    ids=lambda x: {False: "signed", True: "positive", "": "plain"}.get(x, str(x)),
)  # fmt: skip
def test_products(
    make_session: Callable[..., Session],
    rows: int, inputs: int, outputs: int, positive: bool, after: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(rows + inputs)
    weights, scales, blocks = matrix(rng, inputs, outputs)
    x = rng.standard_normal((rows, 1, inputs), dtype=np.float32)
    x = np.maximum(x, 0) if positive else x
    x[-1] = 0  # a row of zeros
    bias = rng.standard_normal(outputs, dtype=np.float32)
    filled = np.pad(scales, (0, -outputs % 16), constant_values=1)
    values = {"x": x, "w": blocks, "s": filled, "b": bias}
    expected = product(x, weights, scales, positive) + bias
    attributes = {}
    if after == "Relu":
        expected = np.maximum(expected, 0)
    if after.startswith("Add"):
        values["residual"] = rng.standard_normal(expected.shape, dtype=np.float32)
        expected = expected + values["residual"]
    if after == "AddNorm":
        values["gamma"], values["beta"] = rng.standard_normal((2, outputs), dtype=np.float32)
        attributes["epsilon"] = 1e-5
        expected = normalized(expected, values["gamma"], values["beta"], 1e-5)
    name = "Linear8" + ("Positive" if positive else "") + after
    found = make_session(name, values, constant=("w", "s", "b"), **attributes)()[0]
    assert found.shape == (rows, 1, outputs)
    if after == "AddNorm":
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    else:  # the same operations in the same order
        np.testing.assert_array_equal(found, expected)


def test_a_row_does_not_depend_on_its_neighbours(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(5)
    _, scales, blocks = matrix(rng, 64, 48)
    x = rng.standard_normal((40, 64), dtype=np.float32)
    values = {"x": x, "w": blocks, "s": scales, "b": np.zeros(48, np.float32)}
    run = make_session("Linear8", values, constant=("w", "s", "b"))
    np.testing.assert_array_equal(run()[0][17:18], run({"x": x[17:18]})[0])


@pytest.mark.parametrize("repeats", [(3, 1, 4), (1, 1, 5), (7,), (20, 1, 1, 30)])
def test_equal_rows_are_multiplied_once_and_finished_apart(
    make_session: Callable[..., Session], repeats: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(len(repeats))
    weights, scales, blocks = matrix(rng, 32, 40)
    x = np.repeat(rng.standard_normal((len(repeats), 32), dtype=np.float32), repeats, axis=0)
    residual = rng.standard_normal((len(x), 40), dtype=np.float32)
    bias = rng.standard_normal(40, dtype=np.float32)
    values = {"x": x, "w": blocks, "s": np.pad(scales, (0, 8)), "b": bias, "residual": residual}
    found = make_session("Linear8Add", values, constant=("w", "s", "b"))()[0]
    np.testing.assert_array_equal(found, product(x, weights, scales, False) + bias + residual)


def test_weights_must_be_constant(make_session: Callable[..., Session]) -> None:
    _, scales, blocks = matrix(np.random.default_rng(0), 16, 16)
    values = {"x": np.ones((1, 16), np.float32), "w": blocks, "s": scales, "b": scales}
    with pytest.raises(Exception, match="must be constant"):
        make_session("Linear8", values, constant=("s", "b"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones((2, 1, 12), np.float32)}, "has not the columns"),
        ({"residual": np.ones((2, 1, 15), np.float32)}, "residual has another shape"),
    ],
)
def test_products_refuse_what_does_not_fit(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    _, scales, blocks = matrix(np.random.default_rng(0), 16, 16)
    values = {"x": np.ones((2, 1, 16), np.float32), "w": blocks, "s": scales, "b": scales,
              "residual": np.ones((2, 1, 16), np.float32)}  # fmt: skip
    run = make_session("Linear8Add", values, constant=("w", "s", "b"))
    with pytest.raises(Exception, match=message):
        run(changed)


# ---- products ----


def in_panels(weights: Array) -> Array:
    """[I, O] as [O' / 64, I, 64], with columns of zeros."""
    filled = np.pad(weights, ((0, 0), (0, -weights.shape[1] % 64)))
    return np.ascontiguousarray(filled.reshape(len(filled), -1, 64).transpose(1, 0, 2))


def whole(rng: np.random.Generator, *shape: int) -> Array:
    """Whole numbers so small that their products and sums are exact, in whichever order."""
    return rng.integers(-9, 10, shape).astype(np.float32)


# Beside tiles and panels of every size: more inputs than are multiplied at a time (512), more rows
# than a task of a wide matrix has (132) and than one of a narrow matrix has (66).
FLOAT_SIZES = [
    *SIZES,
    (3, 5, 1000),
    (17, 1027, 70),
    (66, 513, 64),
    (140, 9, 1100),
    (140, 600, 129),
    (400, 3, 20),
]


@pytest.mark.parametrize(("rows", "inputs", "outputs"), FLOAT_SIZES)
@pytest.mark.parametrize("after", AFTER, ids=lambda x: x or "plain")
def test_products_of_floats(
    make_session: Callable[..., Session], rows: int, inputs: int, outputs: int, after: str
) -> None:
    rng = np.random.default_rng(rows + inputs)
    weights, x, bias = whole(rng, inputs, outputs), whole(rng, rows, 1, inputs), whole(rng, outputs)
    values = {"x": x, "w": in_panels(weights), "b": bias}
    expected = x @ weights + bias
    attributes = {}
    if after == "Relu":
        expected = np.maximum(expected, 0)
    if after.startswith("Add"):
        values["residual"] = whole(rng, *expected.shape)
        expected = expected + values["residual"]
    if after == "AddNorm":
        values["gamma"], values["beta"] = rng.standard_normal((2, outputs), dtype=np.float32)
        attributes["epsilon"] = 1e-5
        expected = normalized(expected, values["gamma"], values["beta"], 1e-5)
    run = make_session("Linear" + after, values, constant=("w", "b"), **attributes)
    found = run()[0]
    assert found.shape == (rows, 1, outputs)
    if after == "AddNorm":
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("inputs", [64, 700])
def test_a_row_of_floats_does_not_depend_on_its_neighbours(
    make_session: Callable[..., Session], inputs: int
) -> None:
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((inputs, 48), dtype=np.float32)
    x = rng.standard_normal((140, inputs), dtype=np.float32)
    values = {"x": x, "w": in_panels(weights), "b": np.zeros(48, np.float32)}
    run = make_session("Linear", values, constant=("w", "b"))
    found = run()[0]
    np.testing.assert_allclose(found, x.astype(float) @ weights, rtol=1e-4, atol=1e-4)
    for row in (0, 17, 66, 139):
        np.testing.assert_array_equal(found[row : row + 1], run({"x": x[row : row + 1]})[0])


@pytest.mark.parametrize("repeats", [(3, 1, 4), (1, 1, 5), (7,), (20, 1, 1, 30), (1,) * 150 + (2,)])
def test_equal_rows_of_floats_are_finished_apart(
    make_session: Callable[..., Session], repeats: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(len(repeats))
    weights, bias = whole(rng, 32, 70), whole(rng, 70)
    x = np.repeat(whole(rng, len(repeats), 32), repeats, axis=0)
    residual = whole(rng, len(x), 70)
    values = {"x": x, "w": in_panels(weights), "b": bias, "residual": residual}
    found = make_session("LinearAdd", values, constant=("w", "b"))()[0]
    np.testing.assert_array_equal(found, x @ weights + bias + residual)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones((2, 1, 12), np.float32)}, "has not the columns"),
        ({"residual": np.ones((2, 1, 15), np.float32)}, "residual has another shape"),
        ({"w": np.ones((1, 16, 16), np.float32)}, "must be"),
        ({"b": np.ones(65, np.float32)}, "have not the columns that are asked for"),
        ({"w": np.ones((2, 16, 64), np.float32)}, "have not the columns that are asked for"),
    ],
)
def test_products_of_floats_refuse_what_does_not_fit(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    x = np.ones((2, 1, 16), np.float32)
    values = {"x": x, "w": np.ones((1, 16, 64), np.float32), "b": x[0, 0], "residual": x}
    run = make_session("LinearAdd", values)
    np.testing.assert_array_equal(run()[0], 18)
    with pytest.raises(Exception, match=message):
        run(changed)


def test_sum_and_normalization(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    for rows, columns in ((1, 5), (33, 64), (4, 513)):
        x, residual = rng.standard_normal((2, rows, 1, columns), dtype=np.float32) * 3 + 1
        gamma, beta = rng.standard_normal((2, columns), dtype=np.float32)
        values = {"x": x, "r": residual, "g": gamma, "b": beta}
        found = make_session("AddNorm", values, epsilon=1e-6)()[0]
        expected = normalized(x + residual, gamma, beta, 1e-6)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


# ---- candidates ----


def best(logits: Array, column: Array, count: int) -> list[Array]:
    log_probs = log_softmax(logits)
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :count]
    return [
        np.take_along_axis(log_probs, order, -1),
        order,
        np.take_along_axis(log_probs, column, -1),
    ]


def assert_candidates(found: list[Array], expected: list[Array], near: float = 1e-5) -> None:
    np.testing.assert_array_equal(found[1], expected[1])
    for one, other in ((found[0], expected[0]), (found[2], expected[2])):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=near)


@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (2, 64), (5, 1000), (33, 2049)])
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_logits(
    make_session: Callable[..., Session], rows: int, columns: int, ties: bool
) -> None:
    rng = np.random.default_rng(columns)
    logits = rng.standard_normal((rows, 4, columns), dtype=np.float32) * 8
    logits = np.round(logits) if ties else logits
    column = rng.integers(0, columns, (rows, 4, 1))
    values = {"x": logits, "column": column, "count": np.array([9])}
    found = make_session("TopLogits", values, 3)()
    assert_candidates(found, best(logits, column, 9))


@pytest.mark.parametrize(
    ("rows", "inputs", "columns"), [(1, 4, 9), (2, 64, 64), (3, 32, 777), (34, 128, 5000)]
)
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_products(
    make_session: Callable[..., Session], rows: int, inputs: int, columns: int, ties: bool
) -> None:
    rng = np.random.default_rng(columns)
    weights, scales, blocks = matrix(rng, inputs, columns)
    if ties:
        scales[:] = 1 / 128
        blocks = blocked(weights := np.sign(weights))
    x = rng.standard_normal((rows, 4, inputs), dtype=np.float32)
    column = rng.integers(0, columns, (rows, 4, 1))
    fill = -columns % 16
    values = {
        "x": x, "w": blocks, "s": np.pad(scales, (0, fill)),
        "hidden": np.pad(np.zeros(columns, np.float32), (0, fill), constant_values=HIDDEN),
        "column": column, "count": np.array([9]),
    }  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    q, scale = quantize(x, False)
    logits = (q @ weights.astype(int)).astype(np.float32) * scales * scale
    assert_candidates(run(), best(logits, column, 9))


def test_beams_that_are_alike_have_the_same_candidates_and_columns_of_their_own(
    make_session: Callable[..., Session],
) -> None:
    rng = np.random.default_rng(3)
    weights, scales, blocks = matrix(rng, 16, 48)
    x = np.repeat(rng.standard_normal((3, 1, 16), dtype=np.float32), 4, axis=1)
    x[1, 2:] += 1
    column = rng.integers(0, 48, (3, 4, 1))
    values = {"x": x, "w": blocks, "s": scales, "hidden": np.zeros(48, np.float32),
              "column": column, "count": np.array([9])}  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    assert_candidates(run(), best(product(x, weights, scales, False), column, 9))


# Logits that are not among the best have their share in the log-sum-exp in 16 bits.
SUM = 3e-4


@pytest.mark.parametrize(
    ("rows", "inputs", "columns"),
    [(1, 4, 9), (2, 64, 64), (3, 33, 777), (34, 128, 5000), (5, 700, 1000), (1, 1, 20)],
)
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_a_vocabulary(
    make_session: Callable[..., Session], rows: int, inputs: int, columns: int, ties: bool
) -> None:
    rng = np.random.default_rng(columns)
    vocabulary, x = whole(rng, columns, inputs), whole(rng, rows, 4, inputs) / 64
    if not ties:
        vocabulary = rng.standard_normal(vocabulary.shape, dtype=np.float32)
    column = rng.integers(0, columns, (rows, 4, 1))
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    found = make_session("VocabularyCandidates", values, 3, ("w",))()
    logits = (x @ vocabulary.T.astype(float)).astype(np.float32)
    assert_candidates(found, best(logits, column, 9), SUM)


# Logits alike but for so little that 16 bits show no difference, up to such whose best are nearly
# everything.
@pytest.mark.parametrize("spread", [0, 1e-6, 1e-4, 1e-2, 1, 30])
def test_best_of_logits_that_are_nearly_alike(
    make_session: Callable[..., Session], spread: float
) -> None:
    rng = np.random.default_rng(5)
    columns, inputs = 3001, 96
    common = rng.standard_normal(inputs)
    vocabulary = (common + spread * rng.standard_normal((columns, inputs))).astype(np.float32)
    x = rng.standard_normal((5, 4, inputs), dtype=np.float32)
    x[0, :2] = 0
    column = rng.integers(0, columns, (5, 4, 1))
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    values_found, found, at_column = make_session("VocabularyCandidates", values, 3, ("w",))()
    logits = x.astype(float) @ vocabulary.T.astype(float)
    log_probs = log_softmax(logits)
    # In fp32 neighbours may change places, but no better one may be missing.
    chosen = np.take_along_axis(logits, found, -1)
    ninth = np.sort(logits, axis=-1)[..., -9]
    assert (chosen >= ninth[..., None] - 2e-5).all()
    assert all(len(set(row)) == 9 for row in found.reshape(-1, 9))
    for one, places in ((values_found, found), (at_column, column)):
        expected = np.take_along_axis(log_probs, places, -1)
        np.testing.assert_allclose(one, expected, rtol=1e-6, atol=SUM + 2e-7 * np.abs(logits).max())


@pytest.mark.parametrize("inputs", [7, 512, 2048])
def test_sums_of_a_vocabulary_never_leave_their_range(
    make_session: Callable[..., Session], inputs: int
) -> None:
    """All of a row and a column at their largest, of one sign: the largest sums there are."""
    columns = 40
    vocabulary = np.ones((columns, inputs), np.float32) * np.linspace(-3, 3, columns)[:, None]
    vocabulary[::3, 1:] = 0  # of one large number, and nothing else
    x = np.ones((2, 4, inputs), np.float32)
    x[1] = -(2.0**-7)
    x[0, 1, 1:] = 0
    column = np.zeros((2, 4, 1), np.int64)
    vocabulary = vocabulary.astype(np.float32)
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    found = make_session("VocabularyCandidates", values, 3, ("w",))()
    logits = (x.astype(float) @ vocabulary.T.astype(float)).astype(np.float32)
    assert_candidates(found, best(logits, column, 9), SUM)


def test_a_vocabulary_of_zeros(make_session: Callable[..., Session]) -> None:
    values = {"x": np.ones((1, 4, 6), np.float32), "w": np.zeros((50, 6), np.float32),
              "column": np.full((1, 4, 1), 49), "count": np.array([9])}  # fmt: skip
    found = make_session("VocabularyCandidates", values, 3, ("w",))()
    np.testing.assert_allclose(found[0], -np.log(50), rtol=1e-6)
    np.testing.assert_array_equal(found[1], np.broadcast_to(np.arange(9), (1, 4, 9)))
    np.testing.assert_allclose(found[2], -np.log(50), rtol=1e-6)


def test_a_vocabulary_must_be_constant_and_fit(make_session: Callable[..., Session]) -> None:
    values = {"x": np.ones((1, 4, 6), np.float32), "w": np.zeros((50, 6), np.float32),
              "column": np.zeros((1, 4, 1), np.int64), "count": np.array([9])}  # fmt: skip
    with pytest.raises(Exception, match="must be constant"):
        make_session("VocabularyCandidates", values, 3)
    with pytest.raises(Exception, match=r"must be \[V, inputs\]"):
        make_session("VocabularyCandidates", values | {"w": np.zeros((5, 6, 7), np.float32)}, 3,
                     ("w",))  # fmt: skip
    run = make_session("VocabularyCandidates", values, 3, ("w",))
    with pytest.raises(Exception, match="has not the columns"):
        run({"x": np.ones((1, 4, 8), np.float32)})
    with pytest.raises(Exception, match="more candidates"):
        run({"count": np.array([51])})


def test_beams_that_are_alike_have_columns_of_their_own(
    make_session: Callable[..., Session],
) -> None:
    rng = np.random.default_rng(3)
    vocabulary = whole(rng, 148, 16) / 8
    x = np.repeat(whole(rng, 3, 1, 16), 4, axis=1)
    x[1, 2:] += 1
    column = rng.integers(0, 148, (3, 4, 1))
    column[0] = [[0], [63], [64], [147]]
    values = {"x": x, "w": vocabulary, "column": column, "count": np.array([9])}
    found = make_session("VocabularyCandidates", values, 3, ("w",))()
    assert_candidates(found, best(x @ vocabulary.T, column, 9), SUM)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"column": np.full((1, 4, 1), 20)}, "out of range"), ({"count": np.array([21])}, "more")],
)
def test_candidates_refuse_what_is_not_there(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    values = {"x": np.zeros((1, 4, 20), np.float32), "column": np.zeros((1, 4, 1), np.int64),
              "count": np.array([9])}  # fmt: skip
    run = make_session("TopLogits", values, 3)
    with pytest.raises(Exception, match=message):
        run(changed)


# ---- candidates from a list ----


def random_lists(
    rng: np.random.Generator, sentences: int, places: int, columns: int, filled: int
) -> Array:
    """Lists [N, W] of `filled` tokens each, ascending, with empty places in between."""
    lists = np.zeros((sentences, places), np.int64)
    for row in lists:
        where = np.sort(rng.choice(places, filled, replace=False))
        row[where] = np.sort(rng.choice(np.arange(1, columns), filled, replace=False))
    return lists


def best_listed(logits: Array, lists: Array, column: Array, count: int) -> list[Array]:
    shown = np.take_along_axis(logits, lists[:, None].repeat(logits.shape[1], 1), -1)
    shown = np.where(lists[:, None] == 0, -np.inf, shown.astype(np.float64))
    log_total = np.log(np.exp(shown - shown.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_total = log_total + shown.max(-1, keepdims=True)
    order = np.argsort(-shown, axis=-1, kind="stable")[..., :count]
    tokens = np.take_along_axis(lists[:, None].repeat(logits.shape[1], 1), order, -1)
    values = np.take_along_axis(shown, order, -1) - log_total
    return [values, tokens, np.take_along_axis(logits, column, -1) - log_total]


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize(
    ("sentences", "beams", "inputs", "columns", "places", "filled"),
    [
        (1, 1, 4, 20, 9, 9),
        (3, 4, 64, 300, 40, 21),
        (2, 5, 100, 999, 130, 64),
        (33, 2, 132, 80, 70, 70),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ties", [False, True])
def test_best_of_lists(
    make_session: Callable[..., Session], bits: int, sentences: int, beams: int, inputs: int,
    columns: int, places: int, filled: int, ties: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(columns)
    rows = rng.integers(-127, 128, (columns, inputs)).astype(np.int8)
    rows = np.sign(rows) if ties else rows
    scales = np.full((columns, 1), 1 / 128, np.float32)
    if not ties:
        scales += rng.random((columns, 1), dtype=np.float32) / 100
    x = rng.standard_normal((sentences, beams, inputs), dtype=np.float32)
    x = np.round(x) if ties else x  # whole numbers: sums are exact in any order
    x[:, beams // 2 :] = x[:, beams // 2 :][:, :1]  # some beams alike
    column = np.repeat(rng.integers(0, columns, (sentences, 1, 1)), beams, 1)
    lists = random_lists(rng, sentences, places, columns, filled)
    values = {"x": x, "w": rows, "s": scales, "lists": lists, "column": column,
              "count": np.array([9])}  # fmt: skip
    if bits == 8:
        q, scale = quantize(x, False)
        logits = (q @ rows.T.astype(int)).astype(np.float32) * scale * scales.T
        run = make_session("ListedCandidates8", values, 3, ("w", "s"), width=inputs)
    else:
        values["w"] = rows * scales
        del values["s"]
        logits = (x.astype(np.float64) @ values["w"].T).astype(np.float32)
        run = make_session("ListedCandidates", values, 3, ("w",))
    assert_candidates(run(), best_listed(logits, lists, column, 9))


def test_a_sentence_that_is_done_has_no_list_and_harms_no_other(
    make_session: Callable[..., Session],
) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((50, 32), dtype=np.float32)
    x = rng.standard_normal((3, 4, 32), dtype=np.float32)
    column = np.ones((3, 4, 1), np.int64)
    lists = random_lists(rng, 3, 30, 50, 12)
    lists[1] = 0
    values = {"x": x, "w": rows, "lists": lists, "column": column, "count": np.array([9])}
    log_probs, tokens, at_column = make_session("ListedCandidates", values, 3, ("w",))()
    assert (tokens[1] == 0).all()
    assert np.isfinite(log_probs[1]).all()
    assert np.isfinite(at_column[1]).all()
    here = [0, 2]
    expected = best_listed(x[here] @ rows.T, lists[here], column[here], 9)
    assert_candidates([log_probs[here], tokens[here], at_column[here]], expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lists": np.full((1, 12), 20)}, "listed token is out of range"),
        ({"lists": np.full((1, 12), -1)}, "listed token is out of range"),
        ({"lists": np.zeros((2, 12), np.int64)}, "a list for each sentence"),
        ({"lists": np.zeros((1, 8), np.int64)}, "more candidates than places"),
        ({"column": np.full((1, 4, 1), 20)}, "looked up column is out of range"),
        ({"x": np.zeros((1, 4, 9), np.float32)}, "has not the columns"),
    ],
)
def test_lists_refuse_what_does_not_fit(
    make_session: Callable[..., Session], changed: Mapping[str, Array], message: str
) -> None:
    values = {"x": np.zeros((1, 4, 8), np.float32), "w": np.zeros((20, 8), np.float32),
              "lists": np.arange(12)[None], "column": np.zeros((1, 4, 1), np.int64),
              "count": np.array([9])}  # fmt: skip
    run = make_session("ListedCandidates", values, 3, ("w",))
    run()
    with pytest.raises(Exception, match=message):
        run(changed)


# ---- attention ----


def attended(query: Array, key: Array, value: Array, bias: Array) -> Array:
    """query [N, K, H * D]; key, value [N, H, P, D]; bias broadcast to [N, H, K, P]."""
    n, k, _ = query.shape
    heads = query.reshape(n, k, key.shape[1], -1).transpose(0, 2, 1, 3)
    context = softmax(heads @ key.transpose(0, 1, 3, 2) + bias) @ value
    return context.transpose(0, 2, 1, 3).reshape(query.shape)


ATTENTION = [(1, 4, 8, 24, 64), (5, 4, 2, 7, 16), (2, 1, 3, 40, 20), (3, 6, 2, 33, 80)]


@pytest.mark.parametrize(("n", "k", "h", "p", "d"), ATTENTION)
def test_attention_over_the_source(
    make_session: Callable[..., Session], n: int, k: int, h: int, p: int, d: int
) -> None:
    rng = np.random.default_rng(p)
    query = rng.standard_normal((n, k, h * d), dtype=np.float32)
    key, value = rng.standard_normal((2, n, h, p, d), dtype=np.float32)
    lengths = rng.integers(1, p + 1, n)
    bias = np.where(np.arange(p) < lengths[:, None], 0, MASKED).astype(np.float32)
    bias = bias[:, None, None]
    values = {"q": query, "k": key, "v": value, "bias": bias}
    found = make_session("BeamAttention", values, heads=h)()[0]
    np.testing.assert_allclose(found, attended(query, key, value, bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "k", "h", "p", "d"), ATTENTION)
def test_attention_over_the_caches(
    make_session: Callable[..., Session], n: int, k: int, h: int, p: int, d: int
) -> None:
    rng = np.random.default_rng(p)
    qkv = rng.standard_normal((n, k, 3 * h * d), dtype=np.float32)
    key, value = rng.standard_normal((2, n, h, p, d), dtype=np.float32)
    slots = np.stack([rng.permutation(p)[:k] for _ in range(n)])
    seen = rng.random((n, 1, k, p)) < 0.3
    np.put_along_axis(seen[:, 0], slots[..., None], True, 2)  # each beam sees itself
    bias = np.where(seen, rng.standard_normal(seen.shape), MASKED).astype(np.float32)
    values = {"qkv": qkv, "key": key.copy(), "value": value.copy(), "slots": slots, "bias": bias}
    context, next_key, next_value = make_session("CachedAttention", values, 3, heads=h)()
    query, new_key, new_value = np.split(qkv, 3, 2)
    for row, beam in itertools.product(range(n), range(k)):
        key[row, :, slots[row, beam]] = new_key[row, beam].reshape(h, d)
        value[row, :, slots[row, beam]] = new_value[row, beam].reshape(h, d)
    np.testing.assert_array_equal(next_key, key)
    np.testing.assert_array_equal(next_value, value)
    np.testing.assert_allclose(context, attended(query, key, value, bias), rtol=1e-4, atol=1e-5)


def test_a_slot_out_of_range_is_refused(make_session: Callable[..., Session]) -> None:
    values = {
        "qkv": np.ones((1, 2, 12), np.float32), "key": np.ones((1, 1, 3, 4), np.float32),
        "value": np.ones((1, 1, 3, 4), np.float32), "slots": np.array([[0, 1]]),
        "bias": np.zeros((1, 1, 2, 3), np.float32),
    }  # fmt: skip
    run = make_session("CachedAttention", values, 3, heads=1)
    run()
    for slot in (3, -1):
        with pytest.raises(Exception, match="slot is out of range"):
            run({"slots": np.array([[0, slot]])})


def test_idle_rows_give_zeros(make_session: Callable[..., Session]) -> None:
    values = {
        "q": np.ones((2, 4, 16), np.float32), "k": np.ones((2, 1, 5, 16), np.float32),
        "v": np.ones((2, 1, 5, 16), np.float32),
        "bias": np.array([0, MASKED], np.float32)[:, None, None, None] + np.zeros((2, 1, 1, 5),
                                                                                 np.float32),
    }  # fmt: skip
    found = make_session("BeamAttention", values, heads=1)()[0]
    np.testing.assert_allclose(found[0], 1, rtol=1e-6)
    np.testing.assert_array_equal(found[1], 0)


def test_callers_share_a_session_of_floats(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(1)
    values = {"x": whole(rng, 8, 4, 128), "w": whole(rng, 1000, 128) / 64,
              "column": np.zeros((8, 4, 1), np.int64), "count": np.array([9])}  # fmt: skip
    run = make_session("VocabularyCandidates", values, 3, ("w",))
    inputs = [{"x": np.repeat(whole(rng, 8, n, 128), 4 // n, axis=1)} for n in (1, 2, 4) * 3]
    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, inputs * 20))
    for index, found in enumerate(together):
        for one, other in zip(found, alone[index % len(inputs)], strict=True):
            np.testing.assert_array_equal(one, other)


def test_callers_share_a_session(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(1)
    _, scales, blocks = matrix(rng, 128, 1000)
    column = np.zeros((8, 4, 1), np.int64)
    values = {"x": rng.standard_normal((8, 4, 128), dtype=np.float32), "w": blocks,
              "s": np.pad(scales, (0, 8)),
              "hidden": np.pad(np.zeros(1000, np.float32), (0, 8), constant_values=HIDDEN),
              "column": column, "count": np.array([9])}  # fmt: skip
    run = make_session("Candidates8", values, 3, ("w", "s", "hidden"))
    inputs = [{"x": rng.standard_normal((8, 4, 128), dtype=np.float32)} for _ in range(8)]
    alone = [run(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, inputs * 20))
    for index, found in enumerate(together):
        for one, other in zip(found, alone[index % 8], strict=True):
            np.testing.assert_array_equal(one, other)

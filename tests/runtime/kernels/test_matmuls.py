"""Compiled matmuls, in 8 bits and in float32, against plain numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.operators import Array, Session, in_panels, matmul, matrix, normalized, whole

pytestmark = pytest.mark.slow

SIZES = [
    (1, 4, 1),
    (4, 64, 64),
    (6, 20, 17),
    (7, 512, 96),
    (16, 100, 33),
    (70, 36, 130),
    (133, 128, 80),
]


def gelu(x: Array) -> Array:
    below = [0.5 * math.erfc(-v / math.sqrt(2)) for v in x.flat]
    return (x * np.reshape(below, x.shape)).astype(np.float32)


def swish(x: Array) -> Array:
    return (x / (1 + np.exp(-x.astype(float).clip(-700)))).astype(np.float32)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"Relu": relu, "Gelu": gelu, "Swish": swish}
AFTER = ("", *ACTIVATIONS, "Add", "AddNorm", "AddAndNorm")


def outputs_of(expected: Array, after: str, values: dict[str, Array]) -> list[Array]:
    """Epilogue of a matmul with bias; its further inputs are added to those of the matmul."""
    if after in ACTIVATIONS:
        return [ACTIVATIONS[after](expected)]
    if after:
        expected = expected + values["residual"]
    if not after.endswith("Norm"):
        return [expected]
    norm = normalized(expected, values["gamma"], values["beta"], 1e-5)
    return [expected, norm] if after == "AddAndNorm" else [norm]


def assert_outputs(found: list[Array], expected: list[Array], after: str) -> None:
    if after.endswith("Norm"):
        np.testing.assert_allclose(found.pop(), expected.pop(), rtol=2e-5, atol=2e-5)
    elif after in ("Gelu", "Swish"):
        np.testing.assert_allclose(found.pop(), expected.pop(), rtol=2e-6, atol=1e-7)
    for one, other in zip(found, expected, strict=True):  # the same operations in the same order
        np.testing.assert_array_equal(one, other)


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
    expected = matmul(x, weights, scales, positive) + bias
    if after.startswith("Add"):
        values["residual"] = rng.standard_normal(expected.shape, dtype=np.float32)
    if after.endswith("Norm"):
        values["gamma"], values["beta"] = rng.standard_normal((2, outputs), dtype=np.float32)
    right = outputs_of(expected, after, values)
    name = "Linear8" + ("Positive" if positive else "") + after
    attributes = {"epsilon": 1e-5} if after.endswith("Norm") else {}
    run = make_session(name, values, len(right), ("w", "s", "b"), **attributes)
    assert_outputs(run(), right, after)


@pytest.mark.parametrize("name", ["Gelu", "Swish"])
def test_activations_of_every_magnitude(make_session: Callable[..., Session], name: str) -> None:
    x = np.concatenate([np.linspace(-9, 9, 4001), [-1e4, -200, -90, 1e-30, 90, 1e4]])
    x = x.astype(np.float32)[:, None]
    values = {"x": x, "w": in_panels(np.ones((1, 1), np.float32)), "b": np.zeros(1, np.float32)}
    found = make_session(f"Linear{name}", values, constant=("w", "b"))()[0]
    np.testing.assert_allclose(found, ACTIVATIONS[name](x), rtol=1e-6, atol=1e-8)


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
    np.testing.assert_array_equal(found, matmul(x, weights, scales, False) + bias + residual)


def test_weights_must_be_constant(make_session: Callable[..., Session]) -> None:
    _, scales, blocks = matrix(np.random.default_rng(0), 16, 16)
    values = {"x": np.ones((1, 16), np.float32), "w": blocks, "s": scales, "b": scales}
    with pytest.raises(Exception, match="must be constant"):
        make_session("Linear8", values, constant=("s", "b"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones((2, 1, 12), np.float32)}, "many columns"),
        ({"residual": np.ones((2, 1, 15), np.float32)}, "same shape"),
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
    if after.startswith("Add"):
        values["residual"] = whole(rng, *expected.shape)
    if after.endswith("Norm"):
        values["gamma"], values["beta"] = rng.standard_normal((2, outputs), dtype=np.float32)
    right = outputs_of(expected, after, values)
    attributes = {"epsilon": 1e-5} if after.endswith("Norm") else {}
    run = make_session("Linear" + after, values, len(right), ("w", "b"), **attributes)
    assert_outputs(run(), right, after)


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
        ({"x": np.ones((2, 1, 12), np.float32)}, "many columns"),
        ({"residual": np.ones((2, 1, 15), np.float32)}, "same shape"),
        ({"w": np.ones((1, 16, 16), np.float32)}, "must be"),
        ({"b": np.ones(65, np.float32)}, "same number"),
        ({"w": np.ones((2, 16, 64), np.float32)}, "same number"),
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


def test_recurrent_unit(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(3)
    for rows, columns in ((1, 5), (33, 64), (4, 513)):
        gates = rng.standard_normal((rows, 1, 2 * columns), dtype=np.float32) * 5
        state = rng.standard_normal((rows, 1, columns), dtype=np.float32)
        state_now, y = make_session("RecurrentUnit", {"gates": gates, "state": state}, 2)()
        kept = 1 / (1 + np.exp(-gates[..., :columns].astype(np.float64)))
        expected = kept * state + (1 - kept) * gates[..., columns:]
        np.testing.assert_allclose(state_now, expected, rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(y, np.maximum(state_now, 0))


def test_recurrent_units_refuse_what_does_not_fit(make_session: Callable[..., Session]) -> None:
    values = {"gates": np.ones((2, 1, 8), np.float32), "state": np.ones((2, 1, 4), np.float32)}
    run = make_session("RecurrentUnit", values, 2)
    with pytest.raises(Exception, match="twice"):
        run({"state": np.ones((2, 1, 3), np.float32)})


def test_sum_and_normalization(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    for rows, columns in ((1, 5), (33, 64), (4, 513)):
        x, residual = rng.standard_normal((2, rows, 1, columns), dtype=np.float32) * 3 + 1
        gamma, beta = rng.standard_normal((2, columns), dtype=np.float32)
        values = {"x": x, "r": residual, "g": gamma, "b": beta}
        (found,) = make_session("AddNorm", values, epsilon=1e-6)()
        expected = normalized(x + residual, gamma, beta, 1e-6)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
        run = make_session("AddAndNorm", values, 2, epsilon=1e-6)
        for one, other in zip(run(), (x + residual, found), strict=True):
            np.testing.assert_array_equal(one, other)
        alone = {"x": x + residual, "g": gamma, "b": beta}
        (same,) = make_session("Norm", alone, epsilon=1e-6)()
        np.testing.assert_array_equal(same, found)
        for changed, message in (("r", "residual"), ("g", "gamma"), ("b", "beta")):
            with pytest.raises(Exception, match=message):
                run({changed: values[changed][..., 1:]})

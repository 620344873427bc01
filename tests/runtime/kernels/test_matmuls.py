"""Operators of matmuls and rows, against plain numpy: arguments, attributes, shapes and threads.

runtime/cpp/tests/test_kernel_linear.cc has the kernels of all instruction sets in many more sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.operators import Array, Session, in_panels, matmul, matrix, normalized, whole

pytestmark = pytest.mark.slow

SIZES = [(1, 4, 1), (7, 512, 96), (133, 128, 80)]


def gelu(x: Array) -> Array:
    below = [0.5 * math.erfc(-v / math.sqrt(2)) for v in x.flat]
    return (x * np.reshape(below, x.shape)).astype(np.float32)


def swish(x: Array) -> Array:
    return (x / (1 + np.exp(-x.astype(float).clip(-700)))).astype(np.float32)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"Relu": relu, "Gelu": gelu, "Swish": swish}
AFTER = ("", *ACTIVATIONS, "Add", "AddNorm", "AddAndNorm", "AddRmsNorm", "AddAndRmsNorm")


def outputs_of(expected: Array, after: str, values: dict[str, Array]) -> list[Array]:
    """Epilogue of a matmul with bias; its further inputs are added to those of the matmul."""
    if after in ACTIVATIONS:
        return [ACTIVATIONS[after](expected)]
    if after:
        expected = expected + values["residual"]
    if not after.endswith("Norm"):
        return [expected]
    norm = normalized(expected, values["gamma"], values.get("beta"), 1e-5)
    return [expected, norm] if after.startswith("AddAnd") else [norm]


def assert_outputs(found: list[Array], expected: list[Array], after: str) -> None:
    if after.endswith("Norm"):
        np.testing.assert_allclose(found.pop(), expected.pop(), rtol=2e-5, atol=2e-5)
    elif after in ("Gelu", "Swish"):
        np.testing.assert_allclose(found.pop(), expected.pop(), rtol=2e-6, atol=1e-7)
    for one, other in zip(found, expected, strict=True):  # the same operations in the same order
        np.testing.assert_array_equal(one, other)


#: Every two of kind, epilogue and size meet in one of these.
MATMULS = [
    (kind, after, *SIZES[(number + place) % len(SIZES)])
    for number, kind in enumerate(("floats", "8", "8Positive"))
    for place, after in enumerate(AFTER)
]


@pytest.mark.parametrize(("kind", "after", "rows", "inputs", "outputs"), MATMULS)
def test_matmuls(
    make_session: Callable[..., Session],
    kind: str, after: str, rows: int, inputs: int, outputs: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(rows + inputs)
    if kind == "floats":
        x, weights = whole(rng, rows, 1, inputs), whole(rng, inputs, outputs)
        bias = whole(rng, outputs)
        values, name, constant = {"x": x, "w": in_panels(weights), "b": bias}, "Linear", ("w", "b")
        expected = x @ weights + bias
    else:
        weights, scales, blocks = matrix(rng, inputs, outputs)
        x, bias = (rng.standard_normal(s, np.float32) for s in ((rows, 1, inputs), outputs))
        x = np.maximum(x, 0) if kind == "8Positive" else x
        x[-1] = 0  # a row of zeros
        filled = np.pad(scales, (0, -outputs % 16), constant_values=1)
        values, name = {"x": x, "w": blocks, "s": filled, "b": bias}, "Linear" + kind
        constant = ("w", "s", "b")
        expected = matmul(x, weights, scales, kind == "8Positive") + bias
    if after.startswith("Add"):
        values["residual"] = whole(rng, *expected.shape)
    if after.endswith("Norm"):
        names = ("gamma",) if "Rms" in after else ("gamma", "beta")
        values |= {one: rng.standard_normal(outputs, dtype=np.float32) for one in names}
    right = outputs_of(expected, after, values)
    attributes = {"epsilon": 1e-5} if after.endswith("Norm") else {}
    run = make_session(name + after, values, len(right), constant, **attributes)
    assert_outputs(run(), right, after)


#: Inputs of a matmul of floats, changed.
WRONG: list[tuple[dict[str, Array], str]] = [
    ({"x": np.ones((2, 1, 12), np.float32)}, "many columns"),
    ({"residual": np.ones((2, 1, 15), np.float32)}, "same shape"),
    ({"w": np.ones((1, 16, 16), np.float32)}, "must be"),
    ({"b": np.ones(65, np.float32)}, "same number"),
    ({"w": np.ones((2, 16, 64), np.float32)}, "same number"),
]


def test_what_does_not_fit_is_refused(make_session: Callable[..., Session]) -> None:
    x = np.ones((2, 1, 16), np.float32)
    values = {"x": x, "w": np.ones((1, 16, 64), np.float32), "b": x[0, 0], "residual": x}
    run = make_session("LinearAdd", values)
    np.testing.assert_array_equal(run()[0], 18)
    for changed, message in WRONG:
        with pytest.raises(Exception, match=message):
            run(changed)
    _, scales, blocks = matrix(np.random.default_rng(0), 16, 16)
    values = {"x": x, "w": blocks, "s": scales, "b": scales, "residual": x}
    run = make_session("Linear8Add", values, constant=("w", "s", "b"))
    for changed, message in WRONG[:2]:
        with pytest.raises(Exception, match=message):
            run(changed)
    with pytest.raises(Exception, match="must be constant"):
        make_session("Linear8Add", values, constant=("s", "b"))


def test_recurrent_unit(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(3)
    rows, columns = 33, 64
    gates = rng.standard_normal((rows, 1, 2 * columns), dtype=np.float32) * 5
    state = rng.standard_normal((rows, 1, columns), dtype=np.float32)
    run = make_session("RecurrentUnit", {"gates": gates, "state": state}, 2)
    state_now, y = run()
    kept = 1 / (1 + np.exp(-gates[..., :columns].astype(np.float64)))
    expected = kept * state + (1 - kept) * gates[..., columns:]
    np.testing.assert_allclose(state_now, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(y, np.maximum(state_now, 0))
    with pytest.raises(Exception, match="twice"):
        run({"state": state[..., 1:]})


def test_gated_gelu(make_session: Callable[..., Session]) -> None:
    x = np.random.default_rng(4).standard_normal((33, 1, 40), dtype=np.float32) * 4
    (found,) = make_session("GatedGelu", {"x": x})()
    wide, gate = np.split(x.astype(float), 2, -1)
    tanh = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    np.testing.assert_allclose(found, 0.5 * wide * (1 + tanh) * gate, rtol=1e-5, atol=1e-6)


def test_sum_and_normalization(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    x, residual = rng.standard_normal((2, 33, 1, 64), dtype=np.float32) * 3 + 1
    gamma, beta = rng.standard_normal((2, 64), dtype=np.float32)
    values: dict[str, Any] = {"x": x, "r": residual, "g": gamma, "b": beta}
    (found,) = make_session("AddNorm", values, epsilon=1e-6)()
    expected = normalized(x + residual, gamma, beta, 1e-6)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    run = make_session("AddAndNorm", values, 2, epsilon=1e-6)
    for one, other in zip(run(), (x + residual, found), strict=True):
        np.testing.assert_array_equal(one, other)
    alone = {"x": x + residual, "g": gamma, "b": beta}
    (same,) = make_session("Norm", alone, epsilon=1e-6)()
    np.testing.assert_array_equal(same, found)
    (found,) = make_session("RmsNorm", {"x": x, "g": gamma}, epsilon=1e-6)()
    np.testing.assert_allclose(found, normalized(x, gamma, None, 1e-6), rtol=2e-5, atol=2e-5)
    for changed, message in (("r", "residual"), ("g", "gamma"), ("b", "beta")):
        with pytest.raises(Exception, match=message):
            run({changed: values[changed][..., 1:]})

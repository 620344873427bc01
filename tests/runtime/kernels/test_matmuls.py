"""Operators of matmuls and rows, against the bodies of their functions.

runtime/cpp/tests/test_kernel_linear.cc has the kernels of all instruction sets in many more sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.operators import Array, Session, assert_as_body, in_panels, matrix, whole

pytestmark = pytest.mark.slow

SIZES = [(1, 4, 1), (7, 512, 96), (133, 128, 80)]

EPSILON = {"epsilon": 1e-5}
AFTER = ("", "Relu", "Gelu", "Swish", "Add", "AddNorm", "AddAndNorm", "AddRmsNorm", "AddAndRmsNorm")

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
        values: dict[str, Array] = {"x": x, "w": in_panels(weights), "b": whole(rng, outputs)}
        name, constant, attributes = "Linear", ("w", "b"), {}
    else:
        blocks, scales = matrix(rng, inputs, outputs)
        x, bias = (rng.standard_normal(s, np.float32) for s in ((rows, 1, inputs), outputs))
        x = np.maximum(x, 0) if kind == "8Positive" else x
        x[-1] = 0  # a row of zeros
        values = {"x": x, "w": blocks, "s": scales, "b": bias}
        name, constant = "Linear" + kind, ("w", "s", "b")
        attributes = {"columns": outputs, "width": inputs}
    if after.startswith("Add"):
        values["residual"] = whole(rng, rows, 1, outputs)
    if after.endswith("Norm"):
        names = ("gamma",) if "Rms" in after else ("gamma", "beta")
        values |= {one: rng.standard_normal(outputs, dtype=np.float32) for one in names}
        attributes |= EPSILON
    near = 2e-5 if after.endswith("Norm") else 2e-6 if after in ("Gelu", "Swish") else 0
    assert_as_body(
        make_session, name + after, values, constant, rtol=near, atol=near,
        shape=[inputs, -1], end=[outputs], **attributes,
    )  # fmt: skip


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
    blocks, scales = matrix(np.random.default_rng(0), 16, 16)
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
    values = {"gates": gates, "state": state}
    assert_as_body(make_session, "RecurrentUnit", values, rtol=2e-6, atol=2e-6)
    with pytest.raises(Exception, match="twice"):
        make_session("RecurrentUnit", values)({"state": state[..., 1:]})


def test_gated_gelu(make_session: Callable[..., Session]) -> None:
    x = np.random.default_rng(4).standard_normal((33, 1, 40), dtype=np.float32) * 4
    assert_as_body(make_session, "GatedGelu", {"x": x})


def test_sum_and_normalization(make_session: Callable[..., Session]) -> None:
    rng = np.random.default_rng(2)
    x, residual = rng.standard_normal((2, 33, 1, 64), dtype=np.float32) * 3 + 1
    gamma, beta = rng.standard_normal((2, 64), dtype=np.float32)
    values: dict[str, Any] = {"x": x, "r": residual, "g": gamma, "b": beta}
    (found,) = assert_as_body(make_session, "AddNorm", values, rtol=2e-5, **EPSILON)
    run = make_session("AddAndNorm", values, **EPSILON)
    for one, other in zip(run(), (x + residual, found), strict=True):
        np.testing.assert_array_equal(one, other)
    alone = {"x": x + residual, "g": gamma, "b": beta}
    (same,) = make_session("Norm", alone, **EPSILON)()
    np.testing.assert_array_equal(same, found)
    assert_as_body(make_session, "RmsNorm", {"x": x, "g": gamma}, rtol=2e-5, **EPSILON)
    for changed, message in (("r", "residual"), ("g", "gamma"), ("b", "beta")):
        with pytest.raises(Exception, match=message):
            run({changed: values[changed][..., 1:]})

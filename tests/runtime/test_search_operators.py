"""The operators of embedding, source, search and slots against the bodies of their functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.operators import operator_session
from support.selections import LOWEST, Array, selection

from translate_trt.export.fused_ops.declarations import function
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime.bundle.contract import FREE, MASKED, UNMARKED, unscored
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.train.config import END

pytestmark = pytest.mark.slow

Inputs = Mapping[str, Array]
Run = Callable[[Inputs], list[Array]]


@pytest.fixture(scope="session")
def functions(compiled_bundle: Path) -> dict[str, onnx.FunctionProto]:
    """Return the functions that the step graphs of a bundle call, by name."""
    manifest, found = read_manifest(compiled_bundle), {}
    for target in ("onnx-fp32", "onnx-int8"):
        path = manifest.target(target).files["step"].locate(compiled_bundle)
        found |= {one.name: one for one in onnx.load(path).functions}
    # Of recurrent models, which the bundle is not, and of encoders.
    names = ("EmbedSource", "EmbedSource8", "SourceBias", "SourceShortlist", "FollowParents")
    return found | {name: ir.to_proto(function(name, DYNAMIC_OPSET)) for name in names}


FACTOR = 1.7
HIDDEN = 1
ATTRIBUTES = {"factor": FACTOR, "hidden": HIDDEN}


def session(function: onnx.FunctionProto, inputs: Inputs, by_kernel: bool) -> Run:
    """Call of a function."""
    return operator_session(
        function.name,
        {name: inputs[name] for name in function.input},
        functions=() if by_kernel else (function,),
        **{name: ATTRIBUTES[name] for name in function.attribute},
    )


@pytest.fixture(scope="session")
def sessions() -> dict[str, tuple[Run, Run]]:
    """Pairs of sessions by function name: with the kernel and with the body."""
    return {}


@pytest.fixture
def both(
    search_kernels: str,
    functions: dict[str, onnx.FunctionProto],
    sessions: dict[str, tuple[Run, Run]],
) -> Callable[[str, Inputs], tuple[list[Array], list[Array]]]:
    """Return the outputs of a function's kernel and body."""

    def run(name: str, inputs: Inputs) -> tuple[list[Array], list[Array]]:
        if name not in sessions:
            function = functions[name]
            assert set(inputs) == set(function.input)
            sessions[name] = (session(function, inputs, True), session(function, inputs, False))
        kernel, body = sessions[name]
        return kernel(inputs), body(inputs)

    return run


def assert_equal(found: tuple[list[Array], list[Array]]) -> list[Array]:
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return found[0]


def assert_equal_but_scores(found: tuple[list[Array], list[Array]]) -> list[Array]:
    """Compare outputs of SelectBeams; the power in the scores is ONNX Runtime's own.

    Parents and tokens of dead beams are arbitrary.
    """
    scores = [outputs.pop(5) for outputs in found]
    np.testing.assert_allclose(*scores, rtol=1e-6)
    for outputs in found:
        for x in outputs[:2]:
            x[outputs[2] == LOWEST] = 0
    return assert_equal(found)


# ---- selection ----


@pytest.mark.parametrize("kind", ["random", "ties", "dead", "ends"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 5), (1, 0), (0, 5)])
def test_selection(both: Any, kind: str, k: int, alpha: float, beta: float) -> None:
    inputs = selection(kind, k, alpha, beta)
    for early in (False, True):
        inputs["early_stopping"][:] = early
        by_kernel, by_body = both("SelectBeams", inputs)
        parents, tokens, log_probs, positions, done, *_ = assert_equal_but_scores(
            (by_kernel, by_body)
        )
        # The input has it all: beams of several parents, sentences that go on and some that do not.
        assert 0 < done.sum() < len(done) or kind in ("dead", "ends")
        assert (positions > inputs["positions"]).any() or done.all()
        assert k == 1 or (parents > 0).any() or kind == "dead"
        assert (tokens[np.isfinite(log_probs)] != END).all()


@pytest.mark.parametrize("kind", ["random", "ties", "dead", "ends"])
@pytest.mark.parametrize("u", [1, 3, 8])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_selection_with_constraints(both: Any, k: int, u: int, kind: str) -> None:
    inputs = selection(kind, k, 0.6, 5, n=60, b=3, u=u)
    divided = assert_equal_but_scores(both("SelectBeams", inputs))
    inputs["constraint_tokens"] = np.full_like(inputs["constraint_tokens"], UNMARKED)
    inputs["other_progress"] = np.zeros_like(inputs["other_progress"])
    assert (divided[1] != assert_equal_but_scores(both("SelectBeams", inputs))[1]).any()


@pytest.mark.parametrize("kind", ["random", "ties"])
@pytest.mark.parametrize(
    ("b", "r", "d"),  # the last has as many candidates as ranks
    [(0, 2, 0), (3, 40, 0), (0, 1, 5), (3, 4, 30), (0, 9, 30)],
)
def test_selection_with_noise(both: Any, b: int, r: int, d: int, kind: str) -> None:
    inputs = selection(kind, 1, 0.6, 5, n=200, b=b, r=r, d=d)
    drawn = assert_equal_but_scores(both("SelectBeams", inputs))
    for name in ("sampling_noise", "tail_noise"):
        inputs[name] = np.full_like(inputs[name], -np.inf)
    best = assert_equal_but_scores(both("SelectBeams", inputs))
    assert (drawn[1] != best[1]).any()


def test_a_certain_token_can_be_banned(both: Any) -> None:
    """A log-probability of 0 times infinity would be NaN."""
    inputs = selection("random", 1, 0, 5, n=1, b=1) | {
        "log_probabilities": np.array([[[0, -5, -6, -7]]], np.float32),
        "choices": np.array([[[7, 8, 9, 10]]]), "log_probs": np.zeros((1, 1), np.float32),
        "forced_tokens": np.array([FREE]), "min_lengths": np.array([0]),
        "marked_tokens": np.array([[[7]]]), "marked_factors": np.array([[[np.inf]]], np.float32),
    }  # fmt: skip
    _, tokens, *_ = assert_equal(both("SelectBeams", inputs))
    assert tokens.tolist() == [[8]]


@pytest.mark.parametrize(
    ("k", "b", "r", "u", "d", "choices"),
    [
        (1, 0, 0, 0, 0, 99), (4, 0, 0, 0, 0, 99), (4, 3, 0, 0, 0, 99), (4, 90, 0, 0, 0, 99),
        (1, 3, 5, 0, 0, 99), (1, 0, 97, 0, 0, 99), (4, 3, 0, 2, 0, 99), (4, 0, 0, 95, 0, 99),
        (1, 0, 5, 0, 3, 99), (1, 0, 5, 2, 3, 99),
    ],
)  # fmt: skip
def test_what_candidates_are_asked_for(
    both: Any, k: int, b: int, r: int, u: int, d: int, choices: int
) -> None:
    forced = np.array([7, FREE, 0, unscored(5), unscored(0)])
    tokens = np.zeros((len(forced), k), np.int64)
    wanted = np.arange(len(forced) * u).reshape(len(forced), u) - 1
    tail = 50 + np.arange(len(forced) * d).reshape(len(forced), d)
    columns, count = assert_equal(
        both(
            "ForcedColumns",
            {
                "forced_tokens": forced,
                "tokens": tokens,
                "marked_tokens": np.zeros((len(forced), k, b), np.int64),
                "sampling_noise": np.zeros((len(forced), r), np.float32),
                "constraint_tokens": wanted,
                "tail_tokens": tail,
                "choices": np.array(choices),
            },
        )
    )
    others = np.maximum(np.concatenate((wanted, tail), 1), 0).tolist()
    assert columns.tolist() == [
        [[token, *own]] * k for token, own in zip((7, 0, 0, 5, 0), others, strict=True)
    ]
    assert count.tolist() == [min(2 * k + 1 + b + r + u, choices)]


# ---- ancestry ----


def ancestry(rng: np.random.Generator, n: int, k: int, p: int, seen: float) -> Array:
    return np.where(rng.random((n, k, p)) < seen, 0, MASKED).astype(np.float32)


# From caches that are nearly free to some that are full.
PASTS = [(1, 1, 1, 0.5), (3, 1, 9, 0.9), (2, 4, 4, 0.4), (5, 4, 37, 0.3), (7, 8, 64, 0.1),
         (4, 3, 40, 0.99), (2, 16, 130, 0.05)]  # fmt: skip


@pytest.mark.parametrize(("n", "k", "p", "seen"), PASTS)
def test_ancestry_follows_the_beams(both: Any, n: int, k: int, p: int, seen: float) -> None:
    rng = np.random.default_rng(p)
    full = []
    for _ in range(4):
        inputs = {"ancestry": ancestry(rng, n, k, p, seen), "parents": rng.integers(0, k, (n, k))}
        following, slots, too_few = assert_equal(both("FollowAncestry", inputs))
        free = (following < 0).all(1)
        assert too_few.tolist() == (free.sum(1) < k).tolist()
        for row in np.flatnonzero(~too_few):
            assert slots[row].tolist() == np.flatnonzero(free[row])[:k].tolist()
        taken = np.stack([rng.permutation(p)[:k] for _ in range(n)])
        extending = {"ancestry": inputs["ancestry"], "slots": taken}
        (extended,) = assert_equal(both("ExtendAncestry", extending))
        np.put_along_axis(inputs["ancestry"], taken[..., None], 0, 2)
        np.testing.assert_array_equal(extended, inputs["ancestry"])
        full += too_few.tolist()
    if p in (40, 64):
        assert any(full) == all(full) == (p == 40)


@pytest.mark.parametrize(("n", "k", "size"), [(1, 1, 1), (3, 1, 8), (5, 4, 37)])
def test_state_follows_the_beams(both: Any, n: int, k: int, size: int) -> None:
    rng = np.random.default_rng(size)
    state, parents = rng.standard_normal((n, k, size), np.float32), rng.integers(0, k, (n, k))
    (following,) = assert_equal(both("FollowParents", {"state": state, "parents": parents}))
    np.testing.assert_array_equal(following, np.take_along_axis(state, parents[..., None], 1))


# ---- embedding ----


def embedding(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    n, k, v, d, t = 5, 3, 29, 21, 12
    inputs = {
        "table": rng.standard_normal((v, d), dtype=np.float32),
        "position_table": rng.standard_normal((t, d), dtype=np.float32),
        "tokens": rng.integers(0, v, (n, k)),
    }
    if "Source" not in name:
        inputs["positions"] = np.array([0, t - 1, 3, 3, 7])
    if name.endswith("8"):
        inputs["table"] = rng.integers(-127, 128, (v, d)).astype(np.int8)
        inputs["scales"] = rng.random((v, 1), dtype=np.float32)
    return inputs


@pytest.mark.parametrize("name", ["Embed", "Embed8", "EmbedSource", "EmbedSource8"])
def test_embedding(both: Any, name: str) -> None:
    inputs = embedding(name)
    (y,) = assert_equal(both(name, inputs))
    table = inputs["table"] * inputs.get("scales", np.float32(1))
    places = inputs["positions"][:, None] if "positions" in inputs else np.arange(3)
    positions = inputs["position_table"][places]
    scaled = table[inputs["tokens"]] * np.float32(FACTOR)
    np.testing.assert_array_equal(y, scaled + positions)


# ---- the source ----


def source(name: str, n: int = 7, s: int = 9, f: int = 6, c: int = 4, v: int = 29) -> Inputs:
    rng = np.random.default_rng(n)
    lengths = rng.integers(1, s + 1, n)
    lengths[0] = s
    inputs = {"source_ids": rng.integers(0, v, (n, s)), "source_lengths": lengths}
    if name == "SourceBias":
        return inputs
    frequent = np.sort(rng.choice(np.arange(2, 2 * f + 3), f, replace=False))
    translations = rng.integers(0, 5 * c, (v, c))  # some are frequent, some repeated, some empty
    tables = {"frequent": frequent, "translations": translations}
    return inputs | {name: table.astype(np.int32) for name, table in tables.items()}


@pytest.mark.parametrize(("n", "s"), [(7, 9), (1, 1), (3, 40)])
def test_padding_and_hidden_tokens_are_masked(both: Any, n: int, s: int) -> None:
    inputs = source("SourceBias", n, s)
    (bias,) = assert_equal(both("SourceBias", inputs))
    is_hidden = np.arange(s) >= inputs["source_lengths"][:, None] - HIDDEN
    np.testing.assert_array_equal(bias[:, 0, 0], np.where(is_hidden, np.float32(MASKED), 0))


@pytest.mark.parametrize(
    ("n", "s", "f", "c"), [(7, 9, 6, 4), (1, 1, 1, 1), (3, 20, 300, 30), (2, 5, 3, 1)]
)
def test_shortlists(both: Any, n: int, s: int, f: int, c: int) -> None:
    inputs = source("SourceShortlist", n, s, f, c)
    (found,) = assert_equal(both("SourceShortlist", inputs))
    for row, ids, length in zip(found, inputs["source_ids"], inputs["source_lengths"], strict=True):
        rows = inputs["translations"][ids[: length - HIDDEN]]
        tokens = np.sort(np.concatenate((inputs["frequent"], rows[rows > 0])))
        tokens[1:][tokens[1:] == tokens[:-1]] = 0  # duplicates, in place
        np.testing.assert_array_equal(row[: len(tokens)], tokens)
        assert not row[len(tokens) :].any()


# ---- what is refused ----

SHAPES = {
    "choices": (24, 4, 8), "log_probs": (24, 3), "done": (23,), "length_penalty_alpha": (),
    "num_hypotheses": (25,), "early_stopping": (1,), "finished_parents": (24, 5),
    "marked_tokens": (24, 4),
    "marked_factors": (24, 4, 1), "sampling_noise": (23, 2), "sampling_temperature": (),
    "sampling_top_p": (23,), "tail_tokens": (23, 0), "tail_noise": (24, 1),
    "constraint_tokens": (23, 0), "constraint_progress": (24, 4, 1), "other_progress": (24, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_selection_refuses_what_does_not_fit(
    search_kernels: str, functions: dict[str, onnx.FunctionProto], name: str
) -> None:
    inputs = selection("random", 4, 0.6, 5)
    inputs[name] = np.zeros(SHAPES[name], inputs[name].dtype)
    run = session(functions["SelectBeams"], inputs, True)
    with pytest.raises(Exception, match="shape"):
        run(inputs)


#: Operator, an input that changes, and the reason of the refusal.
REFUSED: list[tuple[str, str, Any, str]] = [
    ("ExtendAncestry", "slots", [[0, 5]], "range"),
    ("ExtendAncestry", "slots", [[-1, 0]], "range"),
    ("ExtendAncestry", "slots", [[0, 1, 2]], "shape"),
    ("FollowAncestry", "parents", [[0, 2]], "parent"),
    ("FollowAncestry", "parents", [[0, -1]], "parent"),
    ("FollowAncestry", "ancestry", np.zeros((1, 2, 1), np.float32), "each beam"),
    ("FollowParents", "parents", [[0, 2]], "out of range"),
    ("FollowParents", "parents", [[-1, 0]], "out of range"),
    ("FollowParents", "parents", [[0, 1, 1]], "shape"),
    *(
        (name, changed, np.full(shape, value), changed[:-1])
        for name in ("Embed", "Embed8", "EmbedSource")
        for changed, shape, values in (("tokens", (5, 3), (29, -1)), ("positions", 5, (12, -1)))
        for value in values
        if name != "EmbedSource" or changed == "tokens"
    ),
    ("Embed", "positions", np.zeros(4, np.int64), "shape"),
    ("EmbedSource8", "tokens", np.zeros((1, 13), np.int64), "position for each"),
    ("SourceBias", "source_lengths", np.zeros(3, np.int64), "shape"),
    ("SourceShortlist", "source_lengths", np.zeros(3, np.int64), "shape"),
    ("SourceShortlist", "source_ids", np.full((7, 9), 29), "token"),
    ("SourceShortlist", "source_ids", np.full((7, 9), -1), "token"),
    ("SourceShortlist", "frequent", np.array([5, 4], np.int32), "ascend"),
    ("Embed8", "scales", np.zeros((28, 1), np.float32), "each row"),
    ("Embed8", "position_table", np.zeros((12, 20), np.float32), "shape"),
    ("Embed8", "table", np.zeros((29, 20), np.int8), "shape"),
]


SOURCE = ("SourceBias", "SourceShortlist")


@pytest.mark.parametrize(("name", "changed", "value", "message"), REFUSED)
def test_what_is_out_of_range_or_does_not_fit(
    search_kernels: str, functions: dict[str, onnx.FunctionProto],
    name: str, changed: str, value: Any, message: str,
) -> None:  # fmt: skip
    beams, ancestry = np.array([[0, 1]]), np.zeros((1, 2, 5), np.float32)
    right = {
        "ExtendAncestry": {"ancestry": ancestry, "slots": beams},
        "FollowAncestry": {"ancestry": ancestry, "parents": beams},
        "FollowParents": {"state": ancestry, "parents": beams},
    }
    inputs = right.get(name) or (source if name in SOURCE else embedding)(name)
    run = session(functions[name], inputs, True)
    run(inputs)
    with pytest.raises(Exception, match=message):
        run({**inputs, changed: np.asarray(value)})

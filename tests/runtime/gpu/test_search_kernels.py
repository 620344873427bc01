"""The kernels of the search on GPUs, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.scripted import (
    END,
    ScriptedGraphs,
    ScriptedModel,
    random_script,
    scripted_search,
)
from support.selections import selection
from support.translations import assert_same
from torch import Tensor
from torch.overrides import TorchFunctionMode

from translate_trt.export.graphs import StaticCaches
from translate_trt.export.search_step import BeamSearchStep, Candidates, Request, State
from translate_trt.runtime.backends.pytorch.onnx_operators import top_k
from translate_trt.runtime.bundle.contract import MASKED
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.runtime.gpu.ancestry import follow_ancestry, follow_parents
from translate_trt.runtime.gpu.launch import Launch
from translate_trt.runtime.gpu.select_beams import INPUTS, OUTPUTS, select_beams
from translate_trt.runtime.gpu.top_logits import top_logits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MARGIN = 64


def poison(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else 1 if dtype == torch.bool else 2**40


def guarded(x: Tensor) -> Tensor:
    """Copy a tensor to the device, between two margins that no kernel may read or write."""
    size = x.numel() + 2 * MARGIN
    memory = torch.full((size,), poison(x.dtype), dtype=x.dtype, device=DEVICE)
    copy = memory[MARGIN:-MARGIN].view(x.shape)
    return copy.copy_(x)


def output(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return guarded(torch.zeros(shape, dtype=dtype))


def run(launches: Sequence[Launch], outputs: Sequence[Tensor]) -> list[Tensor]:
    """Run kernels, check the margins of their outputs, and return these on the CPU."""
    for launch in launches:
        launch.run()
    for x in outputs:
        memory = torch.empty(0, dtype=x.dtype, device=DEVICE).set_(x.untyped_storage())
        margins = torch.cat((memory[:MARGIN], memory[-MARGIN:]))
        assert_bits(margins, torch.full_like(margins, poison(x.dtype)))
    return [x.cpu() for x in outputs]


def assert_bits(found: Tensor, expected: Tensor) -> None:
    """Compare all bits but the sign of zero and those of NaN."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


class TotalOrder(TorchFunctionMode):
    """Let `Tensor.topk` take the first of equal values, as ONNX's TopK does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return top_k(*args) if func is Tensor.topk else func(*args, **(kwargs or {}))


# ---- top logits ----


def find_top(
    logits: Tensor, forced: Tensor, count: int, bias: Tensor | None = None
) -> list[Tensor]:
    n, k, _ = logits.shape
    found = output(n, k, count), output(n, k, count, dtype=torch.int64), output(n, k, 1)
    own = None if bias is None else guarded(bias)
    return run(top_logits(guarded(logits), guarded(forced), *found, own), found)


def body_of_top_logits(logits: Tensor, forced: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See export/fused_ops/bodies/gpu_top_logits.onnxtxt."""
    columns = torch.maximum(forced, -2 - forced).clamp(min=0)[:, None, None]
    columns = columns.expand(-1, logits.shape[1], -1)
    logits = logits.float()
    best, indices = top_k(logits, count)
    log_total = best[..., :1] - logits.softmax(-1).gather(-1, indices[..., :1]).log()
    return best - log_total, indices, logits.gather(-1, columns) - log_total


def random_logits(n: int, k: int, v: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(v)
    logits = 3 * torch.randn(n, k, v, generator=generator)
    return logits, torch.randint(-1 - v, v, (n,), generator=generator)


@pytest.mark.parametrize(
    ("n", "k", "v", "dtype"),
    [
        (2, 1, 3, torch.float32), (2, 2, 7, torch.float16), (2, 3, 64, torch.bfloat16),
        (1, 16, 33, torch.float16), (2, 4, 2048, torch.float32), (2, 4, 4099, torch.float16),
        (1, 16, 37_000, torch.float16), (1, 4, 37_000, torch.bfloat16),
        (1, 5, 32_001, torch.float32),
    ],
)  # fmt: skip
def test_top_logits(n: int, k: int, v: int, dtype: torch.dtype) -> None:
    logits, forced = random_logits(n, k, v)
    logits[0, 0] = logits[0, 0].ceil()  # ties
    logits[-1, -1, 1:-1] = -torch.inf
    logits = logits.to(dtype)
    found = find_top(logits, forced, 2 * k + 1)
    expected = body_of_top_logits(logits, forced, 2 * k + 1)
    assert_bits(found[1], expected[1])
    for index in (0, 2):
        torch.testing.assert_close(found[index], expected[index], rtol=1e-5, atol=1e-5)


def test_top_logits_with_a_bias() -> None:
    logits, forced = random_logits(3, 4, 2500)
    bias = torch.randn(2500, generator=torch.Generator().manual_seed(0))
    bias[::3] = -1e4
    found = find_top(logits.half(), forced, 9, bias)
    for one, other in zip(found, find_top(logits.half().float() + bias, forced, 9), strict=True):
        assert_bits(one, other)


def test_top_logits_of_unusual_rows() -> None:
    rows, v, k = 7, 2500, 8
    logits, forced = random_logits(rows, 1, v)
    # Both signs of NaN, and groups whose largest numbers are zeros of both signs, or infinite.
    nan = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32).view(torch.float32)
    logits[1] = -torch.inf
    logits[2] = 0.0
    logits[2, 0, ::3] = -0.0
    logits[3] -= 100
    logits[3, 0, [5, 2400]], logits[3, 0, [64, 2499]] = torch.inf, nan
    logits[4, 0, 2300:2303] = nan[1]
    logits[5] = nan[1]
    logits[6, 0, : 2 * v // 3] = -torch.inf  # whole blocks
    found = find_top(logits, forced, 2 * k + 1)
    expected = body_of_top_logits(logits, forced, 2 * k + 1)
    assert_bits(found[1], expected[1])
    for index in (0, 2):
        torch.testing.assert_close(
            found[index], expected[index], rtol=1e-6, atol=1e-6, equal_nan=True
        )


def test_top_logits_of_a_row_are_its_own() -> None:
    logits, forced = random_logits(3, 2, 4100)
    together = find_top(logits, forced, 5)
    others = logits.clone()
    others[[0, 2]] = torch.nan
    padding = torch.full((3, 2, 2100), -torch.inf)
    for found in (
        find_top(others, forced, 5),
        find_top(torch.cat((logits, padding), -1), forced, 5),
    ):
        for one, other in zip(found, together, strict=True):
            assert_bits(one[1], other[1])
    for one, other in zip(find_top(logits[1:2], forced[1:2], 5), together, strict=True):
        assert_bits(one[0], other[1])


# ---- selection ----


def select(inputs: Mapping[str, NDArray[Any]], in_place: bool = False) -> list[Tensor]:
    """Run the kernel on the inputs of SelectBeams by name."""
    tensors = [guarded(torch.from_numpy(np.ascontiguousarray(inputs[name]))) for name in INPUTS]
    like = dict(zip(INPUTS, tensors, strict=True))
    like |= {name: guarded(like["finished_parents"]) for name in ("parents", "tokens")}
    found = [like[name.removeprefix("next_")] for name in OUTPUTS]
    if not in_place:
        found = [guarded(torch.zeros_like(x)) for x in found]
    return run(select_beams(tensors, found, END), found)


def by_module(inputs: Mapping[str, NDArray[Any]]) -> list[Tensor]:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in inputs.items()}
    tensors["tokens"] = tensors["finished_parents"]  # only its shape counts
    candidates = Candidates(*(tensors[name] for name in INPUTS[:3]))
    request = Request(*(tensors[name] for name in Request._fields))
    state = State(*(tensors[name] for name in State._fields))
    with TotalOrder():
        parents, following = BeamSearchStep(END).select(candidates, request, state)
    return [parents, *following]


def random_selection(kind: str, k: int, n: int) -> dict[str, NDArray[Any]]:
    """Return inputs of sentences that differ in all their options."""
    rng = np.random.default_rng(k)
    return selection(kind, k, 0.6, 5, n) | {
        "early_stopping": rng.random(n) < 0.5,
        "length_penalty_alpha": rng.choice([0, 0.6, 1, 2], n).astype(np.float32),
        "length_penalty_beta": rng.choice([0, 5], n).astype(np.float32),
        "max_lengths": rng.integers(1, 12, n),
    }


@pytest.mark.parametrize("kind", ["random", "ties", "dead", "ends"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 16])
def test_select_beams(k: int, kind: str) -> None:
    inputs = random_selection(kind, k, 9)
    found, expected = (dict(zip(OUTPUTS, x(inputs), strict=True)) for x in (select, by_module))
    # PyTorch's power of float32 is not always the nearest number.
    scores = (x.pop("next_finished_scores") for x in (found, expected))
    torch.testing.assert_close(*scores, rtol=2.5e-7, atol=0)
    for name in found:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("k", [1, 4])
def test_a_sentence_with_nan_has_its_own_results_and_neighbours_keep_theirs(k: int) -> None:
    inputs = random_selection("random", k, 12)
    inputs["max_lengths"][7] = inputs["positions"][7] + 1
    inputs["done"][7] = False
    before = select(inputs)
    for name, row, at in (
        ("log_probabilities", 1, ...), ("log_probabilities", 3, (0, 2)), ("log_probs", 5, ...),
        ("finished_scores", 7, 0),
    ):  # fmt: skip
        inputs[name] = inputs[name].copy()
        inputs[name][row][at] = np.nan
    after, expected = select(inputs), by_module(inputs)
    for found, other, own in zip(after, before, expected, strict=True):
        torch.testing.assert_close(found, own, rtol=2.5e-7, atol=0, equal_nan=True)
        assert_bits(found[::2], other[::2])
    alone = select({name: x[8:9] if np.ndim(x) else x for name, x in inputs.items()})
    for found, other in zip(alone, before, strict=True):
        assert_bits(found[0], other[8])


def test_a_state_may_be_updated_in_place() -> None:
    inputs = random_selection("random", 4, 9)
    for found, other in zip(select(inputs, in_place=True), select(inputs), strict=True):
        assert_bits(found, other)


# ---- whole searches ----


def kernel_step(logits: NDArray[Any], *inputs: NDArray[Any]) -> list[NDArray[Any]]:
    """Run a step of the search with the kernels, as `support.scripted.torch_step` does."""
    named = dict(zip((*Request._fields, *State._fields), inputs, strict=False))
    k = logits.shape[1]
    forced = torch.from_numpy(named["forced_tokens"])
    found = find_top(torch.from_numpy(logits), forced, 2 * k + 1)
    candidates = dict(zip(INPUTS, (x.numpy() for x in found), strict=False))
    return [x.numpy() for x in select(named | candidates)]


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(1, max_length=7),
        SearchOptions(2, num_hypotheses=2, early_stopping=True, max_length=9),
        SearchOptions(4, num_hypotheses=4, min_length=3, max_length=7),
        SearchOptions(3, 1.0, length_penalty_form="length", num_hypotheses=2, max_length=7),
    ],
    ids=lambda options: str(options.beam_size),
)
def test_searches(options: SearchOptions) -> None:
    scripts = [random_script(seed, 9) for seed in range(3)]
    sources, prefixes = [[4], [5], [6]], [[], [5], [6, 7]]
    found = scripted_search(ScriptedGraphs(scripts, kernel_step), options, sources, prefixes)
    model = cast(Transformer, ScriptedModel(scripts))
    assert_same(found, beam_search(model, sources, options, prefixes))
    assert len({len(hypotheses[0].tokens) for hypotheses in found}) > 1


# ---- the past ----


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("n", "k", "p"), [(1, 1, 1), (3, 1, 9), (3, 4, 40), (2, 3, 600), (2, 16, 512)]
)
def test_follow_ancestry(n: int, k: int, p: int, in_place: bool) -> None:
    rng = np.random.default_rng(p)
    ancestry = torch.from_numpy(rng.choice([0, MASKED], (n, k, p)).astype(np.float32))
    positions = torch.from_numpy(rng.integers(0, p // k, n))
    parents = torch.from_numpy(rng.integers(0, k, (n, k)))
    extended = StaticCaches(positions, k).extend(ancestry)
    past = guarded(ancestry)
    following = past if in_place else output(n, k, p)
    launches = follow_ancestry(past, guarded(positions), guarded(parents), following)
    (found,) = run(launches, [following])
    assert_bits(found, extended.gather(1, parents[..., None].expand_as(ancestry)))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("n", "k", "size"), [(1, 1, 1), (3, 4, 37), (2, 3, 700)])
def test_follow_parents(n: int, k: int, size: int, in_place: bool) -> None:
    rng = np.random.default_rng(size)
    state = torch.from_numpy(rng.standard_normal((n, k, size), np.float32))
    parents = torch.from_numpy(rng.integers(0, k, (n, k)))
    past = guarded(state)
    following = past if in_place else output(n, k, size)
    (found,) = run(follow_parents(past, guarded(parents), following), [following])
    assert_bits(found, state.gather(1, parents[..., None].expand_as(state)))

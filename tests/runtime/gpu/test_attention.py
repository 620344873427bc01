"""Attention kernels of a decoding step, against float64 and the torch targets' own operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; run pip install triton")

from translate_trt.runtime.backends.pytorch.onnx_operators import scatter_slots
from translate_trt.runtime.bundle.contract import MASKED
from translate_trt.runtime.gpu.attention import (
    beam_attention,
    beam_attention_mean,
    cached_attention,
)
from translate_trt.runtime.gpu.launch import Launch

#: Largest relative error of a beam's context: weights are rounded to the type before they multiply
#: values, and the result is rounded again.
ERRORS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6}
TYPES = tuple(ERRORS)

NAN = float("nan")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a case, by the letters of runtime/bundle/contract.py; T is the element type."""

    N: int
    K: int
    H: int
    D: int
    length: int
    T: torch.dtype

    def __str__(self) -> str:
        kind = str(self.T).removeprefix("torch.")
        return f"N{self.N}-K{self.K}-H{self.H}-D{self.D}-length{self.length}-{kind}"


def cases(count: int, seed: int) -> list[Any]:
    """Small random sizes, and a few with long sentences."""
    rng = random.Random(seed)
    sizes = [
        Sizes(
            N=rng.randint(1, 3), K=rng.randint(1, 16), H=rng.choice((4, 6)),
            D=rng.choice((32, 33, 64, 80, 96, 128)), length=rng.choice((0, 1, 5, 11, 23)),
            T=TYPES[i % 3],
        )
        for i in range(count)
    ]  # fmt: skip
    sizes += [Sizes(1, 4, 4, 64, 128, T) for T in TYPES]
    sizes += [Sizes(2, 4, 16, 64, 12, torch.float16), Sizes(1, 1, 4, 32, 512, torch.float16)]
    return [pytest.param(case, id=str(case)) for case in sizes]


def run(launches: Iterable[Launch]) -> None:
    for launch in launches:
        launch.run()


def bits(x: Tensor) -> Tensor:
    """Return x [..., D] as integers, for which NaNs are equal, too."""
    return x.contiguous().view(torch.uint8)


def assert_close(found: Tensor, expected: Tensor, kind: torch.dtype, factor: float = 1) -> None:
    """Compare found and expected [N, K, H * D]."""
    error = (found.double() - expected.double()).norm(dim=-1)
    limit = factor * ERRORS[kind] * expected.double().norm(dim=-1)
    assert (error <= limit).all(), float((error / limit).max())


# ---- over the caches ----


@dataclass
class Step:
    """Arguments of `cached_attention` in the order of a real search; slots not written are NaN."""

    qkv: Tensor
    past_key: Tensor
    past_value: Tensor
    ancestry: Tensor
    positions: Tensor
    done: Tensor

    def rows(self, rows: slice) -> Step:
        """Return a copy of a range of rows."""
        return Step(*(x[rows].clone() for x in vars(self).values()))

    def attend(self, heads: int, distances: Tensor | None = None) -> Tensor:
        n, k, width = self.qkv.shape
        context = torch.full_like(self.qkv[..., : width // 3], NAN)
        given = {"context": context, "distances": distances}
        run(cached_attention(**vars(self), **given, heads=heads))
        assert context.shape == (n, k, width // 3)
        return context


def make_step(case: Sizes, device: torch.device) -> Step:
    """Return a step whose sentences have different ages; beams have random parents."""
    random_ = torch.Generator().manual_seed(case.length + case.D)
    n, k, h, d = case.N, case.K, case.H, case.D
    slots = (case.length + 2) * k
    ancestry = torch.full((n, k, slots), MASKED)
    positions = torch.tensor([max(0, case.length - 3 * row) for row in range(n)])
    for row in range(n):
        for t in range(int(positions[row])):
            ancestry[row, torch.arange(k), t * k + torch.arange(k)] = 0
            ancestry[row] = ancestry[row, torch.randint(0, min(k, 3), (k,), generator=random_)]
    caches = torch.randn(2, n, h, slots + 3 * k, d, generator=random_)
    is_dead = torch.ones(n, slots + 3 * k, dtype=torch.bool)
    is_dead[:, :slots] = (ancestry == MASKED).all(1)
    for row in range(n):
        ancestry[row, :, int(positions[row]) * k :] = 0  # of no slot that is written yet
    caches.masked_fill_(is_dead[:, None, :, None], NAN)
    qkv = torch.randn(n, k, 3 * h * d, generator=random_)
    qkv[..., : h * d] *= 2 * d**-0.5
    done = torch.zeros(n, dtype=torch.bool)
    tensors = (x.to(device, case.T) for x in (qkv, *caches))
    return Step(*tensors, *(x.to(device) for x in (ancestry, positions, done)))


def expected_context(
    step: Step, heads: int, kind: torch.dtype, distances: Tensor | None = None
) -> Tensor:
    """Compute the context as the graph of a torch target does, in `kind`; update the caches."""
    n, k, width = step.qkv.shape
    query, key, value = (
        x.reshape(n, k, heads, -1).transpose(1, 2) for x in step.qkv.split(width // 3, -1)
    )
    slots = scatter_slots(step.positions * k, key)
    p = step.ancestry.shape[2]
    for cache, new in ((step.past_key, key), (step.past_value, value)):
        cache.scatter_(2, slots.expand_as(new), new)
    columns = torch.arange(p, device=slots.device)
    own = slots[:, 0] == columns  # [N, K, P]
    past = torch.where(columns < slots[:, :, :1, 0], step.ancestry, MASKED)
    bias = torch.where(own, 0.0, past)[:, None]
    if distances is not None:
        rows = (step.positions[:, None] - columns // k).clamp(0, distances.shape[1] - 1)
        bias = bias + distances[:, rows].transpose(0, 1)[:, :, None]
    bias = bias.to(kind)
    keys, values = (x[:, :, :p].nan_to_num(0).to(kind) for x in (step.past_key, step.past_value))
    attend = torch.nn.functional.scaled_dot_product_attention
    context = attend(query.to(kind), keys, values, bias, scale=1.0)
    return context.transpose(1, 2).reshape(n, k, width // 3)


@pytest.mark.parametrize("case", cases(18, seed=1))
def test_attention_over_the_caches(case: Sizes, device: torch.device) -> None:
    step = make_step(case, device)
    exact = expected_context(step.rows(slice(None)), case.H, torch.float64)
    graph = step.rows(slice(None))
    today = expected_context(graph, case.H, case.T)
    found = step.attend(case.H)
    assert_close(found, exact, case.T)
    assert_close(found, today, case.T, factor=2)
    assert torch.equal(bits(step.past_key), bits(graph.past_key))
    assert torch.equal(bits(step.past_value), bits(graph.past_value))


@pytest.mark.parametrize("most", [3, 40])
@pytest.mark.parametrize("kind", TYPES)
def test_distances_have_biases(most: int, kind: torch.dtype, device: torch.device) -> None:
    """Distances beyond the largest one have its bias, and a beam's own slot that of 0."""
    case = Sizes(2, 3, 4, 33, 23, kind)
    step = make_step(case, device)
    random_ = torch.Generator().manual_seed(most)
    distances = 2 * torch.randn(case.H, most + 1, generator=random_).to(device)
    exact = expected_context(step.rows(slice(None)), case.H, torch.float64, distances)
    assert_close(step.attend(case.H, distances), exact, kind)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_caches_depends_on_nothing_else(device: torch.device, kind: torch.dtype) -> None:
    case = Sizes(3, 4, 2, 64, 40, kind)  # several blocks
    step = make_step(case, device)
    alone = [step.rows(slice(row, row + 1)) for row in range(case.N)]
    found = step.attend(case.H)
    for row, one in enumerate(alone):
        end = (int(one.positions) + 1) * case.K  # the smallest P and C
        one.ancestry = one.ancestry[..., :end].contiguous()
        one.past_key, one.past_value = (
            x[:, :, :end].contiguous() for x in (one.past_key, one.past_value)
        )
        assert torch.equal(bits(one.attend(case.H)), bits(found[row : row + 1]))


def test_rows_that_are_done_ignore_their_past(device: torch.device) -> None:
    case = Sizes(2, 4, 4, 64, 9, torch.float16)
    step = make_step(case, device)
    both = step.rows(slice(None)).attend(case.H)
    step.done[0] = True
    step.past_key[0] = step.past_value[0] = NAN
    found = step.attend(case.H)
    assert torch.equal(found[0], step.qkv[0, :, 2 * case.H * case.D :])
    assert torch.equal(found[1], both[1])


def test_nothing_behind_the_caches_is_written(device: torch.device) -> None:
    case = Sizes(2, 4, 4, 32, 3, torch.float16)
    step = make_step(case, device)
    capacity = step.past_key.shape[2]
    step.positions = torch.tensor([capacity // case.K, 1000], device=device)
    step.past_key = step.past_key[:, :, : capacity - 2].contiguous()
    step.past_value = step.past_value[:, :, : capacity - 2].contiguous()
    step.positions[0] -= 1  # two of four beams fit
    before = step.rows(slice(None))
    step.attend(case.H)
    for cache, past in ((step.past_key, before.past_key), (step.past_value, before.past_value)):
        assert not cache[0, :, capacity - 4 :].isnan().any()
        assert torch.equal(bits(cache[0, :, : capacity - 4]), bits(past[0, :, : capacity - 4]))
        assert torch.equal(bits(cache[1]), bits(past[1]))


# ---- over the source ----


@dataclass
class Source:
    """Arguments of `beam_attention`; padding is NaN."""

    query: Tensor
    key: Tensor
    value: Tensor
    source_bias: Tensor
    done: Tensor

    def rows(self, rows: slice) -> Source:
        """Return a copy of a range of rows."""
        return Source(*(x[rows].clone() for x in vars(self).values()))

    def attend(self, heads: int) -> Tensor:
        context = torch.full_like(self.query, NAN)
        run(beam_attention(**vars(self), context=context, heads=heads))
        return context

    def attend_and_average(self, heads: int, averaged: list[int]) -> tuple[Tensor, Tensor]:
        n, k = self.query.shape[:2]
        context = torch.full_like(self.query, NAN)
        mean = torch.full((n, k, self.key.shape[2]), NAN, device=context.device)
        run(
            beam_attention_mean(
                **vars(self), context=context, attention=mean, heads=heads, averaged=averaged
            )
        )
        return context, mean


def make_source(case: Sizes, device: torch.device) -> Source:
    """Return sentences of different lengths."""
    random_ = torch.Generator().manual_seed(case.length + case.D)
    size = max(1, case.length)
    lengths = torch.tensor([max(1, size // (row + 1)) for row in range(case.N)])
    is_padding = torch.arange(size) >= lengths[:, None]  # [N, S]
    bias = torch.where(is_padding, MASKED, 0.0)[:, None, None]
    memory = torch.randn(2, case.N, case.H, size, case.D, generator=random_)
    memory.masked_fill_(is_padding[:, None, :, None], NAN)
    query = torch.randn(case.N, case.K, case.H * case.D, generator=random_) * 2 * case.D**-0.5
    tensors = (x.to(device, case.T) for x in (query, *memory))
    done = torch.zeros(case.N, dtype=torch.bool, device=device)
    return Source(*tensors, bias.to(device), done)


@pytest.mark.parametrize("case", cases(18, seed=2))
def test_attention_over_the_source(case: Sizes, device: torch.device) -> None:
    source = make_source(case, device)
    found = source.attend(case.H)
    averaged = [case.H - 1, 0] if case.D % 64 else [*range(case.H)]
    context, mean = source.attend_and_average(case.H, averaged)
    assert torch.equal(bits(context), bits(found))

    def expected(kind: torch.dtype) -> tuple[Tensor, Tensor]:
        """Context and weights [N, H, K, S]."""
        heads = source.query.reshape(case.N, case.K, case.H, case.D).transpose(1, 2).to(kind)
        keys, values = (x.nan_to_num(0).to(kind) for x in (source.key, source.value))
        bias = source.source_bias.to(kind)
        attend = torch.nn.functional.scaled_dot_product_attention
        context = attend(heads, keys, values, bias, scale=1.0)
        weights = (heads @ keys.transpose(2, 3) + bias).softmax(-1)
        return context.transpose(1, 2).reshape_as(found), weights

    exact, weights = expected(torch.float64)
    assert_close(found, exact, case.T)
    assert_close(found, expected(case.T)[0], case.T, factor=2)
    torch.testing.assert_close(mean.double(), weights[:, averaged].mean(1), rtol=2e-5, atol=1e-7)
    is_padding = source.source_bias[:, 0] < 0  # [N, 1, S]
    assert not mean.masked_select(is_padding).any()


def shorter(source: Source, size: int) -> Source:
    """Return a copy with S = size."""
    key, value = (x[:, :, :size].contiguous() for x in (source.key, source.value))
    bias = source.source_bias[..., :size].contiguous()
    return Source(source.query, key, value, bias, source.done)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_sources_depends_on_nothing_else(device: torch.device, kind: torch.dtype) -> None:
    case = Sizes(3, 4, 4, 64, 150, kind)
    source = make_source(case, device)
    found, mean = source.attend_and_average(case.H, [1, 2])
    for row in range(case.N):
        length = int((source.source_bias[row] == 0).sum())
        one = shorter(source.rows(slice(row, row + 1)), length)
        context, weights = one.attend_and_average(case.H, [1, 2])
        assert torch.equal(context[0], found[row])
        assert torch.equal(weights[0], mean[row, :, :length])


@pytest.mark.parametrize("hide", ["done", "padding"])
def test_rows_without_source_get_zeros(device: torch.device, hide: str) -> None:
    case = Sizes(2, 3, 4, 32, 20, torch.float16)
    source = make_source(case, device)
    both, _ = source.attend_and_average(case.H, [0])
    if hide == "done":
        source.done[0] = True
    else:
        source.source_bias[0] = MASKED
    source.key[0] = source.value[0] = NAN
    found, mean = source.attend_and_average(case.H, [0])
    assert not found[0].any()
    assert not mean[0].any()
    assert torch.equal(found[1], both[1])


@pytest.mark.parametrize("make", [make_step, make_source])
def test_masked_entries_may_lie_between_others(
    device: torch.device, make: Callable[[Sizes, torch.device], Step | Source]
) -> None:
    """Blocks without any entry come first and in between."""
    case = Sizes(1, 2, 4, 128, 100, torch.float32)
    inputs = make(case, device)
    if isinstance(inputs, Step):
        inputs.ancestry[..., :40] = inputs.ancestry[..., 80:150] = MASKED
        expected = expected_context(inputs.rows(slice(None)), case.H, torch.float64)
        inputs.past_key[:, :, :40] = inputs.past_value[:, :, 80:150] = NAN
    else:
        inputs.source_bias[..., :40] = inputs.source_bias[..., 60:90] = MASKED
        kept = [*range(40, 60), *range(90, 100)]
        dense = Source(inputs.query, inputs.key[:, :, kept].contiguous(),
                       inputs.value[:, :, kept].contiguous(),
                       inputs.source_bias[..., kept].contiguous(), inputs.done)  # fmt: skip
        expected = dense.attend(case.H)
        inputs.key[:, :, :40] = inputs.value[:, :, 60:90] = NAN
    assert_close(inputs.attend(case.H), expected, case.T)

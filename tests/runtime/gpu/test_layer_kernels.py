"""Kernels of norms, activations, embeddings and recurrent units, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.runtime.gpu.activation import bias_activation, cast, gated_gelu
from translate_trt.runtime.gpu.embedding import embed
from translate_trt.runtime.gpu.launch import Launch
from translate_trt.runtime.gpu.norm import norm
from translate_trt.runtime.gpu.recurrence import recurrent_norm, recurrent_unit

pytestmark = pytest.mark.slow

TYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDTHS = (5, 64, 96, 512, 1024)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


def run(launches: tuple[Launch, ...]) -> None:
    for launch in launches:
        launch.run()


def guarded(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor between rows of NaN, which no kernel may read."""
    memory = torch.full((x.numel() + 64,), torch.nan, dtype=x.dtype, device=device)
    return memory[32:-32].view(x.shape).copy_(x)


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Compare a cast; of BF16, the interpreter cuts bits off where a GPU rounds."""
    error = 2**-7 if found.dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found, exact.to(found.dtype), rtol=error, atol=0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width: int, dtype: torch.dtype, device: torch.device) -> None:
    random = torch.Generator().manual_seed(width)

    def values(*shape: int) -> Tensor:
        return guarded(torch.randn(shape, generator=random), device)

    x = guarded(values(3, 2, width).to(dtype), device)
    residual, bias, gamma, beta = values(3, 2, width) + 100, *(values(width) for _ in range(3))
    for has_bias, has_residual, shift in (
        (True, True, beta), (False, True, beta), (False, False, beta), (True, True, None)
    ):  # fmt: skip
        given = bias if has_bias else None, residual if has_residual else None
        total, y = (guarded(torch.zeros(3, 2, width), device) for _ in range(2))
        cast = guarded(torch.zeros_like(x), device)
        run(norm(x, *given, gamma, shift, total, y, cast, epsilon=1e-5))
        sums = sum((one for one in given if one is not None), x.float())
        assert torch.equal(total, sums)
        expected = F.layer_norm(sums.double(), (width,), gamma.double(), beta.double(), 1e-5)
        if shift is None:
            expected = F.rms_norm(sums.double(), (width,), gamma.double(), 1e-5)
        # The sums are near 100, so that float32 has 17 bits of their differences.
        torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=2e-4)
        assert_rounded(cast, y)
        alone = torch.zeros(1, 1, width, device=device)
        row = [None if one is None else one[1:2, 1:2] if one.ndim == 3 else one for one in given]
        run(norm(x[1:2, 1:2].clone(), *row, gamma, shift, None, alone, None, epsilon=1e-5))
        assert torch.equal(alone[0, 0], y[1, 1])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_embeddings(width: int, dtype: torch.dtype, device: torch.device) -> None:
    table = guarded(torch.randn(7, width).to(dtype), device)
    position_table = guarded(torch.randn(9, width), device)
    tokens = torch.tensor([[0, 6], [3, 1], [6, 6]], device=device)
    positions = torch.tensor([8, 0, 4], device=device)
    y, cast = (
        torch.zeros(3, 2, width, device=device),
        torch.zeros(3, 2, width, dtype=dtype, device=device),
    )
    run(embed(table, position_table, tokens, positions, y, cast))
    assert torch.equal(y, table[tokens].float() + position_table[positions][:, None])
    assert_rounded(cast, y)
    y.zero_()
    run(embed(table, position_table, tokens, positions, None, cast))
    assert not y.any()
    run(embed(table, position_table, tokens, None, y, cast))
    assert torch.equal(y, table[tokens].float() + position_table[:2])
    assert_rounded(cast, y)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_recurrent_units(width: int, dtype: torch.dtype, device: torch.device) -> None:
    gates = guarded(torch.randn(3, 2, 2 * width).to(dtype), device)
    state = guarded(torch.randn(3, 2, width), device)
    found: list[Any] = [guarded(torch.zeros(3, 2, width), device) for _ in range(2)]
    run(recurrent_unit(gates, state, *found))
    logit, x = gates.double().chunk(2, -1)
    expected = torch.lerp(x, state.double(), logit.sigmoid())
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[1], found[0].relu())
    residual, gamma, beta = (
        guarded(torch.randn(shape), device) for shape in (state.shape, (width,), (width,))
    )
    state_2, total, y = (guarded(torch.zeros(3, 2, width), device) for _ in range(3))
    cast = guarded(torch.zeros(3, 2, width, dtype=dtype), device)
    run(recurrent_norm(
        gates, state, residual, gamma, beta, state_2, total, y, cast, epsilon=1e-5
    ))  # fmt: skip
    assert torch.equal(state_2, found[0])
    assert torch.equal(total, found[1] + residual)
    torch.testing.assert_close(y, F.layer_norm(total, (width,), gamma, beta, 1e-5))
    assert_rounded(cast, y)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("gelu", [True, False])
def test_activations(gelu: bool, dtype: torch.dtype, device: torch.device) -> None:
    x = guarded((3 * torch.randn(3, 5, 137)).to(dtype), device)
    bias, y = guarded(torch.randn(137), device), guarded(torch.zeros(3, 5, 137), device)
    run(bias_activation(x, bias, y, gelu=gelu))
    exact = (F.gelu if gelu else F.silu)(x.double() + bias.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-6)
    cast = guarded(torch.zeros_like(x), device)
    run(bias_activation(x, bias, cast, gelu=gelu))
    assert_rounded(cast, y)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gated_activations_and_casts(dtype: torch.dtype, device: torch.device) -> None:
    x = guarded((3 * torch.randn(3, 5, 2 * 137)).to(dtype), device)
    x[0, 0] = -1e4
    y = guarded(torch.zeros(3, 5, 137), device)
    narrow = guarded(y.to(dtype), device)
    run(gated_gelu(x, y))
    inner, gate = x.double().chunk(2, -1)
    exact = F.gelu(inner, approximate="tanh") * gate
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-6)
    run((cast(y, narrow),))
    assert_rounded(narrow, y)
    run((cast(narrow, y),))
    assert torch.equal(y, narrow.float())

"""Residual + dropout + LayerNorm against float64; on a CPU, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed: pip install triton", allow_module_level=True)

from translate_trt.train import fused_norm
from translate_trt.train.config import ModelConfig
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.fused_norm import residual_norm
from translate_trt.train.model import Residual, Transformer
from translate_trt.train.trainer.objective import Objective

EPSILON = 1e-5


def inputs(
    rows: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(width)
    x, sublayer = (torch.randn(*rows, width, generator=random) for _ in range(2))
    gamma, beta = (torch.randn(width, generator=random) for _ in range(2))
    given = (x + 3, sublayer.to(dtype), gamma, beta)
    return tuple(x.to(device).requires_grad_() for x in given)


def gradients_of(y: Tensor, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return gradients of a sum with different weights."""
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
    return torch.autograd.grad((y * weights).sum(), given)


@pytest.mark.parametrize(
    ("rows", "width"), [((2,), 512), ((1, 7), 96), ((1, 1), 16), ((3, 2), 6), ((9,), 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_without_dropout(
    rows: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device
) -> None:
    given = inputs(rows, width, dtype, device)
    found = residual_norm(*given, 0.0, EPSILON)
    exact = tuple(x.detach().double().requires_grad_() for x in given)
    x, sublayer, gamma, beta = exact
    expected = F.layer_norm(x + sublayer, (width,), gamma, beta, EPSILON)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients_of(found, given), gradients_of(expected, exact), strict=True):
        rounding = torch.finfo(one.dtype).eps if one.dtype != torch.float32 else 0.0
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5 + rounding)


@pytest.mark.parametrize(("rate", "width"), [(0.1, 512), (0.5, 96)])
def test_dropout_has_the_same_mask_in_both_directions(
    rate: float, width: int, device: torch.device
) -> None:
    torch.manual_seed(0)
    given = inputs((40,), width, torch.float32, device)
    x, sublayer = given[:2]
    seed = torch.randint(2**62, (1,), device=device)
    y, total, _, _ = fused_norm._forward(*given, seed, rate, EPSILON)
    kept = (total - x).abs() > 1e-6
    torch.testing.assert_close(total, torch.where(kept, x + sublayer / (1 - rate), x))
    share, count = 1 - float(kept.float().mean()), kept.numel()
    assert abs(share - rate) < 4 * (rate * (1 - rate) / count) ** 0.5
    # Columns and rows have masks of their own.
    assert len({tuple(row) for row in kept.tolist()}) == len(kept)
    assert float(kept.float().mean(0).std()) < 3 * (rate * (1 - rate) / len(kept)) ** 0.5

    exact = tuple(x.detach().double().requires_grad_() for x in given)
    dropped = torch.where(kept, exact[1] / (1 - rate), 0.0)
    expected = F.layer_norm(exact[0] + dropped, (width,), exact[2], exact[3], EPSILON)
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients_of(y, given), gradients_of(expected, exact), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=1e-5)


def test_masks_depend_on_the_seed_alone(device: torch.device) -> None:
    given = inputs((8,), 64, torch.float32, device)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append([residual_norm(*given, 0.5, EPSILON) for _ in range(2)])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[0][0], found[2][0])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_model_has_the_gradients_of_pytorchs_operators(norm: str, device: torch.device) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24}
    model = Transformer(ModelConfig(40, **shape, heads=2, dropout=0.0, norm=norm)).to(device)
    data = encode_parallel([[5, 6, 7], [8, 9]], [[7, 6], [5, 4, 9]], None)
    batch = data.batch(np.arange(2)).to(device)
    found: dict[bool, list[Tensor]] = {}
    for fused in (False, True):
        model.zero_grad()
        losses = Objective(model, 0.1, torch.float32, fuse=False, fused_norm=fused)(batch)
        losses.loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found[fused] = [losses.smoothed, *(gradient.clone() for gradient in gradients)]
    torch.testing.assert_close(found[True], found[False], atol=1e-5, rtol=1e-5)
    blocks = [part for part in model.modules() if isinstance(part, Residual)]
    assert len(blocks) == 5
    assert all(block.fused is residual_norm for block in blocks)


def test_validation_has_no_kernel() -> None:
    block = Residual(ModelConfig(d_model=8, heads=1, dropout=0.5)).eval()
    x, sublayer = torch.randn(2, 3, 8)
    expected = block.after(x, sublayer)
    block.fused = residual_norm
    assert torch.equal(block.after(x, sublayer), expected)


def test_operators_are_declared_as_they_are(device: torch.device) -> None:
    """The shapes that torch.compile assumes, and the gradient's registration."""
    x, sublayer, gamma, beta = inputs((2, 3), 32, torch.float16, device)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    torch.library.opcheck(fused_norm._forward, (x, sublayer, gamma, beta, seed, 0.5, EPSILON))
    arguments = (x.detach(), x.detach(), *(torch.ones(2, 3, device=device) for _ in range(2)))
    types = (torch.float32, torch.float16)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        fused_norm._backward, (*arguments, gamma.detach(), seed, 0.5, *types), test_utils=tests
    )

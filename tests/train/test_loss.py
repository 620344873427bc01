"""The fused loss against torch's cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from translate_trt.train import loss as loss_module
from translate_trt.train.loss import projected_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("tokens", [1, 7, 16, 33])
def test_value_and_gradients(
    smoothing: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "ELEMENTS_AT_ONCE", 8 * 40)  # eight rows at a time
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 12, requires_grad=True)
    weight = torch.randn(40, 12, requires_grad=True)
    targets = torch.randint(40, (tokens,))
    value, likelihood = projected_cross_entropy(hidden, weight, targets, smoothing)
    (2.5 * value).backward()
    ours = (hidden.grad, weight.grad)
    hidden.grad = weight.grad = None
    logits = hidden @ weight.T
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    (2.5 * expected).backward()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        likelihood, F.cross_entropy(logits, targets, reduction="sum"), rtol=1e-5, atol=1e-4
    )
    for found, gradient in zip(ours, (hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4)


def test_nothing_of_the_size_of_the_logits_is_kept() -> None:
    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(50, 4, requires_grad=True)
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        projected_cross_entropy(hidden, weight, torch.zeros(64, dtype=torch.int64), 0.1)
    assert sizes
    assert max(sizes) < 64 * 50


def test_huge_logits_stay_finite() -> None:
    hidden = torch.full((3, 4), 1e3, requires_grad=True)
    value, _ = projected_cross_entropy(
        hidden, torch.randn(9, 4) * 1e3, torch.tensor([1, 2, 3]), 0.1
    )
    value.backward()
    assert torch.isfinite(value)
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_without_gradients() -> None:
    with torch.no_grad():
        value, _ = projected_cross_entropy(
            torch.zeros(5, 4), torch.zeros(8, 4), torch.zeros(5, dtype=torch.int64), 0.0
        )
    assert float(value) == pytest.approx(5 * 2.0794415)  # five times log 8

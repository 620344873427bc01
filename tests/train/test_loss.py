"""Fused loss, compared with torch's cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from translate_trt.train import loss as loss_module
from translate_trt.train.config import BANNED_BIAS
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
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        likelihood, F.cross_entropy(logits, targets, reduction="sum"), rtol=1e-5, atol=1e-5
    )
    assert not likelihood.requires_grad
    for found, gradient in zip(ours, (hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_bias_and_tokens_that_never_come(
    smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "ELEMENTS_AT_ONCE", 8 * 40)
    torch.manual_seed(0)
    banned_tokens = torch.tensor([0, 7, 39])
    rest = torch.tensor([place for place in range(40) if place not in banned_tokens])
    hidden = torch.randn(21, 12, requires_grad=True)
    weight = torch.randn(40, 12, requires_grad=True)
    bias = torch.randn(40).index_fill_(0, banned_tokens, BANNED_BIAS).requires_grad_()
    targets = rest[torch.randint(len(rest), (21,))]
    value, likelihood = projected_cross_entropy(
        hidden, weight, targets, smoothing, bias=bias, banned_tokens=banned_tokens
    )
    (2.5 * value).backward()
    found = [hidden.grad, weight.grad, bias.grad]
    hidden.grad = weight.grad = bias.grad = None
    logits = (hidden @ weight.T + bias)[:, rest]  # logits of the other tokens only
    places = torch.searchsorted(rest, targets)
    expected = F.cross_entropy(logits, places, label_smoothing=smoothing, reduction="sum")
    (2.5 * expected).backward()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(likelihood, F.cross_entropy(logits, places, reduction="sum"))
    for one, other in zip(found, (hidden.grad, weight.grad, bias.grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for gradient in found[1:]:
        assert gradient is not None
        assert (gradient[banned_tokens] == 0).all()  # exactly: Adam then changes nothing


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_finite_differences(smoothing: float) -> None:
    # A large step, because the logits are float32 for any input dtype.
    torch.manual_seed(1)
    hidden = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([5, 0, 5])
    assert torch.autograd.gradcheck(
        lambda *inputs: projected_cross_entropy(*inputs, targets, smoothing)[0],
        (hidden, weight),
        eps=1e-2,
        atol=1e-3,
    )


def test_bf16_is_near_fp32() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(40, 16), torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(30, (40,))
    values, gradients = [], []
    for dtype in (torch.float32, torch.bfloat16):
        rows = hidden.to(dtype, copy=True).requires_grad_()
        value, _ = projected_cross_entropy(rows, weight, targets, 0.1)
        value.backward()
        assert rows.grad is not None
        assert weight.grad is not None
        assert rows.grad.dtype == dtype
        assert weight.grad.dtype == torch.float32
        values.append(float(value.detach()))
        gradients.append(weight.grad.clone())
        weight.grad = None
    # Eight bits of mantissa: each logit is off by up to 2 ** -8 of itself.
    assert values[1] == pytest.approx(values[0], rel=2e-2)
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 2e-2


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


class LargestResult(TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.numel())
        return results


def test_the_logits_never_exist_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "ELEMENTS_AT_ONCE", 8 * 50)
    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(50, 4, requires_grad=True)
    with LargestResult() as mode:
        value, _ = projected_cross_entropy(hidden, weight, torch.arange(64) % 50, 0.1)
        value.backward()
    assert mode.largest == 8 * 50


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

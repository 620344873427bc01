"""The recurrent unit: against a plain loop, in parallel and step by step, with its gradients."""

from __future__ import annotations

import pytest
import torch

from translate_trt.train import ssru
from translate_trt.train.ssru import SSRU, linear_recurrence


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
def test_a_scan_is_equal_to_a_loop(length: int) -> None:
    torch.manual_seed(0)
    factor, added = torch.rand(3, length, 4), torch.randn(3, length, 4)
    torch.testing.assert_close(ssru._scan(factor, added), ssru._loop(factor, added))


@pytest.mark.parametrize("solve", [ssru._scan, ssru._loop])
def test_gradients(solve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssru, "_solve", solve)
    torch.manual_seed(0)
    factor = torch.rand(2, 7, 3, dtype=torch.float64, requires_grad=True)
    added = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ssru._LinearRecurrence.apply, (factor, added))


def test_16_bit_factors_are_summed_in_float32() -> None:
    # BF16 cannot count beyond 256 one by one.
    factor = torch.ones(1, 300, 1, dtype=torch.bfloat16)
    added = torch.ones(1, 300, 1, dtype=torch.bfloat16)
    assert float(linear_recurrence(factor, added)[0, -1, 0]) == 300


def test_step_by_step_is_equal_to_the_whole_sentence() -> None:
    torch.manual_seed(0)
    unit = SSRU(8)
    x = torch.randn(3, 5, 8)
    whole, last = unit(x, None)
    state = torch.zeros(3, 8)
    for position in range(5):
        output, state = unit(x[:, position : position + 1], state)
        torch.testing.assert_close(output[:, 0], whole[:, position])
    torch.testing.assert_close(state, last)


def test_the_unit_follows_its_equations() -> None:
    torch.manual_seed(0)
    unit = SSRU(4)
    x, before = torch.randn(2, 4), torch.randn(2, 4)
    forget = 1 / (1 + torch.exp(-(x @ unit.forget.weight.T + unit.forget.bias)))
    state = forget * before + (1 - forget) * (x @ unit.input.weight.T)
    output, found = unit.step(x, before)
    torch.testing.assert_close(found, state)
    torch.testing.assert_close(output, state.clamp(min=0))

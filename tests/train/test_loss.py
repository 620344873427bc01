"""Fused loss, compared with torch's cross-entropy."""

from __future__ import annotations

import shutil
from typing import Any, get_args

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from translate_trt.train import loss as loss_module
from translate_trt.train.config import BANNED_BIAS
from translate_trt.train.loss import (
    Method,
    alignment_cross_entropy,
    choose_method,
    projected_cross_entropy,
)

#: Tolerances for losses, and for gradients, relative to torch's cross-entropy in float32.
TOLERANCES = {"rtol": 1e-5, "atol": 1e-5}
METHODS = [
    "rows",
    "online",
    pytest.param(
        "compiled",
        marks=[
            pytest.mark.nightly,
            pytest.mark.skipif(
                shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
            ),
        ],
    ),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute eight rows of 40 tokens at a time, and 16 columns of them."""
    monkeypatch.setattr(loss_module, "ELEMENTS_AT_ONCE", 8 * 40)
    monkeypatch.setattr(loss_module, "LEAST_ROWS", 1)
    monkeypatch.setattr(loss_module, "COLUMNS_AT_ONCE", 16)
    torch.compiler.reset()  # a real process has one vocabulary; the tests' exceed the code cache


def test_the_method_is_chosen_by_device_precision_and_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the chunks as they are
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for device in (cpu, cuda):
            assert choose_method(device, dtype, 37_000, fuse=True) == "compiled"
    for device in (cpu, cuda):
        assert choose_method(device, torch.float32, 37_000, fuse=False) == "rows"
    for dtype in (torch.bfloat16, torch.float16):
        assert choose_method(cpu, dtype, 8_000, fuse=False) == "rows"
        assert choose_method(cpu, dtype, 37_000, fuse=False) == "online"
        assert choose_method(cuda, dtype, 8_000, fuse=False) == "online"
    assert set(loss_module._METHODS) == set(get_args(Method))


@pytest.mark.parametrize(("size", "rows"), [(2_000, 1_024), (8_000, 256), (37_000, 256)])
def test_a_chunk_fits_into_the_cache_or_has_the_least_rows(
    size: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert loss_module._rows_at_once(torch.empty(0), size) == rows


#: Numbers of targets, and banned tokens of a model with a bias: 17 are a block and more.
CASES = [*((count, None) for count in (1, 7, 16, 33)),
         *((21, banned) for banned in ([], [0, 7, 39], list(range(17))))]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(("count", "banned"), CASES)
def test_value_and_gradients(
    method: Method, smoothing: float, count: int, banned: list[int] | None
) -> None:
    torch.manual_seed(0)
    banned_tokens = torch.tensor(banned or [], dtype=torch.int64)
    rest = torch.tensor([place for place in range(40) if place not in banned_tokens])
    hidden, weight = (torch.randn(rows, 12, requires_grad=True) for rows in (count, 40))
    bias = torch.zeros(40)
    if banned is not None:
        bias = torch.randn(40).index_fill_(0, banned_tokens, BANNED_BIAS).requires_grad_()
    targets = rest[torch.randint(len(rest), (count,))]
    value, likelihood = projected_cross_entropy(
        hidden, weight, targets, smoothing, method, bias if bias.requires_grad else None,
        banned_tokens if banned else None,
    )  # fmt: skip
    parameters = [one for one in (hidden, weight, bias) if one.requires_grad]
    found = torch.autograd.grad(2.5 * value, parameters)
    logits = (hidden @ weight.T + bias)[:, rest]  # logits of the other tokens only
    places = torch.searchsorted(rest, targets)
    expected = F.cross_entropy(logits, places, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(value, expected, **TOLERANCES)
    torch.testing.assert_close(
        likelihood, F.cross_entropy(logits, places, reduction="sum"), **TOLERANCES
    )
    assert not likelihood.requires_grad
    right = torch.autograd.grad(2.5 * expected, parameters)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCES)
    for gradient in found[1:]:
        assert (gradient[banned_tokens] == 0).all()  # exactly: Adam then changes nothing


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gradients_are_those_of_its_logits(
    method: Method, dtype: torch.dtype
) -> None:
    # The matmul rounds the logits; everything after it is exact but for the gradient's rounding.
    torch.manual_seed(3)
    hidden, weight = torch.randn(21, 12).to(dtype), torch.randn(40, 12, requires_grad=True)
    targets = torch.randint(40, (21,))
    rows = hidden.clone().requires_grad_()
    value, likelihood = projected_cross_entropy(rows, weight, targets, 0.1, method)
    value.backward()
    assert weight.grad is not None
    found, weight = weight.grad, weight.detach()
    logits = (hidden @ weight.to(dtype).T).float().requires_grad_()
    expected = F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")
    expected.backward()
    torch.testing.assert_close(value, expected, **TOLERANCES)
    torch.testing.assert_close(
        likelihood, F.cross_entropy(logits, targets, reduction="sum"), **TOLERANCES
    )
    assert logits.grad is not None
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad, logits.grad.to(dtype) @ weight.to(dtype))
    # Eight bits of mantissa or more.
    torch.testing.assert_close(found, logits.grad.T @ hidden.float(), rtol=2e-2, atol=2e-2)


class LargestResult(TorchDispatchMode):
    """Records the largest tensor, of a dtype if one is given, that any operation returns."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype, self.largest = dtype, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, torch.Tensor) and self.dtype in (None, result.dtype):
                self.largest = max(self.largest, result.numel())
        return results


def test_no_second_derivative() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    value, _ = projected_cross_entropy(hidden, torch.randn(9, 4), torch.tensor([1, 2, 3]), 0.1)
    (gradient,) = torch.autograd.grad(value.square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_code_allocates_nothing_of_the_size_of_the_logits() -> None:
    logits = torch.randn(64, 5000).bfloat16()
    targets = torch.arange(64)
    loss_module._compiled_method(logits.clone(), targets, 0.1, None, None)
    with torch.profiler.profile(profile_memory=True) as profile:
        loss_module._compiled_method(logits, targets, 0.1, None, None)
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events()
             if event.name() == "[memory]"]  # fmt: skip
    assert sizes
    assert max(sizes) < 64 * 5000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_online_method_holds_float32_blocks_only(dtype: torch.dtype) -> None:
    logits = torch.randn(64, 50).to(dtype)
    with LargestResult(torch.float32) as mode:
        loss_module._online_method(logits, torch.arange(64) % 50, 0.1, None, None)
    assert mode.largest == 64 * 16


def test_the_logits_never_exist_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "ELEMENTS_AT_ONCE", 8 * 50)
    hidden = torch.randn(64, 4, requires_grad=True)
    weight = torch.randn(50, 4, requires_grad=True)
    with LargestResult() as mode:
        value, _ = projected_cross_entropy(hidden, weight, torch.arange(64) % 50, 0.1)
        value.backward()
    assert mode.largest == 8 * 50


@pytest.mark.parametrize("method", METHODS)
def test_huge_logits_stay_finite(method: Method) -> None:
    hidden = torch.full((3, 4), 1e3, requires_grad=True)
    value, _ = projected_cross_entropy(
        hidden, torch.randn(9, 4) * 1e3, torch.tensor([1, 2, 3]), 0.1, method
    )
    value.backward()
    assert torch.isfinite(value)
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_guided_alignment_is_the_cross_entropy_of_its_rows() -> None:
    torch.manual_seed(1)
    log_weights = torch.randn(2, 1, 3, 4).log_softmax(-1)
    expected = torch.zeros(2, 1, 3, 4)
    expected[0, 0, 0, 1] = expected[1, 0, 2, 3] = 1  # linked with one token
    expected[0, 0, 2, [0, 3]] = 0.5  # with two; other positions with none
    links = expected.flatten().nonzero()[:, 0]
    found = alignment_cross_entropy(log_weights, links, expected.flatten()[links])
    torch.testing.assert_close(found, -(expected * log_weights).sum())


def test_without_gradients() -> None:
    with torch.no_grad():
        value, _ = projected_cross_entropy(
            torch.zeros(5, 4), torch.zeros(8, 4), torch.zeros(5, dtype=torch.int64), 0.0
        )
    assert float(value) == pytest.approx(5 * 2.0794415)  # five times log 8

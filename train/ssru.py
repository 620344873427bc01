"""Simpler simple recurrent unit (Kim et al. 2019, "From Research to Production and Back").

A recurrent replacement of the decoder's self-attention: decoding keeps one vector per layer and
hypothesis instead of keys and values of all positions. Letters: N sentences, T target tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SSRU(nn.Module):
    """f = sigmoid(W_f x + b_f), c_t = f c_{t-1} + (1 - f) W x, output relu(c_t) (section 3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.forget = nn.Linear(d_model, d_model)
        self.input = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run the unit on a whole sentence, or on the next position.

        Args:
            x: [N, T, d_model].
            state: c_{t-1} [N, d_model], with T = 1; None if x is the whole sentence, before which
                c is zero.

        Returns:
            The output [N, T, d_model], and the c [N, d_model] of the last position.
        """
        if state is not None:
            output, state = self.step(x[:, 0], state)
            return output[:, None], state
        forget = torch.sigmoid(self.forget(x))
        states = linear_recurrence(forget, (1 - forget) * self.input(x))
        return F.relu(states), states[:, -1]

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the output and the new state of one position; all are [..., d_model]."""
        forget, candidate = torch.sigmoid(self.forget(x)), self.input(x)
        state = forget * state + (1 - forget) * candidate
        return F.relu(state), state


def linear_recurrence(factor: Tensor, added: Tensor) -> Tensor:
    """Compute c_t = factor_t c_{t-1} + added_t from c = 0, in parallel over t.

    The sums are in float32, as long products of 16-bit factors would lose the state.

    Args:
        factor: [N, T, ...], in [0, 1]; larger factors may overflow.
        added: Like factor.

    Returns:
        All states c, like factor and of its type.
    """
    apply: Callable[[Tensor, Tensor], Tensor] = _LinearRecurrence.apply
    states = apply(factor.float(), added.float())
    return states.to(factor.dtype)


class _LinearRecurrence(torch.autograd.Function):
    """The recurrence with its own gradient, which is the same recurrence backwards in time.

    The derivative g_t of the loss by c_t is that of its direct uses plus factor_{t+1} g_{t+1}.
    Saving the states alone takes a fraction of the memory that autograd would need for each round.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor, added: Tensor) -> Tensor:
        states = _solve(factor, added)
        ctx.save_for_backward(factor, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        factor, states = ctx.saved_tensors
        following = _shifted(factor.flip(1))
        grad_added = _solve(following, grad.flip(1)).flip(1)
        return grad_added * _shifted(states), grad_added


def _shifted(x: Tensor) -> Tensor:
    """Move x one position later; zeros come first."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)


def _solve(factor: Tensor, added: Tensor) -> Tensor:
    """Compute the recurrence with the method that suits the device.

    On a CPU, one pass over the positions takes a fraction of the time of `_scan`
    (benchmarks/ssru.py of revision 2a9197c7); on a GPU it would be several kernel launches per
    position.
    """
    return (_loop if factor.device.type == "cpu" else _scan)(factor, added)


def _loop(factor: Tensor, added: Tensor) -> Tensor:
    """Update the state position by position."""
    states = torch.empty_like(added)
    state = torch.zeros_like(added[:, 0])
    for position in range(added.shape[1]):
        state = torch.addcmul(added[:, position], factor[:, position], state)
        states[:, position] = state
    return states


def _scan(factor: Tensor, added: Tensor) -> Tensor:
    """Combine ever longer spans (Hillis and Steele 1986): log2(T) rounds of elementwise work."""
    span = 1
    while span < added.shape[1]:
        added = torch.cat(
            (added[:, :span], added[:, span:] + factor[:, span:] * added[:, :-span]), 1
        )
        factor = torch.cat((factor[:, :span], factor[:, span:] * factor[:, :-span]), 1)
        span *= 2
    return added

"""Cross-entropy with label smoothing, fused with the output projection.

Neither the [tokens, V] logits nor the smoothed target distribution are ever materialized: logits
are computed for a few hundred rows at a time, and their gradients right after them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Logits per chunk: 256 rows of an 8,000-token vocabulary, 8 MB, fit into the last-level cache.
# Smaller chunks have slower matmuls; larger ones gain nothing and take memory
# (docs/adr/0008-training-on-a-cpu.md).
ELEMENTS_AT_ONCE = 2_048_000
ELEMENTS_AT_ONCE_ACCELERATOR = 134_217_728


def _losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    bias: Tensor | None = None,
    banned_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sums of smoothed loss and negative log-likelihood, and the logits' gradient.

    Args:
        logits: [C, V]; overwritten.
        targets: [C].
        smoothing: eps.
        bias: [V], added to the logits.
        banned_tokens: [n] tokens of probability 0 and without a gradient, absent from `targets`.
    """
    columns = targets[:, None]
    if bias is not None:
        logits.add_(bias)
    target_logits = logits.gather(1, columns)
    if banned_tokens is None:
        size = logits.shape[1]
        mean_logits = logits.mean(1, keepdim=True)
    else:
        size = logits.shape[1] - len(banned_tokens)
        mean_logits = logits.index_fill_(1, banned_tokens, 0.0).sum(1, keepdim=True) / size
        logits.index_fill_(1, banned_tokens, -torch.inf)
    top = logits.amax(1, keepdim=True)
    shares = logits.sub_(top).exp_()
    total = shares.sum(1, keepdim=True)
    log_total = top + total.log()
    # These three values suffice for -sum_v q_v log p_v with q = (1 - eps) onehot + eps / size.
    likelihood = (log_total - target_logits).sum()
    smoothed = (log_total - (1 - smoothing) * target_logits - smoothing * mean_logits).sum()
    gradient = shares.div_(total).sub_(smoothing / size)
    if banned_tokens is not None:
        gradient.index_fill_(1, banned_tokens, 0.0)
    gradient.scatter_add_(1, columns, gradient.new_full((1, 1), smoothing - 1).expand_as(columns))
    return smoothed, likelihood, gradient


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Compile the loss, which fuses a dozen passes over the logits into a few."""
    return torch.compile(_losses_and_gradient, dynamic=True)


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        fuse: bool,
        banned_tokens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        size = weight.shape[0]
        at_once = ELEMENTS_AT_ONCE if hidden.device.type == "cpu" else ELEMENTS_AT_ONCE_ACCELERATOR
        differentiate = any(ctx.needs_input_grad[:3])
        grad_hidden = torch.empty_like(hidden) if differentiate else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if differentiate else None
        grad_bias = torch.zeros_like(bias) if differentiate and bias is not None else None
        smoothed = hidden.new_zeros((), dtype=torch.float32)
        likelihood = hidden.new_zeros((), dtype=torch.float32)
        matrix = weight.to(hidden.dtype)
        rows = max(1, at_once // size)
        compute = _compiled() if fuse else _losses_and_gradient
        for hidden_rows, target_rows, first in zip(
            torch.split(hidden, rows),
            torch.split(targets, rows),
            range(0, len(hidden), rows),
            strict=True,
        ):
            logits = (hidden_rows @ matrix.T).float()  # [C, V]
            loss, nll, gradient = compute(logits, target_rows, smoothing, bias, banned_tokens)
            smoothed += loss
            likelihood += nll
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
            if grad_hidden is not None and grad_weight is not None:
                gradient = gradient.to(hidden.dtype)
                torch.mm(gradient, matrix, out=grad_hidden[first : first + rows])
                if hidden.dtype == torch.float32:
                    grad_weight.addmm_(gradient.T, hidden_rows)
                else:
                    grad_weight += gradient.T @ hidden_rows
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(likelihood)
        return smoothed, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        return (
            grad_hidden * gradients[0].to(grad_hidden.dtype),
            grad_weight * gradients[0],
            None if grad_bias is None else grad_bias * gradients[0],
            *(None,) * 4,
        )


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    fuse: bool = False,
    bias: Tensor | None = None,
    banned_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum over tokens of the label-smoothed cross-entropy (section 5.4), in nats.

    The target distribution is 1 - eps for the target token plus eps / V for every token; banned
    tokens have no share, and V does not count them.

    Args:
        hidden: [M, d_model] decoder output at the target positions, without padding.
        weight: [V, d_model] output projection.
        targets: [M] target tokens.
        smoothing: eps.
        fuse: Compile the operators between the matmuls (torch.compile).
        bias: [V] bias of the logits (`ModelConfig.output_bias`).
        banned_tokens: [n] tokens of probability 0 (`Transformer.banned_tokens`), absent from
            `targets`. Their rows of `weight` and `bias` get no gradient.

    Returns:
        Sums over M of the smoothed loss (differentiable) and the plain negative log-likelihood.
    """
    inputs = (hidden, weight, bias, targets, smoothing, fuse, banned_tokens)
    return _ProjectedCrossEntropy.apply(*inputs)  # type: ignore[no-any-return,no-untyped-call]

"""Cross-entropy with label smoothing, fused with the output projection.

Neither the [tokens, V] logits nor the smoothed target distribution are ever materialized: logits
are computed for some rows at a time, and overwritten by their gradient right away. Rows that are
computed in bfloat16 or float16 stay so in memory; only registers and cache-sized blocks hold their
float32 values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits per chunk on a CPU: 256 rows of an 8,000-token vocabulary, 8 MB in float32, fit into the
# last-level cache. Smaller chunks have slower matmuls; larger ones gain nothing and take memory
# (docs/adr/0008-training-on-a-cpu.md).
ELEMENTS_AT_ONCE = 2_048_000
#: Rows per chunk on a CPU, however large the vocabulary. Each chunk adds to all of the gradient of
#: the output projection, which costs as much as a few hundred rows
#: (docs/adr/0010-loss-over-the-vocabulary.md).
LEAST_ROWS = 256
#: Bytes of logits per chunk on an accelerator, 3,627 rows of 37,000 tokens in bfloat16.
BYTES_AT_ONCE_ACCELERATOR = 2**28
#: Columns per block of the online log-sum-exp.
COLUMNS_AT_ONCE = 4_096

#: Implementation of the operators between the matmuls; docs/adr/0010 compares them.
#:
#: rows: in float32, in place; for chunks that fit into the cache of a CPU, and for float32.
#: online: a log-sum-exp over blocks of columns, for logits of lower precision.
#: compiled: torch.compile fuses everything into one or two passes over the logits.
Method = Literal["rows", "online", "compiled"]


def choose_method(device: torch.device, dtype: torch.dtype, size: int, fuse: bool) -> Method:
    """Choose the implementation.

    Args:
        device: Device of the logits.
        dtype: Dtype of the matmuls.
        size: V.
        fuse: Whether torch.compile may be used.
    """
    if fuse:
        return "compiled"
    in_cache = device.type == "cpu" and LEAST_ROWS * size <= ELEMENTS_AT_ONCE
    return "rows" if in_cache or dtype == torch.float32 else "online"


def _rows_method(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    bias: Tensor | None,
    banned_tokens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the sums of smoothed loss and negative log-likelihood, and the logits' gradient.

    Args:
        logits: [C, V] float32; overwritten by the gradient.
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
    gradient = shares.div_(total).sub_(smoothing / size)
    if banned_tokens is not None:
        gradient.index_fill_(1, banned_tokens, 0.0)
    gradient.scatter_add_(1, columns, gradient.new_full((1, 1), smoothing - 1).expand_as(columns))
    return _sums(log_total, target_logits, mean_logits, smoothing)


def _sums(
    log_total: Tensor, target_logits: Tensor, mean_logits: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sum smoothed loss and negative log-likelihood over rows, from three values [C, 1] per row.

    The values suffice for -sum_v q_v log p_v with q = (1 - eps) onehot + eps / V.
    """
    smoothed = (log_total - (1 - smoothing) * target_logits - smoothing * mean_logits).sum()
    return smoothed, (log_total - target_logits).sum()


def _online_method(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    bias: Tensor | None,
    banned_tokens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute what `_rows_method` does, for logits of any dtype, by blocks of columns.

    Two passes over the logits: the first updates maximum, sum of exponentials and sum of each row,
    the second writes the gradient.
    """
    banned, size = _mask(banned_tokens, logits.shape[1])
    rows = torch.arange(len(logits), device=logits.device)
    target_logits = logits[rows, targets].float()
    if bias is not None:
        target_logits += bias[targets]
    target_logits = target_logits[:, None]
    firsts = range(0, logits.shape[1], COLUMNS_AT_ONCE)
    blocks = [slice(first, first + COLUMNS_AT_ONCE) for first in firsts]

    def read(block: slice) -> Tensor:
        values = logits[:, block].to(torch.float32, copy=True)
        return values if bias is None else values.add_(bias[block])

    # The first maximum is finite, even if all tokens of the first block are banned.
    top = target_logits
    total, sum_logits = torch.zeros_like(top), torch.zeros_like(top)
    for block in blocks:
        values = read(block)
        if banned is not None:
            sum_logits += values.masked_fill_(banned[block], 0.0).sum(1, keepdim=True)
            values.masked_fill_(banned[block], -torch.inf)
        else:
            sum_logits += values.sum(1, keepdim=True)
        higher = torch.maximum(top, values.amax(1, keepdim=True))
        total = total * (top - higher).exp_() + values.sub_(higher).exp_().sum(1, keepdim=True)
        top = higher
    log_total = top + total.log()
    for block in blocks:
        gradient = read(block).sub_(log_total).exp_().sub_(smoothing / size)
        if banned is not None:
            gradient.masked_fill_(banned[block], 0.0)
        logits[:, block] = gradient
    # By index: on a CPU, scatter_ converts the whole bfloat16 tensor to float32 (torch 2.13).
    target_gradients = (target_logits - log_total).exp_() - smoothing / size + (smoothing - 1)
    logits[rows, targets] = target_gradients[:, 0].to(logits.dtype)
    return _sums(log_total, target_logits, sum_logits / size, smoothing)


def _mask(tokens: Tensor | None, size: int) -> tuple[Tensor | None, int]:
    """Return a mask [size] of the tokens [n], if any, and the number of other tokens."""
    if tokens is None:
        return None, size
    mask = torch.zeros(size, dtype=torch.bool, device=tokens.device)
    return mask.index_fill_(0, tokens, True), size - len(tokens)


def _fusible_method(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    bias: Tensor | None,
    banned: Tensor | None,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Compute what `_rows_method` does, for logits of any dtype, in operators that fuse.

    Args:
        logits: [C, V]; overwritten by the gradient.
        targets: [C].
        smoothing: eps.
        bias: [V], added to the logits.
        banned: [V] mask of banned tokens.
        size: Number of other tokens.
    """
    values = logits.float()
    if bias is not None:
        values = values + bias
    counted = values
    if banned is not None:
        counted = values.masked_fill(banned, 0.0)
        values = values.masked_fill(banned, -torch.inf)
    columns = targets[:, None]
    top = values.amax(1, keepdim=True)
    log_total = top + (values - top).exp().sum(1, keepdim=True).log()
    mean_logits = counted.sum(1, keepdim=True) / size
    sums = _sums(log_total, values.gather(1, columns), mean_logits, smoothing)
    gradient = (values - log_total).exp() - smoothing / size
    # A comparison: scatter_add_ would need the float32 gradient in memory.
    is_target = torch.arange(logits.shape[1], device=logits.device) == columns
    gradient = torch.where(is_target, gradient + (smoothing - 1), gradient)
    if banned is not None:
        gradient = gradient.masked_fill(banned, 0.0)
    logits.copy_(gradient)
    return sums


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_fusible_method, dynamic=True)


def _compiled_method(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    bias: Tensor | None,
    banned_tokens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute what `_rows_method` does, by compiled code that holds no float32 logits."""
    # Only with a known V does torch 2.13 fuse maximum and sum of a row into one pass.
    torch._dynamo.mark_static(logits, 1)
    banned, size = _mask(banned_tokens, logits.shape[1])
    return _compiled()(logits, targets, smoothing, bias, banned, size)


_METHODS: dict[Method, Callable[..., tuple[Tensor, Tensor]]] = {
    "rows": _rows_method,
    "online": _online_method,
    "compiled": _compiled_method,
}


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        method: Method,
        banned_tokens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        differentiate = any(ctx.needs_input_grad[:3])
        grad_hidden = torch.empty_like(hidden) if differentiate else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if differentiate else None
        grad_bias = torch.zeros_like(bias) if differentiate and bias is not None else None
        smoothed = hidden.new_zeros((), dtype=torch.float32)
        likelihood = hidden.new_zeros((), dtype=torch.float32)
        matrix = weight.to(hidden.dtype)
        rows = _rows_at_once(hidden, len(weight))
        compute = _METHODS[method]
        for hidden_rows, target_rows, first in zip(
            torch.split(hidden, rows),
            torch.split(targets, rows),
            range(0, len(hidden), rows),
            strict=True,
        ):
            gradient = hidden_rows @ matrix.T  # the logits [C, V], and then their gradient
            if method == "rows":
                gradient = gradient.float()
            loss, nll = compute(gradient, target_rows, smoothing, bias, banned_tokens)
            smoothed += loss
            likelihood += nll
            if grad_bias is not None:
                grad_bias += gradient.sum(0, dtype=torch.float32)
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
    @once_differentiable  # a second derivative would be 0, silently
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        return (
            grad_hidden * gradients[0].to(grad_hidden.dtype),
            grad_weight * gradients[0],
            None if grad_bias is None else grad_bias * gradients[0],
            *(None,) * 4,
        )


def _rows_at_once(hidden: Tensor, size: int) -> int:
    """Rows of a chunk of logits."""
    if hidden.device.type == "cpu":
        return max(LEAST_ROWS, ELEMENTS_AT_ONCE // size)
    return max(1, BYTES_AT_ONCE_ACCELERATOR // (size * hidden.dtype.itemsize))


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    method: Method = "rows",
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
        method: Implementation (`choose_method`).
        bias: [V] bias of the logits (`ModelConfig.output_bias`).
        banned_tokens: [n] tokens of probability 0 (`Transformer.banned_tokens`), absent from
            `targets`. Their rows of `weight` and `bias` get no gradient.

    Returns:
        Sums over M of the smoothed loss (differentiable, once) and the plain negative
        log-likelihood.
    """
    inputs = (hidden, weight, bias, targets, smoothing, method, banned_tokens)
    return _ProjectedCrossEntropy.apply(*inputs)  # type: ignore[no-any-return,no-untyped-call]


def alignment_cross_entropy(log_weights: Tensor, links: Tensor, shares: Tensor) -> Tensor:
    """Sum over target positions of the cross-entropy of attention and alignment, in nats.

    Guided alignment (Chen et al. 2016, equation 7).

    Args:
        log_weights: [N, 1, T, S] logarithms of the attention weights of a head, in float32.
        links: [links] aligned positions in the flattened weights.
        shares: [links] probabilities of the links; those of a target position sum to 1.

    Returns:
        Scalar, in float32.
    """
    return -(shares * log_weights.flatten()[links]).sum()

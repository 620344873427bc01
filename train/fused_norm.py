"""Residual sum, dropout and LayerNorm as one Triton kernel forward, and one backward.

A post-norm block ends with LayerNorm(x + Dropout(sub-layer)). The forward kernel reads both terms
and writes the sum and its LayerNorm; the backward kernel reads the sum and the gradient. Neither
keeps a mask of the dropout: Philox (Salmon et al. 2011) computes its random bits again from a seed.
Statistics and sums are in float32. Letters: R rows, D columns (d_model).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.gpu.launch import power_of_two, warps_of_row

#: Programs of the backward kernel per multiprocessor. Each sums the gradients of gamma and beta
#: over its rows.
PROGRAMS_PER_PROCESSOR = 8
#: Programs in Triton's interpreter.
INTERPRETED_PROGRAMS = 4


@triton.jit
def _kept(seed, row, BLOCK: tl.constexpr, DROPPED: tl.constexpr):
    """Return which columns of a row dropout keeps, [BLOCK]: four from each call of Philox."""
    calls = row * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.randint4x(tl.load(seed), calls)
    bits = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (BLOCK,))
    return (bits.to(tl.uint32, bitcast=True) >> 1).to(tl.int32) >= DROPPED


@triton.jit
def _forward_kernel(
    x, sublayer, gamma, beta, seed, y, total, mean, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EPSILON: tl.constexpr,
    DROPPED: tl.constexpr, KEPT_SCALE: tl.constexpr,
):  # fmt: skip
    """Compute one row.

    The variance is that of the differences from the mean, as in PyTorch: the difference of two
    means of squares would lose what a large mean has in common with the row.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    places = row.to(tl.int64) * WIDTH + columns
    added = tl.load(sublayer + places, mask=inside, other=0.0).to(tl.float32)
    if DROPPED:
        added = tl.where(_kept(seed, row, BLOCK, DROPPED), added * KEPT_SCALE, 0.0)
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + added
    tl.store(total + places, values, mask=inside)
    center = tl.sum(values, 0) / WIDTH
    differences = tl.where(inside, values - center, 0.0)
    reciprocal = tl.rsqrt(tl.sum(differences * differences, 0) / WIDTH + EPSILON)
    tl.store(mean + row, center)
    tl.store(scale + row, reciprocal)
    weight = tl.load(gamma + columns, mask=inside, other=0.0)
    shift = tl.load(beta + columns, mask=inside, other=0.0)
    found = differences * reciprocal * weight + shift
    tl.store(y + places, found.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    gradient, total, mean, scale, gamma, seed, grad_x, grad_sublayer, partial, rows, programs,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DROPPED: tl.constexpr, KEPT_SCALE: tl.constexpr,
):  # fmt: skip
    """Compute every `programs`-th row, and the sums of its gradients of gamma and beta."""
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    weight = tl.load(gamma + columns, mask=inside, other=0.0)
    grad_gamma = tl.zeros((BLOCK,), tl.float32)
    grad_beta = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, programs):
        places = tl.cast(row, tl.int64) * WIDTH + columns
        above = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(total + places, mask=inside, other=0.0)
        reciprocal = tl.load(scale + row)
        normal = tl.where(inside, (values - tl.load(mean + row)) * reciprocal, 0.0)
        grad_gamma += above * normal
        grad_beta += above
        weighted = above * weight
        first = tl.sum(weighted, 0) / WIDTH
        second = tl.sum(weighted * normal, 0) / WIDTH
        found = reciprocal * (weighted - first - normal * second)
        tl.store(grad_x + places, found.to(grad_x.dtype.element_ty), mask=inside)
        if DROPPED:
            found = tl.where(_kept(seed, row, BLOCK, DROPPED), found * KEPT_SCALE, 0.0)
        tl.store(grad_sublayer + places, found.to(grad_sublayer.dtype.element_ty), mask=inside)
    place = program.to(tl.int64) * WIDTH + columns
    tl.store(partial + place, grad_gamma, mask=inside)
    tl.store(partial + tl.cast(programs, tl.int64) * WIDTH + place, grad_beta, mask=inside)


def _constants(width: int, rate: float) -> dict[str, Any]:
    """Return the constants that both kernels share, and the number of their warps."""
    block = power_of_two(width, least=16)
    return {
        "WIDTH": width,
        "BLOCK": block,
        "DROPPED": round(rate * 2**31),  # of 2^31 values of a random number
        "KEPT_SCALE": 1.0 / (1.0 - rate),
        "num_warps": warps_of_row(block),
    }


def _outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate the LayerNorm, the sum, and the mean and the reciprocal deviation of its rows."""
    mean, scale = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.float32), mean, scale


# Operators, because torch.compile leaves an operator as it is, and a CPU's interpreter can test it.
@torch.library.custom_op("translate_trt::residual_norm", mutates_args=())
def _forward(
    x: Tensor, sublayer: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor | None,
    rate: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what `_outputs` allocates."""
    x, sublayer = x.contiguous(), sublayer.contiguous()
    y, total, mean, scale = _outputs(x)
    _forward_kernel[(mean.numel(),)](
        x, sublayer, gamma, beta, gamma if seed is None else seed, y, total, mean, scale,
        EPSILON=epsilon, **_constants(x.shape[-1], rate),
    )  # fmt: skip
    return y, total, mean, scale


@_forward.register_fake
def _like_forward(
    x: Tensor, sublayer: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor | None,
    rate: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(x)


@torch.library.custom_op("translate_trt::residual_norm_backward", mutates_args=())
def _backward(
    gradient: Tensor, total: Tensor, mean: Tensor, scale: Tensor, gamma: Tensor,
    seed: Tensor | None, rate: float, x_type: torch.dtype, sublayer_type: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, sub-layer, gamma and beta."""
    rows, width = mean.numel(), total.shape[-1]
    programs = min(rows, _programs(total.device))
    grad_x, grad_sublayer = (torch.empty_like(total, dtype=t) for t in (x_type, sublayer_type))
    partial = total.new_empty((2, programs, width))
    _backward_kernel[(programs,)](
        gradient.contiguous(), total, mean, scale, gamma, gamma if seed is None else seed,
        grad_x, grad_sublayer, partial, rows, programs, **_constants(width, rate),
    )  # fmt: skip
    grad_gamma, grad_beta = partial.sum(1)
    return grad_x, grad_sublayer, grad_gamma, grad_beta.clone()  # outputs share no memory


@_backward.register_fake
def _like_backward(
    gradient: Tensor, total: Tensor, mean: Tensor, scale: Tensor, gamma: Tensor,
    seed: Tensor | None, rate: float, x_type: torch.dtype, sublayer_type: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grad_x, grad_sublayer = (torch.empty_like(total, dtype=t) for t in (x_type, sublayer_type))
    return grad_x, grad_sublayer, torch.empty_like(gamma), torch.empty_like(gamma)


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, sublayer, gamma, _, seed, rate, _ = inputs
    _, total, mean, scale = output
    ctx.save_for_backward(total, mean, scale, gamma, seed)
    ctx.constants = rate, x.dtype, sublayer.dtype
    ctx.mark_non_differentiable(total, mean, scale)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = _backward(gradient, *ctx.saved_tensors, *ctx.constants)
    return (*gradients, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)


def residual_norm(
    x: Tensor, sublayer: Tensor, gamma: Tensor, beta: Tensor, rate: float, epsilon: float
) -> Tensor:
    """LayerNorm(x + Dropout(sublayer)).

    Args:
        x: [..., D] residual stream.
        sublayer: [..., D] output of the sub-layer, of any floating-point type.
        gamma: [D] in float32.
        beta: [D] in float32.
        rate: Share of the sub-layer's elements that are dropped, rounded to a multiple of 2^-31.
        epsilon: Number added to the variance.

    Returns:
        [..., D] in the type of x.
    """
    seed = torch.randint(2**62, (1,), device=x.device) if rate else None
    forward = cast(Callable[..., tuple[Tensor, ...]], _forward)
    return forward(x, sublayer, gamma, beta, seed, rate, epsilon)[0]

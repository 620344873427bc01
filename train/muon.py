"""Muon (Jordan et al. 2024), an optimizer of matrices."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

_MOMENTUM = 0.95
#: Coefficients of the quintic iteration, which moves singular values to about 0.7 to 1.2.
_COEFFICIENTS = 3.4445, -4.7750, 2.0315


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate U V^T of matrices U S V^T [B, R, C] by Newton-Schulz iterations.

    The iterations run in bfloat16 on a GPU. On a CPU they take float32: without instructions for
    bfloat16, torch multiplies such matrices many times slower.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Gradient descent by orthogonalized Nesterov momentum, without weight decay.

    Updates are scaled to the root mean square of Adam's (Liu et al. 2025, "Muon is Scalable for LLM
    Training"). Matrices of a shape are orthogonalized together, in fewer launches on a GPU.

    Args:
        matrices: Parameters of two axes.
    """

    def __init__(self, matrices: list[torch.nn.Parameter]) -> None:
        super().__init__(matrices, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the matrices that have a gradient.

        Args:
            closure: Must be None.
        """
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in cast(list[Tensor], group["params"]):
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                gradients = [cast(Tensor, weight.grad) for weight in weights]
                momenta = [self._momentum(weight) for weight in weights]
                torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
                updates = orthogonalize(
                    torch.stack(torch._foreach_lerp(gradients, momenta, _MOMENTUM))
                )
                rate = -0.2 * math.sqrt(max(shape)) * group["lr"]
                torch._foreach_add_(weights, [*updates.to(weights[0].dtype)], alpha=rate)

    def _momentum(self, weight: Tensor) -> Tensor:
        """Return the average of a matrix's gradients."""
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        return cast(Tensor, state["momentum_buffer"])

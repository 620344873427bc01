"""Learning-rate schedule."""

from __future__ import annotations


def learning_rate(
    step: int,
    d_model: int,
    warmup_steps: int,
    scale: float = 1.0,
    peak: float = 0.0,
    decays: bool = True,
) -> float:
    """scale * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), step from 1 (equation 3).

    A `peak` rescales the curve to this maximum, at the end of the warm-up:
    scale * peak * min((warmup / step)^0.5, step / warmup). A curve that does not decay keeps its
    maximum after the warm-up.
    """
    if not decays:
        step = min(step, warmup_steps)
    if peak:
        return scale * peak * float(min((warmup_steps / step) ** 0.5, step / warmup_steps))
    return float(scale * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cooldown(step: int, steps: int, cooldown_steps: int, shape: str = "linear") -> float:
    """Factor of the learning rate: 1, and falling over the last `cooldown_steps` of `steps`.

    Linear, it is 1 / (cooldown_steps + 1) in the last step; "1-sqrt" is 1 minus the square root of
    the elapsed share, and falls faster at first. Steps count from 1. Hägele et al. 2024, "Scaling
    Laws and Compute-Optimal Training Beyond Fixed Training Durations".
    """
    left = min(1.0, (steps + 1 - step) / (cooldown_steps + 1))
    return left if shape == "linear" else float(1 - (1 - left) ** 0.5)

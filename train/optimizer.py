"""Optimizers of a run, and the moving average of its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from translate_trt.train.config import TrainConfig
from translate_trt.train.model import Transformer
from translate_trt.train.muon import Muon

#: Name of the moving average in the training state of a checkpoint.
AVERAGE = "average"


def make_optimizers(model: Transformer, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return Adam, and Muon for the matrices of the layers if the recipe asks for it.

    Both take the same learning rate, and neither decays weights.
    """
    matrices: list[nn.Parameter] = []
    if config.optimizer == "muon":
        stacks = (model.encoder, model.decoder)
        matrices = [p for stack in stacks for p in stack.parameters() if p.dim() == 2]
    chosen = set(matrices)
    adam = torch.optim.Adam(
        [p for p in model.parameters() if p not in chosen],
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )
    return [adam, Muon(matrices)] if matrices else [adam]


def state_keys(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Return the names of the tensors that an optimizer keeps of each weight."""
    adam = isinstance(optimizer, torch.optim.Adam)
    return ("step", "exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)


@torch.no_grad()
def update_average(average: dict[str, Tensor], model: nn.Module, decay: float, step: int) -> None:
    """Move an exponential moving average of the weights towards the weights of a step.

    Args:
        average: Average by name, as in the model's state; changed in place.
        model: Model after the step.
        decay: Share of the old average. At most (1 + step) / (10 + step), as in TensorFlow's
            ExponentialMovingAverage, so that the initial weights are forgotten soon.
        step: Number of the step, from 1.
    """
    weights = model.state_dict()
    share = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_([*average.values()], [weights[name] for name in average], share)

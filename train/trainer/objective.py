"""The model and its loss as one module: what the processes of a group run on their batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from translate_trt.train.data.batches import Batch
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.precision import autocast


class Objective(nn.Module):
    """A batch -> its smoothed loss and negative log-likelihood, both summed over target tokens.

    Args of the constructor:
        model: with the weights that training begins with; trained in place.
        smoothing: label smoothing.
        dtype: type of the matrix products.
        fuse: compile each layer, and the loss. Layers are compiled one by one, not the model as a
            whole: equal layers share their code, and each hands over its gradients as soon as its
            part of the backward pass is done, so that their exchange overlaps with the rest.
    """

    def __init__(
        self, model: Transformer, smoothing: float, dtype: torch.dtype, fuse: bool
    ) -> None:
        super().__init__()
        self.banned_tokens = model.banned_tokens
        self.model, self.smoothing, self.dtype, self.fuse = model, smoothing, dtype, fuse
        if fuse:
            for layer in (*model.encoder, *model.decoder):
                layer.compile(dynamic=True)

    def forward(self, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Both sums; of no batch they are zero, and so are all gradients."""
        weight, bias = self.model.projection_weight, self.model.output_bias
        if batch is None:
            nothing = torch.stack([(p * 0.0).sum() for p in self.model.parameters()]).sum()
            return nothing, nothing.detach()
        with autocast(weight.device, self.dtype):
            hidden = self.model(batch.source, batch.source_bias, batch.previous)
        hidden = hidden.flatten(0, 1)[batch.target_index].to(self.dtype)
        return projected_cross_entropy(
            hidden, weight, batch.targets, self.smoothing, self.fuse, bias, self.banned_tokens
        )

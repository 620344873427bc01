"""Model and loss as one module, as DistributedDataParallel wraps it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from translate_trt.train.data.batches import Batch
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.precision import autocast


class Objective(nn.Module):
    """Smoothed loss and negative log-likelihood of a batch, both summed over target tokens.

    Args of the constructor:
        model: Model with its initial weights; trained in place.
        smoothing: Label smoothing.
        dtype: Dtype of the matmuls.
        fuse: Compile the loss and each layer. Per layer, because equal layers then share their
            code, and gradients are exchanged layer by layer during the backward pass.
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
        """Return both sums; without a batch they are zero, with zero gradients."""
        weight, bias = self.model.projection_weight, self.model.output_bias
        if batch is None:
            zero = torch.stack([(p * 0.0).sum() for p in self.model.parameters()]).sum()
            return zero, zero.detach()
        with autocast(weight.device, self.dtype):
            hidden = self.model(batch.source, batch.source_bias, batch.previous)
        hidden = hidden.flatten(0, 1)[batch.target_index].to(self.dtype)
        return projected_cross_entropy(
            hidden, weight, batch.targets, self.smoothing, self.fuse, bias, self.banned_tokens
        )

"""Model and loss as one module, as DistributedDataParallel wraps it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from translate_trt.train.cudnn_attention import cudnn_attention
from translate_trt.train.data.batches import Batch
from translate_trt.train.loss import choose_method, projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.compiling import compile_layers, exceeds_bucket, whole_layers
from translate_trt.train.trainer.precision import autocast


class Objective(nn.Module):
    """Smoothed loss and negative log-likelihood of a batch, both summed over target tokens.

    Args of the constructor:
        model: Model with its initial weights; trained in place.
        smoothing: Label smoothing.
        dtype: Dtype of the matmuls.
        fuse: Compile the loss and each layer.
        cudnn: Let torch choose cuDNN's attention on a GPU.
    """

    def __init__(
        self,
        model: Transformer,
        smoothing: float,
        dtype: torch.dtype,
        fuse: bool,
        cudnn: bool = False,
    ) -> None:
        super().__init__()
        self.banned_tokens = model.banned_tokens
        self.model, self.smoothing, self.dtype, self.cudnn = model, smoothing, dtype, cudnn
        self.method = choose_method(
            model.projection_weight.device, dtype, model.config.vocabulary_size, fuse
        )
        self.exceeds_bucket = fuse and exceeds_bucket(model)
        if fuse:
            compile_layers(model)

    def forward(self, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return both sums; without a batch they are zero, with zero gradients."""
        weight, bias = self.model.projection_weight, self.model.output_bias
        if batch is None:
            zero = torch.stack([(p * 0.0).sum() for p in self.model.parameters()]).sum()
            return zero, zero.detach()
        with whole_layers(self.exceeds_bucket):
            with (
                cudnn_attention(weight.device, self.cudnn),
                autocast(weight.device, self.dtype),
            ):
                hidden = self.model(batch.source, batch.source_bias, batch.previous)
            hidden = hidden.flatten(0, 1)[batch.target_index].to(self.dtype)
            return projected_cross_entropy(
                hidden, weight, batch.targets, self.smoothing, self.method, bias,
                self.banned_tokens,
            )  # fmt: skip

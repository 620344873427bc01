"""Model and loss as one module, as DistributedDataParallel wraps it."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.train.cuda_graphs import ShapeGraphs
from translate_trt.train.cudnn_attention import cudnn_attention
from translate_trt.train.data.batches import Batch
from translate_trt.train.loss import (
    alignment_cross_entropy,
    choose_method,
    projected_cross_entropy,
)
from translate_trt.train.model import RecordedHead, Residual, Transformer
from translate_trt.train.trainer.precision import autocast

#: Bytes of gradients that DistributedDataParallel exchanges at once by default.
BUCKET_BYTES = 25 * 2**20


def compile_layers(model: Transformer) -> None:
    """Compile each layer.

    Per layer, because equal layers then share their code, and gradients are exchanged layer by
    layer during the backward pass.
    """
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=True)


def fuse_norms(model: Transformer) -> None:
    """Let a Triton kernel compute the residual sum, dropout and LayerNorm of each block."""
    from translate_trt.train.fused_norm import residual_norm

    for module in model.modules():
        if isinstance(module, Residual):
            module.fused = residual_norm


def exceeds_bucket(model: Transformer) -> bool:
    """Whether the gradients of a layer exceed a bucket, as in `big` (48 and 64 MiB)."""
    return any(
        sum(p.numel() * p.element_size() for p in layer.parameters()) > BUCKET_BYTES
        for layer in (*model.encoder, *model.decoder)
    )


def whole_layers(exceeding: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context in which torch.compile does not split layers at the bounds of buckets.

    Within DistributedDataParallel, torch.compile splits a graph where a bucket is full, so that the
    gradients of one part are exchanged during the backward pass of the other. Layers that are
    compiled one by one overlap without that; the split only costs fusions and launches.

    Args:
        exceeding: Whether layers exceed a bucket; the context changes nothing if not.
    """
    if not exceeding:
        return contextlib.nullcontext()
    patch: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(optimize_ddp=False)
    return patch


class Losses(NamedTuple):
    """Losses of a batch, each summed over target tokens.

    Attributes:
        loss: What training minimizes: the smoothed loss, and that of guided alignment times its
            weight.
        smoothed: Cross-entropy with label smoothing.
        likelihood: Negative log-likelihood.
        alignment: Cross-entropy of guided alignment, without its weight; 0 without links.
    """

    loss: Tensor
    smoothed: Tensor
    likelihood: Tensor
    alignment: Tensor


class MixedPrecision(nn.Module):
    """Decoder output of a model whose matmuls run in a dtype; arguments are the model's.

    Args of the constructor:
        model: Model.
        dtype: Dtype of the matmuls.
        cudnn: Let torch choose cuDNN's attention on a GPU.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype, cudnn: bool) -> None:
        super().__init__()
        self.model, self.dtype, self.cudnn = model, dtype, cudnn

    def forward(self, *inputs: Any) -> Tensor:
        device = self.model.projection_weight.device
        with cudnn_attention(device, self.cudnn), autocast(device, self.dtype):
            hidden: Tensor = self.model(*inputs)
            return hidden


class Objective(nn.Module):
    """Losses of a batch.

    Args of the constructor:
        model: Model with its initial weights; trained in place.
        smoothing: Label smoothing.
        dtype: Dtype of the matmuls.
        fuse: Compile the loss and each layer.
        cudnn: Let torch choose cuDNN's attention on a GPU.
        guided: Head of cross-attention that learns the alignments of batches.
        guided_weight: Weight of that loss.
        fused_norm: Compute the end of each post-norm block by a kernel of train/fused_norm.py.
        graphs: Run the model by CUDA graphs. Batches must have fixed shapes, and weights gradients.
    """

    def __init__(
        self,
        model: Transformer,
        smoothing: float,
        dtype: torch.dtype,
        fuse: bool,
        cudnn: bool = False,
        guided: AttentionHeads | None = None,
        guided_weight: float = 0.0,
        fused_norm: bool = False,
        graphs: bool = False,
    ) -> None:
        super().__init__()
        self.banned_tokens = model.banned_tokens
        self.model, self.smoothing, self.dtype = model, smoothing, dtype
        self.mixed = MixedPrecision(model, dtype, cudnn)
        self.graphs = ShapeGraphs(self.mixed) if graphs else None
        self.guided, self.guided_weight = guided, guided_weight
        self.method = choose_method(
            model.projection_weight.device, dtype, model.config.vocabulary_size, fuse
        )
        self.exceeds_bucket = fuse and exceeds_bucket(model)
        if fused_norm:
            fuse_norms(model)
        if fuse:
            compile_layers(model)

    def forward(self, batch: Batch | None) -> Losses:
        """Return the losses; without a batch they are zero, with zero gradients."""
        weight, bias = self.model.projection_weight, self.model.output_bias
        if batch is None:
            zero = torch.stack([(p * 0.0).sum() for p in self.model.parameters()]).sum()
            return Losses(zero, *(zero.detach(),) * 3)
        recorded = None
        if self.guided is not None:
            recorded = RecordedHead(self.guided.layer, self.guided.heads[0])
        with whole_layers(self.exceeds_bucket):
            if self.graphs is not None and batch.source_bias is not None:
                hidden = self.graphs(batch.source, batch.source_bias, batch.previous)
            else:
                hidden = self.mixed(
                    batch.source, batch.source_bias, batch.previous, recorded, batch.packings
                )
            rows = batch.target_index
            if batch.packings is not None:
                rows = torch.searchsorted(batch.packings.target.positions, rows)
            hidden = hidden.flatten(0, 1)[rows].to(self.dtype)
            smoothed, likelihood = projected_cross_entropy(
                hidden, weight, batch.targets, self.smoothing, self.method, bias,
                self.banned_tokens,
            )  # fmt: skip
            if recorded is None or batch.links is None or batch.link_shares is None:
                return Losses(smoothed, smoothed.detach(), likelihood, torch.zeros_like(likelihood))
            (log_weights,) = recorded.log_weights
            alignment = alignment_cross_entropy(log_weights, batch.links, batch.link_shares)
            loss = smoothed + self.guided_weight * alignment
            return Losses(loss, smoothed.detach(), likelihood, alignment.detach())

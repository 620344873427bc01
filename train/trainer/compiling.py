"""torch.compile of the layers, alone and within DistributedDataParallel."""

from __future__ import annotations

import contextlib

import torch

from translate_trt.train.model import Transformer

#: Bytes of gradients that DistributedDataParallel exchanges at once by default.
BUCKET_BYTES = 25 * 2**20


def compile_layers(model: Transformer) -> None:
    """Compile each layer.

    Per layer, because equal layers then share their code, and gradients are exchanged layer by
    layer during the backward pass.
    """
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=True)


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

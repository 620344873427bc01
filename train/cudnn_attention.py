"""Choice of torch's attention kernels on NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cudnn_attention(device: torch.device, allowed: bool = False) -> Iterator[None]:
    """Keep torch from cuDNN's attention in a block; leave all as it is on other devices.

    On GPUs of compute capability 9.0 and 10.0, torch 2.11 and later prefer cuDNN in bfloat16 and
    float16 (check_prefer_cudnn_attention in sdp_utils.cpp). cuDNN makes an execution plan for
    every new shape, forward and backward, which takes tens to hundreds of milliseconds of host
    time (modelscope/FunASR#3704: 0.44 s and 0.55 s on a B200). Length-sorted batches and growing
    translations rarely repeat a shape. Without cuDNN, torch takes its flash or memory-efficient
    kernels, which need no plan.

    The switch is one of the process: other threads that run attention meanwhile are affected, too.

    Args:
        device: Device of the attention.
        allowed: Let torch choose cuDNN.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    if device.type != "cuda" or allowed or not before:
        yield
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)

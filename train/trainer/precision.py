"""In which number format the processor multiplies fastest."""

from __future__ import annotations

import contextlib

import torch

from translate_trt.train.config import TrainConfig


def processor_multiplies_bf16() -> bool:
    """True if this CPU has bfloat16 matrix instructions (AMX or AVX512-BF16).

    Without them torch emulates: a quarter of the fp32 speed, measured on an AVX512-VNNI machine.
    """
    # get_capabilities is absent before torch 2.10; "auto" then stays with fp32.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def resolve_precision(config: TrainConfig, device: torch.device) -> torch.dtype:
    """The type matrices are multiplied in; weights and their updates always stay in float32."""
    named = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if config.precision in named:
        return named[config.precision]
    if device.type == "cuda":
        # including_emulation=False: Volta and Turing have fp16 tensor cores only.
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    return torch.bfloat16 if processor_multiplies_bf16() else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """A context in which matrix products run in that type."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def loss_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """What multiplies the loss in float16, so that small gradients do not become zero."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

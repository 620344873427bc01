"""Mixed precision of training: dtype of the matmuls, autocast and loss scaling."""

from __future__ import annotations

import contextlib

import torch

from translate_trt.train.config import TrainConfig


def processor_multiplies_bf16() -> bool:
    """Whether this CPU has bfloat16 matrix instructions (AMX or AVX512-BF16).

    Without them torch emulates bfloat16: a quarter of the fp32 speed on an AVX512-VNNI machine.
    """
    # torch before 2.10 has no get_capabilities; "auto" is fp32 there.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def resolve_precision(config: TrainConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of the matmuls; weights and optimizer state are always float32."""
    named = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if config.precision in named:
        return named[config.precision]
    if device.type == "cuda":
        # including_emulation=False: Volta and Turing have fp16 tensor cores only.
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    return torch.bfloat16 if processor_multiplies_bf16() else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """Return a context in which matmuls run in that dtype."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def loss_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Return the loss scaler, enabled in float16 only, where small gradients underflow."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

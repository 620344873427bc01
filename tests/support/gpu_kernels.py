"""Kernels for GPUs: they run on the GPU where there is one, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

MODULES = (
    "translate_trt.runtime.gpu.activation", "translate_trt.runtime.gpu.attention",
    "translate_trt.runtime.gpu.ancestry", "translate_trt.runtime.gpu.embedding",
    "translate_trt.runtime.gpu.encoder", "translate_trt.runtime.gpu.norm",
    "translate_trt.runtime.gpu.recurrence", "translate_trt.runtime.gpu.select_beams",
    "translate_trt.runtime.gpu.top_logits", "translate_trt.train.fused_norm",
)  # fmt: skip

INTERPRETED = not torch.cuda.is_available()

# Triton reads the variable when it is imported and when it makes kernels, so this plugin is the
# first. Afterwards, other tests in this process run without kernels.
if INTERPRETED and importlib.util.find_spec("triton"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.experimental.gluon")  # which the interpreter imports
        for name in MODULES:
            importlib.import_module(name)


@pytest.fixture(scope="session")
def interpreted() -> bool:
    """Whether kernels run in the interpreter."""
    return INTERPRETED


@pytest.fixture(scope="session")
def device(interpreted: bool) -> torch.device:
    """The device of the tensors of kernels."""
    if interpreted:
        _multiply_bf16_as_floats()
    return torch.device("cpu" if interpreted else "cuda")


def _multiply_bf16_as_floats() -> None:
    """Repair `tl.dot` of the interpreter, whose arrays hold BF16 as the integers of their bits."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot = InterpreterBuilder.create_dot

    def as_float(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, as_float(a), as_float(b), *rest)

    InterpreterBuilder.create_dot = create_dot

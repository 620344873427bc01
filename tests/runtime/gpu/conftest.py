"""Kernels run on the GPU where there is one, elsewhere in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
import torch

MODULES = (
    "activation",
    "attention",
    "ancestry",
    "embedding",
    "encoder",
    "norm",
    "recurrence",
    "select_beams",
    "top_logits",
)

# Triton reads the variable when it makes kernels. Afterwards, other tests in this process run
# without kernels.
INTERPRETED = "triton" not in sys.modules and not torch.cuda.is_available()
if INTERPRETED and importlib.util.find_spec("triton"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.experimental.gluon")  # which the interpreter imports
        for name in MODULES:
            importlib.import_module(f"translate_trt.runtime.gpu.{name}")


@pytest.fixture(scope="session")
def interpreted() -> bool:
    """Whether kernels run in the interpreter."""
    return INTERPRETED


@pytest.fixture(scope="session")
def device(interpreted: bool) -> torch.device:
    """The device of the tensors of kernels."""
    if interpreted:
        _multiply_bf16_as_floats()
    elif not torch.cuda.is_available():
        pytest.skip("Triton was imported without TRITON_INTERPRET=1; run tests/runtime/gpu alone")
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

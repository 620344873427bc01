"""Kernels run on the GPU where there is one, elsewhere in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import sys

import pytest
import torch

# Triton reads the variable when it is imported.
if "triton" not in sys.modules and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device of the tensors of kernels."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not torch.cuda.is_available():
        pytest.skip("Triton was imported without TRITON_INTERPRET=1; run tests/runtime/gpu alone")
    return torch.device("cpu" if interpreted else "cuda")

"""Launches and bytes of an execution plan."""

from __future__ import annotations

import pytest

from translate_trt.export.engines.plan import Kernel, Plan, Tensor

X = Tensor("x", "half", (256, 512), "x")
WEIGHTS = Tensor("w", "half", (512, 512), "w", constant=True)


def test_a_plan_is_described_by_launches_and_bytes() -> None:
    from engine_plan import describe

    kernels = (
        Kernel("a", "fully_connected", (), (X, WEIGHTS), (X,)),
        Kernel("b", "runtime_fusion", (), (X, WEIGHTS), (X,)),
        Kernel("__myl_Add", "function", (), (X,), (X,), covered=256 * 512),
    )
    found = describe(Plan(kernels, scratch_bytes=3_000_000), 64)
    assert found["launches"] == 3
    assert found["weight_bytes"] == 2 * 2 * 512 * 512
    assert list(found["kernels"]) == ["GEMM", "__myl_Add"]
    assert found["kernels"]["GEMM"]["count"] == 2
    assert found["milliseconds"]["H100 SXM"] == pytest.approx(3 * 2.5e-3)

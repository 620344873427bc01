"""The tables of docs/gpu.md that are computed from execution plans."""

from __future__ import annotations

from typing import Any

import pytest

from translate_trt.export.engines.plan import Kernel, Plan, Tensor

X = Tensor("x", "half", (256, 512), "x")
WEIGHTS = Tensor("w", "half", (512, 512), "w", constant=True)


@pytest.fixture
def report() -> dict[str, Any]:
    from engine_plan import WHOLE, describe, name_of

    plan = Plan(
        (
            Kernel("a", "fully_connected", (), (X, WEIGHTS), (X,)),
            Kernel("b", "runtime_fusion", (), (X, WEIGHTS), (X,)),
            Kernel("__myl_Add", "function", (), (X,), (X,), covered=256 * 512),
        ),
        scratch_bytes=3_000_000,
    )
    found = describe(plan, 64)
    found["milliseconds"] = {"A GPU": found["milliseconds"]["H100 SXM"]}
    case = {"sums": found, "attention": found, WHOLE: found}
    gpus = [{"name": "A GPU", "bandwidth": 1e12, "operations": 1e14, "source": "its data sheet"}]
    settings = {
        "presets": ["base"], "batches": [1, 64], "source_lengths": [256],
        "beams": 4, "vocabulary": 37_000, "longest": 306,
        "capability": "8.9", "version": "1.7.1", "launch_seconds": 2.5e-6, "gpus": gpus,
    }  # fmt: skip
    results = {name_of("base", batch, 256, 64): case for batch in (1, 64)}
    return {"settings": settings, "results": results}


def test_a_plan_is_described_by_launches_and_bytes(report: dict[str, Any]) -> None:
    found = report["results"]["base, batch 64, S 256, 64 tokens"]["sums"]
    assert found["launches"] == 3
    assert found["weight_bytes"] == 2 * 2 * 512 * 512
    assert list(found["kernels"]) == ["GEMM", "__myl_Add"]
    assert found["kernels"]["GEMM"]["count"] == 2
    assert found["milliseconds"]["A GPU"] == pytest.approx(3 * 2.5e-3)

from __future__ import annotations

import pytest
import torch

from translate_trt.train.config import TrainConfig
from translate_trt.train.trainer.precision import autocast, loss_scaler, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_vnni": True}, torch.float32),
        ({"amx_bf16": False, "avx512_bf16": False}, torch.float32),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_looks_at_the_processor(
    capabilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert resolve_precision(TrainConfig(precision="auto"), CPU) == expected
    assert resolve_precision(TrainConfig(precision="fp32"), CPU) == torch.float32
    assert resolve_precision(TrainConfig(precision="bf16"), CPU) == torch.bfloat16


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float16")])
def test_an_older_gpu_takes_fp16(
    native: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation
    )
    found = resolve_precision(TrainConfig(precision="auto"), torch.device("cuda"))
    assert str(found) == f"torch.{expected}"


def test_only_fp16_scales_its_losses() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert loss_scaler(CPU, dtype).is_enabled() == (dtype == torch.float16)


def test_a_torch_that_does_not_tell_stays_with_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert resolve_precision(TrainConfig(precision="auto"), CPU) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_run_in_that_type(dtype: torch.dtype) -> None:
    with autocast(CPU, dtype):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype

"""Estimates of training time: arithmetic by hand, and the table of docs/train.md."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from support.paths import ROOT

pytestmark = pytest.mark.slow


def test_an_estimate_by_hand() -> None:
    import training_estimates as module

    from translate_trt.train.config import PRESETS
    from translate_trt.train.model import Transformer
    from translate_trt.train.trainer.micro_batches import activation_bytes

    given = module.Inputs(
        peak_tflops=100.0,
        terabytes_per_second=1.0,
        link_terabytes_per_second=0.1,
        matmul_share=1.0,
        memory_share=1.0,
        launch_microseconds=1000.0,
        fused_share=1.0,
        sentence_tokens=25,
    )
    found = module.estimate("base", 4, given)
    model = PRESETS["base"].model
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(model).parameters())
    assert found.micro_batch_tokens == 6_250
    # Encoder 12 d^2 and decoder 14 d^2 weights per position and layer, two more for cross keys and
    # values, the projection; and scores of 3 attentions in 6 layers. Forward, and twice backward.
    weights = 6 * (12 + 14 + 2) * 512**2 + 512 * 37_000
    scores = 3 * 6 * 25 * 2 * 512
    assert found.matmuls == pytest.approx(3 * 2 * 6_250 * (weights + scores) / 100e12)
    assert found.activations == pytest.approx(
        4 * 6_250 * activation_bytes(model, torch.bfloat16) / 1e12
    )
    chunks = 2  # of 3,627 rows
    assert found.loss == pytest.approx((12 * 6_250 * 37_000 + chunks * 12 * 37_000 * 512) / 1e12)
    assert found.optimizer == pytest.approx(32 * parameters / 1e12)
    assert found.exchange == pytest.approx(1.5 * 4 * parameters / 0.1e12)
    assert found.launches == pytest.approx(module.operators("base") / 1000)
    assert found.step == found.launches > found.gpu
    faster = module.estimate("base", 4, replace(given, launch_microseconds=0.0))
    assert faster.step == faster.gpu == found.gpu


def test_less_memory_is_more_micro_batches_and_launches() -> None:
    import training_estimates as module

    given = module.Inputs()
    large, small = (
        module.estimate("big", 1, replace(given, memory_gib=size)) for size in (78.0, 24.0)
    )
    assert (large.micro_batch_tokens, small.micro_batch_tokens) == (25_000, 12_500)
    assert small.launches == pytest.approx(2 * large.launches)
    assert small.gpu == large.gpu


def test_the_page_has_the_table_of_the_script() -> None:
    import training_estimates as module

    page = (ROOT / "docs/train.md").read_text(encoding="utf-8")
    assert module.text(module.Inputs()) in page


def test_inputs_are_options() -> None:
    script = ROOT / "benchmarks/training_estimates.py"
    command = [sys.executable, script, "--matmul-share", "0.25"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| matmul share | 0.25 | assumed: speed of matmuls / peak |" in shown

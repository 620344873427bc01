"""Size of micro-batches: the estimate of memory against measured peaks, and the choice."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from translate_trt.runtime.errors import OptionError
from translate_trt.train import model as model_module
from translate_trt.train.config import FINE_TUNE, PRESETS, ModelConfig
from translate_trt.train.data.batches import Batch
from translate_trt.train.model import Dropout, Transformer
from translate_trt.train.trainer import micro_batches
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.micro_batches import (
    CPU_TOKENS,
    LEAST_TOKENS,
    MEMORY_SHARE,
    activation_bytes,
    divide,
    fixed_bytes,
    memory_limit,
)
from translate_trt.train.trainer.objective import Objective
from translate_trt.train.trainer.run import prepare_job

pytestmark = pytest.mark.slow

CPU = Group(torch.device("cpu"))
GIB = 2**30


@pytest.fixture
def operators_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a GPU's attention and dropout, which keep other tensors than those for a CPU."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, causal: bool = False,
        dropout: Dropout | None = None,
    ) -> Tensor:  # fmt: skip
        mask = None if bias is None else bias.to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)

    def dropout(self: Dropout, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.rate, True)[0] if self.rate else x

    monkeypatch.setattr(model_module, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(Dropout, "forward", dropout)


def peak_bytes(model: Transformer, dtype: torch.dtype, sentences: int, length: int) -> int:
    """Measure the peak of memory that a forward and backward pass allocates."""
    objective = Objective(model, 0.1, dtype, fuse=False)
    tokens = torch.randint(4, model.config.vocabulary_size, (sentences, length))
    bias = torch.zeros(sentences, 1, 1, length)
    every = torch.arange(sentences * length)
    lengths = torch.full((sentences,), length)
    batch = Batch(tokens, lengths, bias, tokens, tokens.flatten(), every)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        objective(batch)[0].backward()

    step()  # what is allocated once
    model.zero_grad(set_to_none=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak


@pytest.mark.usefixtures("operators_of_a_gpu")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu", "activation_dropout": 0.1},
        {"decoder_mixer": "ssru", "decoder_layers": 4, "decoder_d_ff": 512},
        *(
            pytest.param(changes, marks=pytest.mark.nightly)
            for changes in (
                {"norm": "pre", "d_ff": 512},
                {"activation": "gelu"},
                {"activation_dropout": 0.1},
                {"encoder_layers": 4, "decoder_layers": 1, "norm_embedding": True},
                {"encoder_layers": 1, "decoder_layers": 4, "heads": 8},
            )
        ),
    ],
)
def test_the_estimate_is_a_close_upper_bound_of_measured_peaks(
    changes: dict[str, Any], dtype: torch.dtype
) -> None:
    # A small vocabulary: fixed_bytes counts the logits. Checked on a CPU, by the allocator's log.
    shape = {"vocabulary_size": 40, "encoder_layers": 3, "decoder_layers": 3, "d_model": 64}
    config = ModelConfig(**{**shape, "d_ff": 256, "heads": 4, **changes})
    torch.manual_seed(0)
    model = Transformer(config)
    small, large = (peak_bytes(model, dtype, sentences, 32) for sentences in (16, 32))
    measured = (large - small) / (16 * 32)
    assert measured <= activation_bytes(config, dtype) <= 1.12 * measured
    # What does not grow: autocast's copies, and the few gradients that exist at the peak.
    assert 2 * small - large < fixed_bytes(config, dtype)


def test_the_limit_uses_the_free_memory() -> None:
    for name in PRESETS:
        config = PRESETS[name].model
        for gibibytes in (16, 24, 80):
            limit = memory_limit(config, torch.bfloat16, gibibytes * GIB)
            used = fixed_bytes(config, torch.bfloat16) + limit * activation_bytes(
                config, torch.bfloat16
            )
            assert 0.99 * MEMORY_SHARE <= used / (gibibytes * GIB) <= MEMORY_SHARE
        assert memory_limit(config, torch.bfloat16, 0) == LEAST_TOKENS
    # On a GPU of 80 GB, a step of both of the paper's models is one batch.
    for name in ("base", "big"):
        assert memory_limit(PRESETS[name].model, torch.bfloat16, 78 * GIB) > 25_000


def test_fixed_memory_counts_weights_optimizer_and_loss() -> None:
    config = PRESETS["base"].model
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    size = 37_000 * 512
    loss = 2**28 + 4 * (2**28 // (37_000 * 2)) * 4096
    assert fixed_bytes(config, torch.bfloat16) == 18 * parameters + 12 * size + loss


@pytest.mark.parametrize(
    ("batch_tokens", "processes", "limit", "expected"),
    [
        (25_000, 1, 200_000, 25_000),
        (25_000, 8, 200_000, 3_125),
        (25_000, 1, 24_000, 12_500),
        (25_000, 1, CPU_TOKENS, 3_125),
        (25_000, 3, 9_000, 8_333),
        (25_000, 3, 8_000, 4_166),
        (4_096, 1, CPU_TOKENS, 4_096),
        (3, 8, 100, 1),
    ],
)
def test_processes_share_a_step_evenly(
    batch_tokens: int, processes: int, limit: int, expected: int
) -> None:
    size = divide(batch_tokens, processes, limit)
    assert size == expected
    assert size <= limit
    if batch_tokens >= processes:
        count = batch_tokens // size  # as steps.plan_epoch has it
        assert count % processes == 0
        assert count * size > 0.999 * batch_tokens  # the step stays as large as the recipe says


def test_presets_on_a_cpu_keep_their_batches() -> None:
    expected = {"tiny": 2_048, "small": 4_096, "base": 3_125, "big": 3_125}
    for name, size in expected.items():
        train = PRESETS[name].train
        assert train.micro_batch_tokens == 0
        assert divide(train.batch_tokens, 1, CPU_TOKENS) == size
    assert divide(FINE_TUNE.batch_tokens, 1, CPU_TOKENS) == 4_096


def test_the_choice_is_logged_and_recorded_and_kept(
    text: TextFiles, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    del settings["micro_batch_tokens"]
    out = tmp_path / "run"
    monkeypatch.setattr(micro_batches, "CPU_TOKENS", 64)
    job = prepare_job(text, out, "tiny", settings)
    with caplog.at_level(logging.INFO, logger="translate_trt"):
        trainer = Trainer(job, CPU)
    assert "micro-batches" in caplog.text
    assert trainer.config.micro_batch_tokens == 64
    averaged = trainer.run()
    assert averaged is not None
    for path in (out / "run.json", averaged / "config.json"):
        assert json.loads(path.read_text())["train"]["micro_batch_tokens"] == 64
    # Another machine, and the flag of the first command repeated: the sentences stay.
    monkeypatch.setattr(micro_batches, "CPU_TOKENS", 4_096)
    for overrides in ({"steps": 14}, {"steps": 14, "micro_batch_tokens": 0}):
        job = prepare_job(text, out, "tiny", overrides, resume=True)
        assert Trainer(job, CPU, resume=True).config.micro_batch_tokens == 64
    with pytest.raises(OptionError, match="micro_batch_tokens would change"):
        prepare_job(text, out, "tiny", {"micro_batch_tokens": 128}, resume=True)


def test_on_gpus_the_smallest_decides(
    text: TextFiles, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: the driver's answer and the other process are simulated."""
    settings |= {"micro_batch_tokens": 0, "batch_tokens": 25_000}
    job = prepare_job(text, tmp_path / "run", "tiny", settings)
    config = job.settings.model
    free = int(fixed_bytes(config, torch.bfloat16) / MEMORY_SHARE)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free + GIB, 2 * GIB))
    alone = Group(torch.device("cuda", 0))
    chosen = micro_batches.with_micro_batches(job, alone, torch.bfloat16)
    assert chosen.settings.train.micro_batch_tokens == 25_000
    assert chosen.settings.train.batch_tokens == 25_000
    pair = dataclasses.replace(alone, size=2)
    other = 7_000  # of the other process's GPU
    monkeypatch.setattr(Group, "smallest", lambda self, value: min(value, other))
    chosen = micro_batches.with_micro_batches(job, pair, torch.bfloat16)
    assert chosen.settings.train.micro_batch_tokens == 6_250
    # A given size is kept.
    train = dataclasses.replace(job.settings.train, micro_batch_tokens=99)
    given = dataclasses.replace(job, settings=dataclasses.replace(job.settings, train=train))
    assert micro_batches.with_micro_batches(given, pair, torch.bfloat16) is given


def test_the_size_is_recorded_after_the_other_processes_have_reopened_the_run(
    text: TextFiles, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    job = prepare_job(text, out, "tiny", {**settings, "micro_batch_tokens": 0})

    def others_arrive(self: Group, value: int) -> int:
        reopened = prepare_job(text, out, "tiny", {}, resume=True)
        assert reopened.settings.train.micro_batch_tokens == 0
        return value

    monkeypatch.setattr(Group, "smallest", others_arrive)
    pair = Group(torch.device("cpu"), size=2)
    chosen = micro_batches.with_micro_batches(job, pair, torch.float32)
    assert chosen.settings.train.micro_batch_tokens == 128
    recorded = json.loads((out / "run.json").read_text())["train"]
    assert recorded["micro_batch_tokens"] == 128

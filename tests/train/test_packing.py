"""Sentences without padding: the same losses and gradients as with it, by a CPU's varlen_attn."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from translate_trt.train.config import BANNED_BIAS, ModelConfig
from translate_trt.train.data.batches import ParallelData, encode_parallel
from translate_trt.train.model import Transformer
from translate_trt.train.packing import packing, reason_for_padding
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.objective import Objective
from translate_trt.train.trainer.run import prepare_job

SMALL = ModelConfig(50, encoder_layers=2, decoder_layers=2, d_model=16, d_ff=24, heads=4, dropout=0)
CUDA = torch.device("cuda", 0)
VARLEN = "torch.nn.attention.varlen"


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Compute what PyTorch's function of this name does, sentence by sentence."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert len(cu_seq_q) == len(cu_seq_k)
    assert all(x.stride(-1) == 1 for x in (query, key, value))
    contexts = []
    for n in range(len(cu_seq_q) - 1):
        queries, keys = (slice(*starts[n : n + 2].tolist()) for starts in (cu_seq_q, cu_seq_k))
        q, k, v = (
            x[rows].transpose(0, 1) for x, rows in ((query, queries), (key, keys), (value, keys))
        )
        assert 0 < q.shape[1] <= max_q
        assert 0 < k.shape[1] <= max_k
        causal = window_size == (-1, 0)
        contexts.append(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1))
    return torch.cat(contexts)


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(VARLEN)
    monkeypatch.setattr(f"{VARLEN}.varlen_attn", varlen_attn)


def pairs(count: int = 12) -> ParallelData:
    random = np.random.default_rng(0)

    def sentences() -> list[list[int]]:
        return [random.integers(4, 50, random.integers(1, 10)).tolist() for _ in range(count)]

    return encode_parallel(sentences(), sentences(), None)


def losses_and_gradients(
    model: Transformer,
    data: ParallelData,
    packs: bool,
    fuse: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, ...]:
    model.zero_grad()
    data = dataclasses.replace(data.for_model(model), packs=packs)
    batch = data.batch(np.arange(len(data))).to(model.projection_weight.device)
    assert (batch.packings is not None) is packs
    losses = Objective(model, 0.1, dtype, fuse)(batch)
    losses.loss.backward()
    found = (losses.smoothed, losses.likelihood, *(p.grad for p in model.parameters()))
    return tuple(torch.as_tensor(x).detach().clone() for x in found)


def test_layout() -> None:
    found = packing(torch.tensor([2, 4, 1]), 5)
    assert found.positions.tolist() == [0, 1, 5, 6, 7, 8, 10]
    assert found.starts.tolist() == [0, 2, 6, 7]
    assert found.columns.tolist() == [0, 1, 0, 1, 2, 3, 0]
    assert found.longest == 5
    tokens = torch.arange(15).reshape(3, 5)
    assert found.pack(tokens).tolist() == [found.positions.tolist()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "decoder_ties": "1,1"},
        {"positions": "learned", "max_positions": 12, "source_vocabulary_size": 50, "tied": "none"},
        {"source_end": False, "norm_embedding": True, "own_target_positions": True}
        | {"positions": "learned", "max_positions": 12},
    ],
)  # fmt: skip
def test_gradients_are_those_with_padding(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(SMALL, **changes)).train()
    with_padding, without = (losses_and_gradients(model, pairs(), packs) for packs in (False, True))
    for expected, found in zip(with_padding, without, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_banned_tokens_are_no_targets() -> None:
    torch.manual_seed(1)
    model = Transformer(dataclasses.replace(SMALL, output_bias=True)).train()
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[10:20] = BANNED_BIAS
    with_padding, without = (losses_and_gradients(model, pairs(), packs) for packs in (False, True))
    for expected, found in zip(with_padding, without, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_compiled_layers_serve_batches_of_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced code must not depend on the number of tokens or on the longest sentence."""
    torch.compiler.reset()
    torch.manual_seed(2)
    # The reference above loops over sentences, which tracing would unroll.
    untraced = torch._dynamo.disable(varlen_attn)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(f"{VARLEN}.varlen_attn", untraced)
    config = dataclasses.replace(SMALL, encoder_layers=1, decoder_layers=1)
    model = Transformer(config).train()
    traced = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        traced.append(graph)
        return graph.forward

    compiled = Transformer(model.config).train()
    compiled.load_state_dict(model.state_dict())
    for layer in (*compiled.encoder, *compiled.decoder):
        layer.compile(dynamic=True, backend=backend)
    counts = []
    for count in (12, 7, 9, 5):
        expected = losses_and_gradients(model, pairs(count), packs=False)
        found = losses_and_gradients(compiled, pairs(count), packs=True)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
        counts.append(len(traced))
    assert traced
    assert counts[0] == counts[-1]


def test_a_run_reaches_the_weights_of_one_with_padding(
    text: TextFiles, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {}
    for packs in (False, True):
        monkeypatch.setattr(Trainer, "_can_pack", lambda self, packs=packs: packs)
        changes = {"dropout": 0.0, "steps": 4}
        job = prepare_job(text, tmp_path / str(packs), "tiny", settings | changes)
        trainer = Trainer(job, Group(torch.device("cpu")))
        assert trainer.training_data.batch(np.arange(3)).source_bias is None or not packs
        trainer.run()
        # Adam magnifies the rounding of small gradients; that of these biases is nothing else.
        weights[packs] = {
            name: weight
            for name, weight in trainer.model.state_dict().items()
            if not name.endswith("key.bias")
        }
    torch.testing.assert_close(weights[True], weights[False], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "dtype", "guided", "reason"),
    [
        ({}, torch.bfloat16, False, ""),
        ({}, torch.float16, False, ""),
        ({}, torch.float32, False, "no float32"),
        ({"key_size": 16}, torch.bfloat16, False, "16 columns of keys and 64 of values"),
        ({"heads": 128}, torch.bfloat16, False, "multiple of 8 up to 256"),
        ({"heads": 1}, torch.bfloat16, False, "multiple of 8 up to 256"),
        ({"attention_dropout": 0.1}, torch.bfloat16, False, "attention_dropout"),
        ({"decoder_mixer": "ssru"}, torch.bfloat16, False, "SSRU"),
        ({}, torch.bfloat16, True, "guided alignment reads weights"),
    ],
)
def test_what_keeps_padding(
    changes: dict[str, Any],
    dtype: torch.dtype,
    guided: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = reason_for_padding(ModelConfig(**changes), CUDA, dtype, guided)
    assert reason in found
    assert bool(found) is bool(reason)


def test_what_keeps_padding_on_older_gpus_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "Ampere" in reason_for_padding(ModelConfig(), CUDA, torch.float16, False)
    monkeypatch.delattr(f"{VARLEN}.varlen_attn")
    assert "before 2.11" in reason_for_padding(ModelConfig(), CUDA, torch.float16, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the flash kernels need a GPU")
@pytest.mark.parametrize("fuse", [False, True])
def test_the_flash_kernels_have_the_gradients_of_attention_with_padding(
    fuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    torch.compiler.reset()
    torch.manual_seed(3)
    device = torch.device("cuda")
    model = Transformer(dataclasses.replace(SMALL, d_model=64)).to(device).train()
    assert not reason_for_padding(model.config, device, torch.bfloat16, False)
    with_padding, without = (
        losses_and_gradients(model, pairs(40), packs, fuse, torch.bfloat16)
        for packs in (False, True)
    )
    torch.testing.assert_close(without[:2], with_padding[:2], atol=0, rtol=0.01)
    # Of all gradients: those of the biases of keys are 0 but for rounding.
    expected, found = (torch.cat([x.flatten() for x in g[2:]]) for g in (with_padding, without))
    assert float((found - expected).norm() / expected.norm()) < 0.03


def test_torch_has_the_arguments_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torchs = importlib.import_module(VARLEN).varlen_attn
    ours, theirs = (inspect.signature(function).parameters for function in (varlen_attn, torchs))
    positional = [name for name, one in ours.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert list(theirs)[: len(positional)] == positional
    assert "window_size" in theirs

"""Guided alignment: a head of cross-attention learns the alignments of the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.errors import OptionError
from translate_trt.train.checkpoint import AVERAGED, open_checkpoint
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.prepare import Preparation, prepare
from translate_trt.train.data.text_sources import TextSource
from translate_trt.train.data.token_files import PreparedData, open_prepared
from translate_trt.train.model import RecordedHead
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.run import prepare_job

CPU = Group(torch.device("cpu"))
GUIDED = {"decoder_layers": 2, "guided_alignment": 1.0, "guided_alignment_layer": 0}


@pytest.fixture
def data(text: TextFiles, tmp_path: Path) -> PreparedData:
    """Numbers in words, all of whose translations are aligned with the first: quick to learn."""
    lines = text.train.source.read_text().splitlines()
    alignment = tmp_path / "alignment"
    alignment.write_text(
        "".join(" ".join(f"0-{n}" for n in range(len(line.split()))) + "\n" for line in lines)
    )
    train, valid = (
        (TextSource(pair.source), TextSource(pair.target)) for pair in (text.train, text.valid)
    )
    options = PrepareOptions(vocabulary_size=320)
    job = Preparation(
        "custom", ("en", "de"), [train], [valid], [], options, alignments=[TextSource(alignment)]
    )
    prepare(job, tmp_path / "data", workers=1)
    return open_prepared(tmp_path / "data")


def test_a_head_learns_the_alignments(
    data: PreparedData, settings: dict[str, Any], tmp_path: Path
) -> None:
    changes = {"dropout": 0.0, "learning_rate": 5e-3, "steps": 50, "batch_tokens": 1_000}
    changes |= {"micro_batch_tokens": 1_000, "precision": "fp32"}
    job = prepare_job(data, tmp_path / "run", "tiny", settings | changes | GUIDED)
    Trainer(job, CPU).run()
    found = [e["alignment_loss"] for e in read_metrics(job.out) if "alignment_loss" in e]
    assert found[-1] < 1 < found[0]  # nats per target token

    checkpoint = open_checkpoint(job.out / AVERAGED)
    assert checkpoint.alignment_heads == AttentionHeads(0, (0,))
    model, batch = checkpoint.load_model().eval(), job.data.train.batch(np.arange(20))
    recorded = RecordedHead(0, 0)
    with torch.inference_mode():
        hidden = model(batch.source, batch.source_bias, batch.previous, recorded)
        same = model(batch.source, batch.source_bias, batch.previous)
    assert torch.equal(hidden, same)
    weights = recorded.log_weights[0].exp()
    assert batch.links is not None
    assert batch.link_shares is not None
    linked = torch.zeros(weights.numel()).index_put((batch.links,), torch.ones(len(batch.links)))
    rows = (linked.view_as(weights) * weights).sum(-1)  # attention of a position to its links
    assert float(rows.sum() / len(batch.targets)) > 0.6


def test_without_a_weight_alignments_change_nothing(
    data: PreparedData, settings: dict[str, Any], tmp_path: Path
) -> None:
    losses = {}
    for name, weight in (("plain", 0.0), ("guided", 0.5)):
        changes = {"decoder_layers": 2, "guided_alignment": weight, "dropout": 0.0}
        trainer = Trainer(prepare_job(data, tmp_path / name, "tiny", settings | changes), CPU)
        batch = trainer.job.data.train.for_model(trainer.model).batch(np.arange(9))
        losses[name] = trainer.objective(batch)
        assert trainer.job.settings.decoding.alignment_heads == (
            AttentionHeads(1, (0,)) if weight else None
        )
    plain, guided = losses["plain"], losses["guided"]
    assert float(plain.alignment) == 0
    assert torch.equal(plain.loss, plain.smoothed)
    assert torch.equal(plain.smoothed, guided.smoothed)
    assert torch.equal(guided.loss, guided.smoothed + 0.5 * guided.alignment)
    assert float(guided.alignment) > 0


def test_what_guided_alignment_needs(
    text: TextFiles, data: PreparedData, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    needs = "needs the alignments of the training text: prepare it with .* --alignment"
    with pytest.raises(OptionError, match=needs):
        prepare_job(text, run, "tiny", settings | {"guided_alignment": 0.1})
    index = data.index["splits"]["train"]
    del index["link_elements"]
    with pytest.raises(OptionError, match=f"data has no alignments. .*{needs}"):
        prepare_job(data, run, "tiny", settings | {"guided_alignment": 0.1})
    for layer in (2, -3):
        wrong = GUIDED | {"guided_alignment_layer": layer}
        index["link_elements"] = 0
        with pytest.raises(OptionError, match=f"layer is {layer}, .* has 2 layers; choose 0 to 1"):
            prepare_job(open_prepared(data.path), run, "tiny", settings | wrong)
    with pytest.raises(OptionError, match="guided_alignment is -1"):
        prepare_job(open_prepared(data.path), run, "tiny", settings | {"guided_alignment": -1.0})
    assert not run.exists()

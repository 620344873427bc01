"""torch.compile within DistributedDataParallel: large layers stay whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.backends.distributed import DDPOptimizer
from torch.nn.parallel import DistributedDataParallel

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.train.config import PRESETS, ModelConfig
from translate_trt.train.data.alignments import TokenLinks
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.model import Transformer
from translate_trt.train.trainer import objective as module
from translate_trt.train.trainer.objective import (
    BUCKET_BYTES,
    Objective,
    exceeds_bucket,
    whole_layers,
)


@pytest.mark.parametrize(
    ("name", "expected"), [("tiny", False), ("small", False), ("base", False), ("big", True)]
)
def test_the_shape_decides_whether_layers_exceed_a_bucket(name: str, expected: bool) -> None:
    with torch.device("meta"):
        model = Transformer(PRESETS[name].model)
    assert exceeds_bucket(model) is expected
    assert Objective(model, 0.1, torch.float32, fuse=False).exceeds_bucket is False


def test_the_setting_of_the_process_is_restored() -> None:
    config = torch._dynamo.config
    before = config.optimize_ddp
    with whole_layers(exceeding=False):
        assert config.optimize_ddp == before
    with whole_layers(exceeding=True):
        assert config.optimize_ddp is False
    assert config.optimize_ddp == before


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """Process group of one process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.nightly
@pytest.mark.parametrize("whole", [True, False])
def test_layers_larger_than_a_bucket_are_compiled_as_one(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    splits: list[bool] = []
    compile_fn = DDPOptimizer.compile_fn

    def note(self: DDPOptimizer, *arguments: Any) -> Any:
        splits.append(True)
        return compile_fn(self, *arguments)

    monkeypatch.setattr(DDPOptimizer, "compile_fn", note)
    model = Transformer(ModelConfig(vocabulary_size=40, encoder_layers=1, decoder_layers=1,
                                    d_model=24, d_ff=40, heads=2, dropout=0.0))  # fmt: skip
    if whole:
        monkeypatch.setattr(module, "BUCKET_BYTES", 1000)
    guided: dict[str, Any] = {"guided": AttentionHeads(0, (0,)), "guided_weight": 0.5}
    objective = Objective(model, 0.1, torch.float32, fuse=True, **guided)
    assert objective.exceeds_bucket is whole
    parallel = DistributedDataParallel(objective, broadcast_buffers=False)
    assert parallel.bucket_bytes_cap == BUCKET_BYTES  # what exceeds_bucket assumes
    data = encode_parallel([[5, 6, 7], [8, 9]], [[7, 6], [5, 4, 9]], None)
    links = TokenLinks(np.array([0, 1, 2, 3, 0, 0], np.uint16), np.array([0, 4, 6]))
    batch = replace(data, links=links).batch(np.arange(2))
    losses = parallel(batch)
    losses.loss.backward()
    assert bool(splits) is not whole
    plain = Objective(model, 0.1, torch.float32, fuse=False, **guided)
    torch.testing.assert_close(losses, plain(batch))
    assert float(losses.alignment) > 1

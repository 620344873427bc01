"""Switch of cuDNN's attention: by device, restored, and on wherever the model runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from translate_trt.runtime.options import SearchOptions
from translate_trt.train import cudnn_attention as module
from translate_trt.train import search
from translate_trt.train.config import ModelConfig
from translate_trt.train.cudnn_attention import cudnn_attention
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.evaluation import validation
from translate_trt.train.model import Transformer
from translate_trt.train.trainer import objective

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def enabled() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_only_on_a_gpu_only_in_the_block_and_only_unless_allowed() -> None:
    for device, allowed, expected in (
        (CPU, False, True), (CPU, True, True), (CUDA, False, False), (CUDA, True, True)
    ):  # fmt: skip
        with cudnn_attention(device, allowed):
            assert enabled() is expected
        assert enabled()
    with pytest.raises(ValueError, match="inside"), cudnn_attention(CUDA):
        raise ValueError("inside")
    assert enabled()


def test_a_process_that_has_switched_it_off_keeps_that() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    for allowed in (False, True):
        with cudnn_attention(CUDA, allowed):
            assert not enabled()
        assert not enabled()


def train(model: Transformer, allowed: bool) -> None:
    data = encode_parallel([[5, 6, 7], [8, 9]], [[7, 6], [5, 4, 9]], None)
    step = objective.Objective(model, 0.1, torch.float32, fuse=False, cudnn=allowed)
    step(data.batch(np.arange(2)))[0].backward()


def validate(model: Transformer, allowed: bool) -> None:
    validation.validation_loss(model, encode_parallel([[5, 6, 7]], [[7, 6]], None))


def translate(model: Transformer, allowed: bool) -> None:
    search.beam_search(model, [[5, 6, 7]], SearchOptions(beam_size=2, max_length=3))


@pytest.mark.parametrize(
    ("run", "allowed"), [(train, False), (train, True), (validate, False), (translate, False)]
)
def test_it_is_off_wherever_the_model_runs(
    run: Callable[[Transformer, bool], None], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: the switch is told that the model is on one."""

    @contextmanager
    def on_a_gpu(device: torch.device, allowed: bool = False) -> Iterator[None]:
        with cudnn_attention(CUDA, allowed):
            yield

    for user in (objective, validation, search):
        assert user.cudnn_attention is module.cudnn_attention  # type: ignore[attr-defined]
        monkeypatch.setattr(user, "cudnn_attention", on_a_gpu)
    states, attention = [], F.scaled_dot_product_attention

    def note(*arguments: torch.Tensor, **options: object) -> torch.Tensor:
        states.append(enabled())
        return attention(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    shape = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8, "heads": 2}
    model = Transformer(ModelConfig(vocabulary_size=40, dropout=0.0, **shape)).eval()
    run(model, allowed)
    assert states
    assert set(states) == {allowed}
    assert enabled()

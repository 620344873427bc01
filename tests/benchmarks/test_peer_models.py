"""Models for the comparison with peers: added depth and vocabulary change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import START, ModelConfig
from translate_trt.train.model import Transformer, pad, source_padding_bias
from translate_trt.train.search import beam_search

MIXERS = ("self-attention", "ssru")
SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6]]
PAIRS = [([4 + n % 20, 5, 6], [7, 4 + n % 20, 9]) for n in range(40)]


def config_of(mixer: str) -> ModelConfig:
    from peer_models import COMMON

    shape: dict[str, Any] = {"d_model": 32, "d_ff": 64, "heads": 4, "vocabulary_size": 40}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "decoder_mixer": mixer}
    return ModelConfig(**(COMMON | shape | layers))


@torch.no_grad()
def random_model(mixer: str) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config_of(mixer)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def logits(model: Transformer) -> torch.Tensor:
    source, lengths = pad([[*tokens, 3] for tokens in SOURCES])
    previous, _ = pad([[2, 8, 5, 31], [2, 6], [2, 9, 9]])
    with torch.inference_mode():
        return model.project(model(source, source_padding_bias(source, lengths), previous))


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_grown_model_computes_the_same(mixer: str) -> None:
    from peer_models import ADDED_BIAS, Shape, grow

    small = random_model(mixer)
    grown = grow(small, Shape(small.config, 3, 4, 100))
    assert (len(grown.encoder_layers), len(grown.decoder_layers)) == (3, 4)
    found = logits(grown)
    torch.testing.assert_close(found[..., :40], logits(small), rtol=1e-4, atol=1e-4)
    assert found[..., 40:].max() < ADDED_BIAS / 2
    for ours, theirs in zip(
        beam_search(grown, SOURCES, SearchOptions()),
        beam_search(small, SOURCES, SearchOptions()),
        strict=True,
    ):
        assert ours[0].tokens == theirs[0].tokens
    for name, parameter in grown.decoder_layers[-1].named_parameters():
        if parameter.dim() == 2:
            assert parameter.count_nonzero() == parameter.numel(), name


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_start_token_stays_zero_in_training(
    mixer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from peer_models import train

    model = train(config_of(mixer), PAIRS, 12)
    assert not model.embedding.weight[START].any()
    assert model.embedding.weight[4].abs().min() > 0
    assert "step 12: " in capsys.readouterr().out

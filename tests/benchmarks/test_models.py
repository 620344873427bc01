"""Widened and grown models compute what the small ones do."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.models import lively_model

from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import START, ModelConfig
from translate_trt.train.model import Transformer, pad, source_padding_bias
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6]]


@pytest.fixture(scope="module")
def small() -> Transformer:
    return lively_model(40, steps=60)


def logits(model: Transformer) -> torch.Tensor:
    source, lengths = pad([[*tokens, 3] for tokens in SOURCES])
    previous, _ = pad([[2, 8, 5, 31], [2, 6], [2, 9, 9]])
    with torch.inference_mode():
        return model.project(model(source, source_padding_bias(source, lengths), previous))


def check_equal(large: Transformer, small: Transformer) -> torch.Tensor:
    """Compare logits and translations; return the logits of added pieces."""
    found = logits(large)
    torch.testing.assert_close(found[..., :40], logits(small), rtol=1e-4, atol=1e-4)
    options = SearchOptions(num_hypotheses=4)
    for ours, theirs in zip(
        beam_search(large, SOURCES, options), beam_search(small, SOURCES, options), strict=True
    ):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    return found[..., 40:]


@pytest.mark.parametrize(("factor", "added", "size"), [(2, 0, None), (3, 2, None), (3, 2, 100)])
def test_a_widened_model_translates_the_same(
    small: Transformer, factor: int, added: int, size: int | None
) -> None:
    from models import widened

    changes = {name: factor * getattr(small.config, name) for name in ("d_model", "d_ff", "heads")}
    layers = {"encoder_layers": 2 + added, "decoder_layers": 2 + 2 * added}
    target = dataclasses.replace(small.config, **changes, **layers)
    wide = widened(small, target, max_positions=80, vocabulary_size=size)
    assert (wide.config.d_model, len(wide.encoder_layers)) == (32 * factor, 2 + added)
    found = check_equal(wide, small)
    torch.testing.assert_close(found, torch.full_like(found, -16.0))
    rows = wide.embedding.weight[40:]
    assert rows.unique(dim=0).shape == rows.shape  # no two are alike


@pytest.mark.parametrize("mixer", ["self-attention", "ssru"])
def test_models_for_peers_grow_and_start_with_zeros(mixer: str) -> None:
    from models import ADDED_BIAS, COMMON, Shape, grow, train

    shape = {"d_model": 32, "d_ff": 64, "heads": 4, "vocabulary_size": 40, "encoder_layers": 1}
    config = ModelConfig(**(COMMON | shape | {"decoder_layers": 2, "decoder_mixer": mixer}))
    pairs = [([4 + n % 20, 5, 6], [7, 4 + n % 20, 9]) for n in range(40)]
    small = train(config, pairs, 12)
    assert not small.embedding.weight[START].any()
    assert small.embedding.weight[4].abs().min() > 0
    grown = grow(small, Shape(config, 3, 4, 100))
    assert (len(grown.encoder_layers), len(grown.decoder_layers)) == (3, 4)
    assert check_equal(grown, small).max() < ADDED_BIAS / 2
    for name, parameter in grown.decoder_layers[-1].named_parameters():
        if parameter.dim() == 2:
            assert parameter.count_nonzero() == parameter.numel(), name

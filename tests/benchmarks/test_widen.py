"""Widened models compute what the small ones do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.models import lively_model

from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer, pad, source_padding_bias
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6]]


@pytest.fixture(scope="module")
def small() -> Transformer:
    return lively_model(40, steps=60)


def target(small: ModelConfig, factor: int, added: int = 2) -> ModelConfig:
    changes = {name: factor * getattr(small, name) for name in ("d_model", "d_ff", "heads")}
    return dataclasses.replace(
        small, **changes, encoder_layers=2 + added, decoder_layers=2 + 2 * added
    )


def logits(model: Transformer) -> torch.Tensor:
    source, lengths = pad([[*tokens, 3] for tokens in SOURCES])
    previous, _ = pad([[2, 8, 5, 31], [2, 6], [2, 9, 9]])
    with torch.inference_mode():
        return model.project(model(source, source_padding_bias(source, lengths), previous))


@pytest.mark.parametrize(("factor", "added"), [(2, 0), (3, 2)])
def test_logits_and_translations_stay(small: Transformer, factor: int, added: int) -> None:
    from widen import widen

    wide = widen(small, target(small.config, factor, added), max_positions=80)
    assert wide.config.d_model == 32 * factor
    assert len(wide.encoder_layers) == 2 + added
    torch.testing.assert_close(logits(wide), logits(small), rtol=1e-4, atol=1e-4)
    options = SearchOptions(num_hypotheses=4)
    for ours, theirs in zip(
        beam_search(wide, SOURCES, options), beam_search(small, SOURCES, options), strict=True
    ):
        assert [found.tokens for found in ours] == [found.tokens for found in theirs]


@pytest.mark.parametrize("factor", [3])
def test_added_pieces_are_never_taken(small: Transformer, factor: int) -> None:
    from widen import widen

    shape = target(small.config, factor)
    wide = widen(small, shape, max_positions=80, vocabulary_size=100)
    assert wide.config.vocabulary_size == len(wide.embedding.weight) == 100
    found = logits(wide)
    torch.testing.assert_close(found[..., :40], logits(small), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[..., 40:], torch.full_like(found[..., 40:], -16.0))
    added = wide.embedding.weight[40:]
    assert added.unique(dim=0).shape == added.shape  # no two are alike
    options = SearchOptions(num_hypotheses=4)
    for ours, theirs in zip(
        beam_search(wide, SOURCES, options), beam_search(small, SOURCES, options), strict=True
    ):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]


def test_a_tokenizer_never_uses_added_pieces(tokenizer_model: Path) -> None:
    from sentencepiece import SentencePieceProcessor
    from widen import add_unused_pieces

    before = SentencePieceProcessor(model_file=str(tokenizer_model))
    content = add_unused_pieces(tokenizer_model.read_bytes(), 50)
    after = SentencePieceProcessor(model_proto=content)
    first = before.vocab_size()
    assert after.vocab_size() == first + 50
    for text in ("a house <unused 321>", f"<unused {first}>", "Ein Haus, ein Hund 7 🦊"):
        assert after.encode(text) == before.encode(text)
    assert after.is_unused(first)

"""Widened models compute what the small ones do."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.models import lively_model, save_model
from support.paths import ROOT

from translate_trt.runtime.errors import OptionError
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


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
@pytest.mark.parametrize("added", [0, 2])
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


@pytest.mark.parametrize("factor", [2, 3, 4])
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


def test_a_vocabulary_that_cannot_be_filled_up(small: Transformer) -> None:
    from widen import widen

    with pytest.raises(OptionError, match="has 40 pieces already, more than 39"):
        widen(small, target(small.config, 2), 80, vocabulary_size=39)
    with pytest.raises(OptionError, match="leave --vocabulary-size out"):
        widen(small, target(small.config, 1), 80, vocabulary_size=41)


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


def test_added_layers_are_dense_and_their_sublayers_give_zero(small: Transformer) -> None:
    from widen import widen

    wide = widen(small, target(small.config, 4), max_positions=80)
    layer = wide.decoder_layers[-1]
    x = torch.randn(3, 5, 32).repeat(1, 1, 4)
    attended = layer.self_attention.attend(x, *layer.self_attention.keys_values(x), None)
    for given in (attended, layer.feed_forward(x)):
        assert given.abs().max() < 1e-5
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2:
            assert parameter.count_nonzero() == parameter.numel(), name


def test_int8_rounding_cancels_as_well(small: Transformer) -> None:
    from widen import widen

    weight = widen(small, target(small.config, 4)).encoder_layers[-1].feed_forward.outer.weight
    rounded = (weight / weight.abs().amax(1, keepdim=True) * 127).round().int()
    assert rounded.unflatten(1, (4, -1)).sum(1).count_nonzero() == 0


@pytest.mark.parametrize(
    ("small_changes", "target_changes", "message"),
    [
        ({"norm": "pre"}, {}, "--norm post"),
        ({}, {"d_model": 96, "heads": 3}, "d_model 96 is not a multiple of the checkpoint's 64"),
        ({}, {"d_ff": 100}, "d_ff is 48: times 2, as d_model is, that is 96 and not 100"),
        ({}, {"heads": 2}, "heads is 4"),
        ({}, {"decoder_layers": 1}, "layers can only be added"),
        ({"positions": "learned", "max_positions": 30}, {}, "lower it"),
    ],
)
def test_refusals_say_why(
    small_changes: dict[str, object], target_changes: dict[str, object], message: str
) -> None:
    from widen import wide_config

    config = ModelConfig(
        vocabulary_size=40, d_model=64, d_ff=48, heads=4, encoder_layers=2, decoder_layers=2
    )
    wanted = dataclasses.replace(target(config, 2), **target_changes)
    with pytest.raises(OptionError, match=message):
        wide_config(dataclasses.replace(config, **small_changes), wanted, 80)


def test_the_command_says_what_does_not_fit(tmp_path: Path, tokenizer_model: Path) -> None:
    model = Transformer(ModelConfig(vocabulary_size=320, d_model=32, d_ff=64, heads=2))
    run = save_model(model, tmp_path / "checkpoint", tokenizer_model)
    command = [sys.executable, ROOT / "benchmarks/widen.py", run, "--out", tmp_path / "wide"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: d_ff is 64: times 16" in done.stderr
    assert not (tmp_path / "wide").exists()

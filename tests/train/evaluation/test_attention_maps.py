"""Attention weights, compared with the model's own attention, and their plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from support.models import lively_model
from support.small_models import small_model
from torch import Tensor

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, START
from translate_trt.train.evaluation.attention_maps import (
    AttentionMap,
    SentenceAttention,
    attend_sentence,
    attention_weights,
)
from translate_trt.train.evaluation.attention_plots import MOST_TOKENS, draw_attention
from translate_trt.train.model import MultiHeadAttention, Transformer, pad, source_padding_bias
from translate_trt.train.search import beam_search

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "key_size": 3},
    {"tied": "none", "source_vocabulary_size": 20, "norm_embedding": True, "activation": "swish",
     "positions": "learned", "own_target_positions": True},
]  # fmt: skip


def make_model(changes: dict[str, Any]) -> Transformer:
    return small_model(encoder_layers=2, decoder_layers=3, d_ff=24, heads=4, **changes)


def batch() -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Padded sources of unequal length, and previous target tokens."""
    source, lengths = pad([[5, 9, 7, 8, 11, END], [6, 4, END]])
    target = torch.tensor([[START, 12, 13, 14], [START, 20, 21, 22]])
    return source, lengths, source_padding_bias(source, lengths), target


@pytest.mark.parametrize("changes", VARIANTS)
def test_weights_times_values_equal_each_layers_attention(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(changes)
    source, _, bias, target = batch()
    calls: dict[MultiHeadAttention, tuple[Tensor, Tensor]] = {}
    real = MultiHeadAttention.attend

    def record(
        self: MultiHeadAttention, x: Tensor, key: Tensor, value: Tensor, *more: Any, **options: Any
    ) -> Tensor:
        result = real(self, x, key, value, *more, **options)
        calls[self] = (value, result)
        return result

    with monkeypatch.context() as patch, torch.inference_mode():
        patch.setattr(MultiHeadAttention, "attend", record)
        model(source, bias, target)
    found = attention_weights(model, source, bias, target)
    encoder, decoder = model.encoder_layers, model.decoder_layers
    pairs = [
        *zip([layer.self_attention for layer in encoder], found["encoder"], strict=True),
        *zip([layer.self_attention for layer in decoder], found["decoder"], strict=True),
        *zip([layer.cross_attention for layer in decoder], found["cross"], strict=True),
    ]
    assert len(pairs) == len(calls) == 2 + 3 + 3
    for attention, weights in pairs:
        value, attended = calls[attention]
        context = (weights @ value).transpose(1, 2).flatten(-2)
        torch.testing.assert_close(attention.output(context), attended, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_model: Path) -> Tokenizer:
    return Tokenizer(tokenizer_model, tokenizer_model)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    size = tokenizer.vocabulary_size
    return lively_model(size, steps=60, tokens=range(260, size))


def attend(
    model: Transformer, tokenizer: Tokenizer, sentence: str, target: str | None = None
) -> SentenceAttention:
    return attend_sentence(model, tokenizer, sentence, target, SearchOptions())


def test_tokens_are_drawn_at_their_weights(model: Transformer, tokenizer: Tokenizer) -> None:
    found = attend(model, tokenizer, "the cat runs", "der Hund").maps
    read = (*tokenizer.source_pieces(tokenizer.encode_source("the cat runs")), "</s>")
    said = tuple(tokenizer.target_pieces(tokenizer.encode_target("der Hund")))
    assert read[0].startswith("▁")
    assert (found["encoder"].query, found["encoder"].key) == (read, read)
    assert (found["decoder"].query, found["decoder"].key) == (("<s>", *said), ("<s>", *said))
    assert (found["cross"].query, found["cross"].key) == ((*said, "</s>"), read)
    for kind, attention in found.items():
        assert attention.kind == kind
        expected = (2, 4, len(attention.query), len(attention.key))
        assert tuple(attention.weights.shape) == expected


def test_the_translation_and_its_attention_are_those_of_the_beam_search(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    source = tokenizer.encode_source("the big dog sleeps")
    options = SearchOptions(return_attention=True)
    best = beam_search(model, [source], options)[0][0]
    assert not best.truncated
    found = attend(model, tokenizer, "the big dog sleeps")
    assert found.translation == tokenizer.decode(best.tokens)
    assert found.maps["cross"].query == (*tokenizer.target_pieces(best.tokens), "</s>")
    # The search records the mean over the heads of the last layer, step by step.
    mean = found.maps["cross"].weights[-1].mean(0).numpy()
    assert best.attention is not None
    np.testing.assert_allclose(mean, best.attention, atol=1e-5)


def test_a_translation_that_was_cut_has_no_end(model: Transformer, tokenizer: Tokenizer) -> None:
    options = SearchOptions(max_length=2)
    found = attend_sentence(model, tokenizer, "the big dog sleeps under", None, options)
    assert len(found.maps["cross"].query) == 2
    assert "</s>" not in found.maps["cross"].query


def test_learned_positions_bound_the_translation_and_the_sentence(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocabulary_size
    model = small_model(vocabulary_size=size, positions="learned", max_positions=9)
    found = attend(model, tokenizer, "the cat")  # a random model does not end before 50 tokens
    assert len(found.maps["cross"].query) <= 9
    with pytest.raises(OptionError, match=r"positions.*9"):
        attend(model, tokenizer, "the cat sleeps " * 5)


@pytest.mark.parametrize(("sentence", "target"), [("", None), (" \t ", None), ("the cat", " ")])
def test_nothing_to_look_at(
    model: Transformer, tokenizer: Tokenizer, sentence: str, target: str | None
) -> None:
    with pytest.raises(InputError, match="empty"):
        attend(model, tokenizer, sentence, target)


# ---- pictures ----


def random_map(
    queries: int, keys: int, layers: int = 2, heads: int = 3, kind: str = "cross"
) -> AttentionMap:
    torch.manual_seed(0)
    weights = (3 * torch.randn(layers, heads, queries, keys)).softmax(-1)
    query = tuple(f"▁q{index}" for index in range(queries))
    return AttentionMap(kind, query, tuple(f"k{index}" for index in range(keys)), weights)


def tick_labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_heat_maps_carry_the_weights() -> None:
    attention = random_map(4, 6, kind="decoder")
    figure = draw_attention(attention, [1, 2], [2, 3], "matrix")
    panels = [axes for axes in figure.axes if axes.get_images()]
    wanted = [(layer, head) for layer in (1, 2) for head in (2, 3)]
    for axes, (layer, head) in zip(panels, wanted, strict=True):
        assert axes.get_title() == f"decoder self-attention, layer {layer} of 2,\nhead {head}"
        (image,) = axes.get_images()
        data = np.asarray(image.get_array())
        np.testing.assert_array_equal(data, attention.weights[layer - 1, head - 1].numpy())
        assert image.get_clim() == (0, 1)
        assert tick_labels(axes) == list(attention.key)
        assert [label.get_text() for label in axes.get_yticklabels()] == list(attention.query)


@pytest.mark.parametrize("style", ["lines", "matrix"])
def test_too_much_for_a_picture(style: str) -> None:
    draw_attention(random_map(MOST_TOKENS, 3, heads=1), [1], [1], style)
    with pytest.raises(OptionError, match=f"{MOST_TOKENS + 1} tokens cannot be drawn legibly"):
        draw_attention(random_map(MOST_TOKENS + 1, 3, heads=1), [1], [1], style)


def test_too_many_panels_for_a_picture() -> None:
    attention = random_map(100, 100, layers=6, heads=8)
    with pytest.raises(OptionError, match=r"million pixels.*--layer"):
        draw_attention(attention, range(1, 7), range(1, 9), "matrix")

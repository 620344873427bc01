"""The weights that are drawn are the weights that the model applies."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from translate_trt.train.attention import attention_weights
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import MultiHeadAttention, Transformer, split_heads

CONFIG = ModelConfig(
    vocabulary_size=40, encoder_layers=2, decoder_layers=3, d_model=16, d_ff=24, heads=4
)
SOURCE, TARGET = [5, 6, 7], [8, 9, 10, 11]


@pytest.mark.parametrize(
    "config",
    [CONFIG, dataclasses.replace(CONFIG, norm="pre", key_size=3, positions="learned")],
    ids=["post-norm", "pre-norm"],
)
def test_they_are_what_the_model_applies(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Transformer(config).eval()
    for parameter in model.parameters():  # far from uniform attention
        torch.nn.init.normal_(parameter, std=0.5)
    found = attention_weights(model, SOURCE, TARGET)
    assert (found.source, found.target) == ([5, 6, 7, 3], [2, 8, 9, 10, 11])
    expected = {
        id(layer.self_attention): w
        for layer, w in zip(model.encoder_layers, found.encoder, strict=True)
    }
    expected |= {
        id(layer.self_attention): w
        for layer, w in zip(model.decoder_layers, found.decoder, strict=True)
    }
    expected |= {
        id(layer.cross_attention): w
        for layer, w in zip(model.decoder_layers, found.cross, strict=True)
    }
    attend, seen = MultiHeadAttention.attend, []

    def check(self: MultiHeadAttention, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              bias: torch.Tensor | None, causal: bool = False) -> torch.Tensor:  # fmt: skip
        output = attend(self, x, key, value, bias, causal)
        weights = torch.from_numpy(expected[id(self)])
        context = (weights @ value[0]).transpose(0, 1).flatten(-2)
        torch.testing.assert_close(self.output(context), output[0], atol=1e-5, rtol=1e-4)
        seen.append(id(self))
        return output

    monkeypatch.setattr(MultiHeadAttention, "attend", check)
    with torch.inference_mode():
        model(torch.tensor([found.source]), None, torch.tensor([found.target]))
    assert sorted(seen) == sorted(expected)
    assert split_heads(torch.zeros(1, 2, 8), 4).shape == (1, 4, 2, 2)


def test_each_row_is_a_distribution_and_the_decoder_does_not_look_ahead() -> None:
    torch.manual_seed(1)
    found = attention_weights(Transformer(CONFIG).eval(), SOURCE, TARGET)
    for kind, shape, layers in (
        ("encoder", (4, 4), 2),
        ("decoder", (5, 5), 3),
        ("cross", (5, 4), 3),
    ):
        queries, keys, weights = found.of(kind)
        assert (len(queries), len(keys)) == shape
        assert len(weights) == layers
        for layer in weights:
            assert layer.shape == (4, *shape)
            np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-6)
    for layer in found.decoder:
        assert not np.triu(layer, 1).any()
        assert layer[:, np.tril(np.ones((5, 5), bool))].all()

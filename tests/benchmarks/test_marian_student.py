"""A trained student with the axes of Marian's residual stream."""

from __future__ import annotations

import pytest
import torch

from translate_trt.train import model as model_module
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer


@pytest.mark.parametrize(("mixer", "norm"), [("ssru", "post"), ("self-attention", "pre")])
def test_a_permuted_model_computes_the_same(
    mixer: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marian_student import permuted

    torch.manual_seed(3)
    config = ModelConfig(
        vocabulary_size=40, encoder_layers=2, decoder_layers=2, d_model=16, d_ff=24, heads=4,
        decoder_mixer=mixer, norm=norm, dropout=0.0,
    )  # fmt: skip
    first = Transformer(config).eval()
    for weight in first.parameters():  # norms and biases begin as ones and zeros
        torch.nn.init.normal_(weight.detach(), std=0.3)
    order = torch.arange(16).reshape(-1, 2).T.flatten()
    sinusoid = model_module.sinusoid
    monkeypatch.setattr(model_module, "sinusoid", lambda *given: sinusoid(*given)[..., order])
    second = Transformer(config).eval()
    second.load_state_dict(permuted(first.state_dict(), order))
    source, target = torch.randint(4, 40, (2, 3, 7))
    with torch.inference_mode():
        torch.testing.assert_close(
            second.project(second(source, None, target)), first.project(first(source, None, target))
        )

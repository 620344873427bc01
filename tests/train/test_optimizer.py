from __future__ import annotations

import pytest
import torch

from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.model import Transformer
from translate_trt.train.muon import Muon
from translate_trt.train.optimizer import make_optimizers

SHAPE = ModelConfig(vocabulary_size=50, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32)
MUON = TrainConfig(optimizer="muon")


def test_every_weight_has_one_optimizer() -> None:
    for decoder_mixer in ("self-attention", "ssru"):
        model = Transformer(ModelConfig(**{**vars(SHAPE), "decoder_mixer": decoder_mixer}))
        names = {parameter: name for name, parameter in model.named_parameters()}
        adam, muon = (
            {names[p] for group in optimizer.param_groups for p in group["params"]}
            for optimizer in make_optimizers(model, MUON)
        )
        assert adam | muon == set(names.values())
        assert not adam & muon
        assert {"embedding.weight", "encoder.0.feed_forward.inner.bias"} <= adam
        assert {
            "encoder.0.feed_forward.inner.weight",
            "decoder.0.cross_attention.key.weight",
        } <= muon


def test_muon_moves_matrices_as_far_as_adam() -> None:
    distances = []
    for config in (TrainConfig(), MUON):
        torch.manual_seed(0)
        model = Transformer(SHAPE)
        optimizers = make_optimizers(model, config)
        weight = model.encoder_layers[0].feed_forward.inner.weight
        before = weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.step()
        distances.append(float((weight.detach() - before).square().mean().sqrt()))
    # Liu et al. 2025 match AdamW's usual RMS of 0.2; the first step of Adam has one of 1.
    assert distances == pytest.approx([0.01, 0.002], rel=0.3)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with 2.9")
def test_muon_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 24), (24, 8), (8, 24))]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    optimizers = (
        Muon(ours),
        torch.optim.Muon(theirs, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 1.0
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        # A step has an RMS of 0.2; torch computes it in bfloat16.
        torch.testing.assert_close(one, other, atol=0.06, rtol=0)

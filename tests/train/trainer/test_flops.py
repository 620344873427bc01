from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from translate_trt.train.config import ModelConfig, preset
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.flops import forward_flops, training_flops
from translate_trt.train.trainer.objective import Objective


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"key_size": 3},
        {"norm": "pre", "decoder_layers": 3},
        {"decoder_mixer": "ssru", "decoder_layers": 3, "decoder_ties": "1,1,2", "decoder_d_ff": 11},
    ],
)
def test_flops_equal_those_counted_by_torch(changes: dict[str, int]) -> None:
    config = ModelConfig(
        **{"vocabulary_size": 50, "encoder_layers": 2, "decoder_layers": 1, "d_model": 16,
           "d_ff": 24, "heads": 4, "dropout": 0.0, **changes},  # type: ignore[arg-type]
    )  # fmt: skip
    data = encode_parallel([[5] * 6] * 3, [[5] * 8] * 3, None)
    batch = data.batch(torch.arange(3).numpy())
    objective = Objective(Transformer(config), 0.1, torch.float32, fuse=False)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = objective(batch).loss
        loss.backward()  # type: ignore[no-untyped-call]
    # The loss adds the gradient of the vocabulary in place, which torch does not count.
    found = counter.get_total_flops() + 2 * (3 * 9) * config.d_model * config.vocabulary_size
    assert found == training_flops(config, [7] * 3, [9] * 3)


def test_training_is_three_times_the_forward_pass() -> None:
    config = preset("base").model
    assert training_flops(config, [20, 30], [25, 28]) == 3 * forward_flops(
        config, [20, 30], [25, 28]
    )


def test_the_papers_models_have_their_order_of_magnitude() -> None:
    # Table 2 estimates 3.3e18 (base) and 2.3e19 (big) from hours and the GPUs' speed; matmuls
    # alone, of 25,000 tokens a side in sentences of 28, are fewer, and big is 3 to 4 times base a
    # step.
    sentences = [28] * (25_000 // 28)
    costs = {
        name: preset(name).train.steps * training_flops(preset(name).model, sentences, sentences)
        for name in ("base", "big")
    }
    assert 0.2 < costs["base"] / 3.3e18 < 1
    assert 0.2 < costs["big"] / 2.3e19 < 1.5
    assert 3 < costs["big"] / 3 / costs["base"] < 4

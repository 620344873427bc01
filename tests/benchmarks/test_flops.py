from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from translate_trt.train.config import ModelConfig
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.model import Transformer
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
    from estimates import training_flops

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

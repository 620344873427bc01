from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import CheckpointError, OptionError
from translate_trt.train.config import (
    PRESETS,
    ModelConfig,
    TrainConfig,
    config_from_json,
    preset,
)


def test_base_and_big_are_the_papers() -> None:
    base, big = preset("base"), preset("big")
    assert (base.model.encoder_layers, base.model.d_model, base.model.d_ff) == (6, 512, 2048)
    assert (base.model.heads, base.model.dropout, base.train.label_smoothing) == (8, 0.1, 0.1)
    assert (base.train.steps, base.train.warmup_steps) == (100_000, 4_000)
    assert (base.train.adam_beta1, base.train.adam_beta2) == (0.9, 0.98)
    assert base.train.adam_epsilon == 1e-9
    assert (big.model.d_model, big.model.d_ff, big.model.heads) == (1024, 4096, 16)
    assert (big.model.dropout, big.train.steps, big.train.average_checkpoints) == (0.3, 300_000, 20)


def test_an_unknown_preset_lists_the_known() -> None:
    with pytest.raises(OptionError, match="tiny, small, base, big"):
        preset("huge")
    assert list(PRESETS) == ["tiny", "small", "base", "big"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ModelConfig, {"d_model": 30, "heads": 4}),
        (ModelConfig, {"d_model": 9, "heads": 3}),
        (ModelConfig, {"dropout": 1.0}),
        (TrainConfig, {"steps": 0}),
        (TrainConfig, {"label_smoothing": -0.1}),
        (TrainConfig, {"precision": "fp8"}),
        (TrainConfig, {"checkpoint_every": 0}),
    ],
)
def test_values_out_of_range_name_the_field(
    kind: type[ModelConfig | TrainConfig], values: dict[str, int]
) -> None:
    with pytest.raises(OptionError, match=next(iter(values))):
        kind(**values)


def test_every_setting_is_a_flag_with_its_description() -> None:
    text = " ".join(CliRunner().invoke(main, ["train", "--help"]).output.split())
    for kind in (ModelConfig, TrainConfig):
        for field in dataclasses.fields(kind):
            assert "--" + field.name.replace("_", "-") in text
            assert str(field.metadata["help"])[:25] in text


def test_from_json() -> None:
    config = ModelConfig(d_model=64)
    assert config_from_json(ModelConfig, dataclasses.asdict(config)) == config
    with pytest.raises(CheckpointError, match=r"unknown fields \['pre_norm'\]"):
        config_from_json(ModelConfig, {**dataclasses.asdict(config), "pre_norm": True})

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

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

SIZES = ("vocabulary_size", "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")


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
        (TrainConfig, {"average_checkpoints": 0}),
        (TrainConfig, {"log_every": 0}),
        (TrainConfig, {"validate_every": -1}),
        (TrainConfig, {"seed": -1}),
        (TrainConfig, {"learning_rate_scale": 0.0}),
        (TrainConfig, {"learning_rate_scale": float("nan")}),
        (TrainConfig, {"adam_epsilon": 0.0}),
        (TrainConfig, {"adam_beta1": 1.0}),
        (TrainConfig, {"adam_beta2": -0.1}),
        *((ModelConfig, {name: 0}) for name in SIZES),
        *((ModelConfig, {name: -2}) for name in SIZES),
        (ModelConfig, {"dropout": float("nan")}),
        (ModelConfig, {"layer_norm_epsilon": 0.0}),
    ],
)
def test_values_out_of_range_name_the_field(
    kind: type[ModelConfig | TrainConfig], values: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match=rf"\b{next(iter(values))}\b"):
        kind(**values)


def test_every_setting_is_a_flag_with_its_description() -> None:
    text = " ".join(CliRunner().invoke(main, ["train", "--help"]).output.split())
    for kind in (ModelConfig, TrainConfig):
        for field in dataclasses.fields(kind):
            flag = "--" + field.name.replace("_", "-")
            assert f" {flag} " in text
            described = f"{field.metadata['help']} (base: {field.default})"
            assert described in text.partition(f" {flag} ")[2]


def test_from_json() -> None:
    config = ModelConfig(d_model=64)
    values, path = dataclasses.asdict(config), Path("run/run.json")
    assert config_from_json(ModelConfig, values, path) == config
    for changed, message in (
        ({**values, "pre_norm": True}, r"unknown fields \['pre_norm'\]"),
        ({**values, "heads": 0}, "heads is 0"),
        ({**values, "d_model": "64"}, "ModelConfig is damaged"),
        (None, "no JSON object"),
    ):
        with pytest.raises(CheckpointError, match=rf"run\.json.*{message}"):
            config_from_json(ModelConfig, changed, path)

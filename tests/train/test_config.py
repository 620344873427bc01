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
    TABLE3,
    ModelConfig,
    TrainConfig,
    check_trainable,
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
    assert (big.model.dropout, big.train.steps) == (0.3, 300_000)


def test_the_papers_parsers() -> None:
    base, parsing, semi = (preset(name) for name in ("base", "parsing", "parsing-semi"))
    assert (parsing.model.encoder_layers, parsing.model.decoder_layers) == (4, 4)
    assert (parsing.model.d_model, parsing.model.source_vocabulary_size) == (1024, 16_000)
    assert (parsing.model.dropout, parsing.model.attention_dropout) == (0.2, 0.2)
    assert (parsing.model.d_ff, parsing.model.heads) == (base.model.d_ff, base.model.heads)
    assert (parsing.train.max_length, parsing.train.best_metric) == (512, "f1")
    assert semi.train == parsing.train
    assert semi.model == parsing.model.with_vocabularies(128, 32_000)


def test_vocabularies_of_source_and_target() -> None:
    base = preset("base").model
    separate = base.with_vocabularies(100, 200)
    assert (separate.vocabulary_size, separate.input_vocabulary_size) == (100, 200)
    assert separate.tied == "output"
    assert base.with_vocabularies(100, 0).tied == "all"
    assert dataclasses.replace(base, tied="input").with_vocabularies(100, 200).tied == "none"
    with pytest.raises(OptionError, match=r"source_vocabulary_size\)"):
        dataclasses.replace(base, source_vocabulary_size=200)


@pytest.mark.parametrize(
    ("text", "weights"), [("", ()), ("10,1", (10, 1)), ("0.25, 0", (0.25, 0)), ("1e3", (1000,))]
)
def test_weights_of_corpora(text: str, weights: tuple[float, ...]) -> None:
    assert TrainConfig(corpus_weights=text).weights_of_corpora == weights


@pytest.mark.parametrize("text", ["a", "1,", "-1,1", "0,0", "1001", "nan", "inf"])
def test_weights_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match=r"corpus.*0"):
        TrainConfig(corpus_weights=text)


def test_temperature_of_corpora() -> None:
    sizes = (900, 100, 0)
    weights = TrainConfig(corpus_temperature=2).weights_by_size(sizes)
    assert weights == pytest.approx((750 / 900, 250 / 100, 0))
    assert TrainConfig(corpus_weights="2,1,0").weights_by_size(sizes) == (2, 1, 0)
    with pytest.raises(OptionError, match="either"):
        TrainConfig(corpus_temperature=2, corpus_weights="2,1,0")


def test_an_unknown_preset_lists_the_known() -> None:
    with pytest.raises(OptionError, match="miniature"):
        preset("huge")
    assert list(PRESETS) == [
        "tiny", "small", "miniature", "base", "big", "student-tiny", "student-base-memory",
        "parsing", "parsing-semi", "deep-shallow", "speedrun",
    ]  # fmt: skip


def test_the_rows_of_table_3() -> None:
    groups = "".join(row.group for row in TABLE3.values())
    assert groups == "AAAA" + "BB" + "CCCCCCC" + "DDDD" + "E"
    base = preset("base")
    for name, row in TABLE3.items():
        varied = preset(f"base-{name}")
        before = {**dataclasses.asdict(base.model), **dataclasses.asdict(base.train)}
        after = {**dataclasses.asdict(varied.model), **dataclasses.asdict(varied.train)}
        assert {key: after[key] for key in after if after[key] != before[key]} == row.changes
    # Rows A and C: keys and values share the model's width among the heads.
    for name, columns in (("h1", 512), ("h4", 128), ("h16", 32), ("h32", 16), ("d256", 32)):
        model = preset(f"base-{name}").model
        assert (model.d_k, model.d_v) == (columns, columns)
    model = preset("base-k16").model
    assert (model.d_k, model.d_v) == (16, 64)
    assert preset("tiny-h16").model.d_model == preset("tiny").model.d_model
    assert preset("tiny-smoothing0.2").train.label_smoothing == 0.2


def test_miniature_is_in_proportion_to_base_in_every_row_of_table_3() -> None:
    shares = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 8, "d_ff": 8, "d_k": 8, "d_v": 8}
    for row in ("", *(f"-{name}" for name in TABLE3)):
        base, miniature = preset(f"base{row}"), preset(f"miniature{row}")
        for name, share in shares.items():
            assert share * getattr(miniature.model, name) == getattr(base.model, name), (row, name)
        for name in ("heads", "dropout", "positions"):
            assert getattr(miniature.model, name) == getattr(base.model, name), (row, name)
        assert miniature.train.label_smoothing == base.train.label_smoothing


def test_a_row_of_table_3_that_has_no_whole_size_in_proportion() -> None:
    assert preset("tiny-k16").model.d_k == preset("tiny").model.d_k // 4
    with pytest.raises(OptionError, match=r"tiny-n2.*encoder_layers"):
        preset("tiny-n2")


def test_big_on_english_french_drops_out_less() -> None:
    assert preset("big", "wmt14-en-fr").model.dropout == 0.1
    assert preset("big", "wmt14-en-de").model.dropout == 0.3
    assert preset("base", "wmt14-en-fr") == preset("base")


def test_learned_positions_are_as_many_as_the_model_has() -> None:
    assert preset("base").model.longest is None
    assert preset("base-learned").model.longest == 512


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ModelConfig, {"d_model": 30, "heads": 4}),
        (ModelConfig, {"d_model": 9, "heads": 3}),
        (ModelConfig, {"dropout": 1.0}),
        (TrainConfig, {"steps": 0}),
        (TrainConfig, {"precision": "fp8"}),
        (TrainConfig, {"learning_rate_scale": 0.0}),
        (TrainConfig, {"patience": 2, "validate_every": 0}),
        (ModelConfig, {"dropout": float("nan")}),
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
            flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
            assert (f" {flag} " in text) is not field.metadata["imported"]
            if field.metadata["imported"]:
                continue
            described = f"{field.metadata['help']} (base: {field.default})"
            # Without spaces: lines are wrapped at hyphens, too.
            assert described.replace(" ", "") in text.partition(f" {flag} ")[2].replace(" ", "")


def test_training_refuses_settings_of_imported_models() -> None:
    check_trainable(ModelConfig(norm="pre", positions="learned"))
    with pytest.raises(OptionError, match="activation gelu"):
        check_trainable(ModelConfig(activation="gelu"))


def test_settings_of_imported_models_are_checked() -> None:
    with pytest.raises(OptionError, match="source vocabulary"):
        ModelConfig(source_vocabulary_size=9)
    with pytest.raises(OptionError, match=r"d_model.*tensor2tensor's"):
        ModelConfig(d_model=2, heads=1, sinusoid="tensor2tensor")


def test_from_json() -> None:
    config = ModelConfig(d_model=64)
    values, path = dataclasses.asdict(config), Path("run/run.json")
    assert config_from_json(ModelConfig, values, path) == config
    recipe = TrainConfig(seed=7)
    assert config_from_json(TrainConfig, dataclasses.asdict(recipe), path) == recipe
    before = {name: value for name, value in values.items() if name != "rms_norm"}
    assert config_from_json(ModelConfig, before, path) == config
    for changed, message in (
        ({**values, "pre_norm": True}, r"unknown fields \['pre_norm'\]"),
        ({**values, "heads": 0}, "heads is 0"),
        ({**values, "d_model": "64"}, "ModelConfig is damaged"),
        (None, "not a JSON object"),
    ):
        with pytest.raises(CheckpointError, match=rf"run\.json.*{message}"):
            config_from_json(ModelConfig, changed, path)

"""Attention of a chosen layer and of chosen heads, compared with the model's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.compiled import compile_once
from support.shared import SharedFiles
from support.translations import random_sources

from translate_trt.export.build_options import BuildOptions, parse_heads
from translate_trt.export.compile import compile_bundle
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END, START
from translate_trt.train.evaluation.attention_maps import attention_weights
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.slow


def attention_of(
    model: Transformer, source: list[int], target: tuple[int, ...], heads: AttentionHeads
) -> np.ndarray:
    """Return the attention [tokens and the end symbol, source and its end symbol] by layers."""
    ids, previous = torch.tensor([[*source, END]]), torch.tensor([[START, *target]])
    found = attention_weights(model, ids, None, previous)
    weights = found["cross"][heads.layer][0].numpy()  # [H, T, S]
    return np.mean([weights[head] for head in heads.heads or range(len(weights))], axis=0)


@pytest.mark.parametrize(
    ("options", "own", "expected"),
    [
        (
            {"attention_layer": -2, "attention_heads": (1,)},
            AttentionHeads(1, (0,)),
            AttentionHeads(0, (1,)),
        ),
        pytest.param(
            {"attention": True},
            AttentionHeads(1, (1, 0)),
            AttentionHeads(1, (0, 1)),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_the_step_returns_the_chosen_attention(
    checkpoint: Checkpoint,
    shared: SharedFiles,
    options: dict[str, Any],
    own: AttentionHeads | None,
    expected: AttentionHeads,
) -> None:
    checkpoint = dataclasses.replace(checkpoint, alignment_heads=own)
    bundle = compile_once(shared, checkpoint, BuildOptions(**options))
    assert read_manifest(bundle).attention == expected
    sources, model = random_sources(4, longest=12), checkpoint.load_model()
    with Translator(bundle, threads=1) as translator:
        found = translator.translate_ids(sources, SearchOptions(return_attention=True))
    for source, (best, *_) in zip(sources, found, strict=True):
        right = attention_of(model, source, best.tokens, expected)
        assert best.attention is not None
        np.testing.assert_allclose(best.attention, right[: len(best.attention)], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_layer": 2}, "attention_layer is 2"),
        ({"attention_layer": -3}, "attention_layer is -3"),
        ({"attention_heads": (0, 99)}, "attention_heads has 99"),
        ({"attention_heads": (0, 0)}, "head twice"),
    ],
)
def test_heads_that_the_model_lacks(
    checkpoint: Checkpoint, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        compile_bundle(checkpoint, tmp_path / "bundle", BuildOptions(**options))  # type: ignore[arg-type]
    assert not (tmp_path / "bundle").exists()


def test_naming_heads_asks_for_attention() -> None:
    assert not BuildOptions().attention
    assert BuildOptions(attention_heads=(1,)).attention
    assert BuildOptions(attention_layer=0).attention
    assert BuildOptions(attention_heads=(1,)).heads == AttentionHeads(-1, (1,))
    assert BuildOptions(attention_layer=-2).heads == AttentionHeads(-2)
    assert AttentionHeads(-2).within(2, 4) == AttentionHeads(0)


def test_heads_on_the_command_line() -> None:
    assert parse_heads("0, 3") == (0, 3)
    for text in ("", "1,", "-1", "a"):
        with pytest.raises(OptionError, match="attention_heads"):
            parse_heads(text)


def test_checkpoints_keep_their_heads(checkpoint: Checkpoint, tmp_path: Path) -> None:
    heads = AttentionHeads(1, (0,))
    decoding = dataclasses.replace(checkpoint.decoding, alignment_heads=heads)
    assert type(decoding).read(tmp_path / "config.json", decoding.to_json()) == decoding

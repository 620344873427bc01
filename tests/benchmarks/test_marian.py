"""Marian's files: what is written is what the importer reads, and the same translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.marian_peer import needs_marian
from support.models import lively_model, save_model

from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END, PAD, START, UNKNOWN
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search
from translate_trt.train.shortlist.table import Shortlist, shared_copies, tokenizer_hash

pytestmark = pytest.mark.slow

PIECES = 320
#: Marian's int8 matmuls need multiples of 64.
SHAPE: dict[str, Any] = {
    "layer_norm_epsilon": 1e-6, "sinusoid": "tensor2tensor", "output_bias": True, "d_model": 64,
    "d_ff": 128,
}  # fmt: skip
MIXERS = ("self-attention", "ssru")
SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6], [35, 5], [9, 10, 11, 12, 13]]


def model_with(**changes: Any) -> Transformer:
    """Return a trained model that Marian can run."""
    model = lively_model(PIECES, **(SHAPE | changes))
    with torch.no_grad():
        model.embedding.weight[START] = 0
    return model


def table_of(directory: Path, tokenizer: Path) -> Path:
    """Write a shortlist in which every source token brings the same candidates."""
    brought = np.tile(np.arange(8, 12, dtype=np.int32), (PIECES, 1))
    brought[: END + 1] = PAD
    frequent = np.array([END, *range(22, 40)], np.int32)
    count = len(frequent)
    path = directory / "table.safetensors"
    Shortlist(
        frequent, np.ones(count, np.int64), np.zeros((PIECES, count), np.float32), brought,
        np.tile(np.float32([0.5, 0.2, 0.1, 0.0]), (PIECES, 1)), shared_copies(PIECES), PIECES,
        tokenizer_hash(tokenizer, tokenizer), 1, 1,
    ).save(path)  # fmt: skip
    return path


@pytest.mark.parametrize(("mixer", "norm"), [("self-attention", "post"), ("ssru", "pre")])
def test_the_importer_reads_what_is_written(mixer: str, norm: str, tmp_path: Path) -> None:
    from marian import marian_order, write_model, write_vocabulary

    from translate_trt.export.importers.marian.model import import_marian_model

    model = model_with(decoder_mixer=mixer, norm=norm)
    order = marian_order(PIECES, [END, UNKNOWN])
    write_model(model, order, tmp_path / "model.npz")
    write_vocabulary(order, tmp_path / "vocab.yml")
    imported = import_marian_model(tmp_path / "model.npz", tmp_path / "vocab.yml")
    found = dict(imported.model.state_dict())
    for name, tensor in model.state_dict().items():
        if name.startswith(("encoder", "decoder")):
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("mixer", [MIXERS[0], pytest.param(MIXERS[1], marks=pytest.mark.nightly)])
def test_marian_translates_as_the_reference(
    mixer: str, tmp_path: Path, tokenizer_model: Path
) -> None:
    needs_marian()
    from comparison import convert
    from processes import Process
    from systems import Models, Setting

    model = model_with(decoder_mixer=mixer)
    run = save_model(model, tmp_path / "run", tokenizer_model)
    models = Models(run, tmp_path / "bundle", tmp_path)
    setting = Setting("marian", "fp32", beam_size=1)
    convert(setting, models)
    with Process(setting, models) as process:
        process.ask("sources", sources=SOURCES)
        answer = process.translate([2, 0, 1, 3, 4])
        found = process.ask("last")["ids"]
    assert answer["processor"] > 0
    for row, tokens in zip((2, 0, 1, 3, 4), found, strict=True):
        # Marian's limit is three times the source, with the end symbol.
        options = SearchOptions(beam_size=1, max_length=3 * (len(SOURCES[row]) + 1))
        assert [*beam_search(model, [SOURCES[row]], options)[0][0].tokens] == tokens


@pytest.mark.nightly
def test_marian_has_the_same_shortlist(tmp_path: Path, tokenizer_model: Path) -> None:
    needs_marian()
    from comparison import convert
    from marian import int8_weights
    from processes import Process
    from systems import Models, Setting

    run = save_model(model_with(decoder_mixer="ssru"), tmp_path / "run", tokenizer_model)
    models = Models(run, tmp_path / "bundle", tmp_path)
    table = table_of(tmp_path, tokenizer_model)
    setting = Setting("marian", "int8", beam_size=1, shortlist=True)
    convert(setting, models, table)
    candidates = {*range(22, 40), *range(8, 12)}
    for weights in int8_weights():
        with Process(replace(setting, weights=weights), models) as process:
            process.ask("sources", sources=SOURCES)
            process.translate(range(len(SOURCES)))
            found = process.ask("last")["ids"]
        used = {token for tokens in found for token in tokens}
        # The tokens of the sources are candidates of both engines; a list is filled up to 24.
        assert used <= candidates | {token for source in SOURCES for token in source} | {4, 5, 6, 7}
    assert open_checkpoint(run).model.decoder_mixer == "ssru"

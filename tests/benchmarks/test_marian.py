"""Marian's files: names, order of the vocabulary, refusals, and the same translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.marian_peer import needs_marian
from support.models import lively_model, save_model

from translate_trt.runtime.errors import OptionError
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


def arrays_of(model: Transformer, path: Path) -> dict[str, np.ndarray]:
    from marian import marian_order, write_model

    write_model(model, marian_order(model.config.vocabulary_size, [END]), path)
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def test_frequent_tokens_come_first() -> None:
    from marian import marian_order

    order = marian_order(10, [5, END, 8])
    assert order.tolist() == [END, 5, 8, 4, 6, 7, 9, UNKNOWN, START, PAD]
    assert marian_order(7, [END, UNKNOWN]).tolist() == [END, UNKNOWN, 4, 5, 6, START, PAD]


@pytest.mark.parametrize("mixer", MIXERS)
def test_arrays_have_the_names_and_shapes_of_marian(mixer: str, tmp_path: Path) -> None:
    changes = {
        "encoder_layers": 1,
        "decoder_d_ff": 64,
        "decoder_ties": "1,1",
        "tokens": range(4, 9),
    }
    model = model_with(decoder_mixer=mixer, steps=1, **changes)
    arrays = arrays_of(model, tmp_path / "model.npz")
    settings = arrays.pop("special:model.yml").tobytes().decode()
    lines = settings.rstrip("\0").splitlines()
    assert "transformer-tied-layers: [1, 1]" in lines
    assert "transformer-decoder-dim-ffn: 64" in lines
    assert f"transformer-decoder-autoreg: {'rnn' if mixer == 'ssru' else mixer}" in lines
    assert arrays["Wemb"].shape == (PIECES, 64)
    assert arrays["decoder_ff_logit_out_b"].shape == (1, PIECES)
    assert arrays["encoder_l1_ffn_W1"].shape == (64, 128)
    assert arrays["decoder_l1_ffn_W2"].shape == (64, 64)
    decoder = {name for name in arrays if name.startswith("decoder_l")}
    assert all(name.startswith("decoder_l1_") for name in decoder)
    own = {"_rnn_W", "_rnn_Wf", "_rnn_bf", "_rnn_ffn_ln_scale", "_rnn_ffn_ln_bias"}
    if mixer == "ssru":
        assert {name[10:] for name in decoder if "_rnn" in name} == own
        expected = model.decoder_layers[0].ssru.input.weight.detach().numpy().T
        np.testing.assert_array_equal(arrays["decoder_l1_rnn_W"], expected)
    else:
        assert "decoder_l1_self_Wo_ln_scale" in decoder
    # PAD and START are the last of the vocabulary, and banned.
    assert arrays["decoder_ff_logit_out_b"][0, -2:].tolist() == [-1e4, -1e4]
    np.testing.assert_array_equal(arrays["Wemb"][0], model.embedding.weight[END].detach().numpy())


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("mixer", MIXERS)
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sinusoid": "interleaved"}, "sinusoid is 'interleaved'"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05"),
        ({"positions": "learned", "max_positions": 60}, "positions is 'learned'"),
        ({"activation": "gelu"}, "activation is 'gelu', and must be 'relu' or 'swish'"),
        ({"tied": "output"}, "tied is 'output'"),
    ],
)
def test_refusals_name_the_setting(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        arrays_of(model_with(steps=1, **changes), tmp_path / "model.npz")


def test_a_start_token_with_an_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the embedding of its start token is not zero"):
        arrays_of(lively_model(PIECES, steps=1, **SHAPE), tmp_path / "model.npz")


def test_candidates_of_probability_zero_stay_in_the_lexicon(
    tmp_path: Path, tokenizer_model: Path
) -> None:
    from marian import write_lexicon

    write_lexicon(Shortlist.load(table_of(tmp_path, tokenizer_model)), tmp_path / "lex.txt")
    lines = (tmp_path / "lex.txt").read_text().splitlines()
    assert len(lines) == 4 * (PIECES - 4)
    assert lines[:4] == [
        "w8 w4 0.500000000", "w9 w4 0.200000003", "w10 w4 0.100000001", "w11 w4 0.000000100",
    ]  # fmt: skip


def test_a_folder_with_the_package_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    import marian

    monkeypatch.setenv(marian.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    assert not marian.locate()
    (tmp_path / "_pymarian.py").touch()
    assert marian.locate(tmp_path)
    assert sys.path[-1] == str(tmp_path)
    assert marian.locate()
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
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


@pytest.mark.slow
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

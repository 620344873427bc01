"""Models in Marian's layout, compared with Marian's formulas in numpy."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from click.testing import CliRunner
from support.importing import assert_same_logits, tokenizer_of
from support.marian_files import (
    OPTIONS,
    OTHER,
    SOURCE,
    SSRU,
    TARGET,
    expected_logits,
    random_weights,
    save,
    tied_weights,
)

from translate_trt.export.importers.languages import opus_prompt
from translate_trt.export.importers.marian.decoder_settings import (
    DecoderSettings,
    read_decoder_file,
)
from translate_trt.export.importers.marian.files import read_settings, read_vocabulary
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import BANNED_BIAS, PAD, START, UNKNOWN

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as in the paper": (
        {},
        {"norm": "post", "activation": "swish", "tied": "output", "sinusoid": "tensor2tensor",
         "first_position": 0, "layer_norm_epsilon": 1e-6, "source_end": True},
    ),
    "all else": (
        OTHER, {"norm": "pre", "activation": "relu", "tied": "none", "norm_embedding": True},
    ),
    "SSRU, tied layers": (
        SSRU | {"dec-depth": 4, "transformer-tied-layers": [1, 3, 3, 1],
                     "transformer-decoder-dim-ffn": 40},
        {"decoder_mixer": "ssru", "decoder_ties": "1,2,2,1", "decoder_d_ff": 40},
    ),
    "SSRU, pre-norm": (
        OTHER | SSRU | {"dec-depth": 2}, {"norm": "pre", "decoder_mixer": "ssru"},
    ),
    "tied layers": (
        {"dec-depth": 3, "transformer-tied-layers": [1, 1, 2]}, {"decoder_ties": "1,1,2"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    changes, fields = MODELS[name]
    options = OPTIONS | changes
    weights = random_weights(options)
    imported = import_marian_model(*save(tmp_path, options, weights))
    config = imported.model.config
    assert {field: getattr(config, field) for field in fields} == fields
    assert imported.model.output_bias is not None
    assert imported.model.output_bias[[PAD, UNKNOWN, START]].tolist() == [BANNED_BIAS] * 3
    assert_same_logits(
        imported, (SOURCE, TARGET), 2, 0, lambda *pair: expected_logits(options, weights, *pair)
    )


def test_a_sentencepiece_vocabulary_by_the_command(tokenizer_model: Path, tmp_path: Path) -> None:
    """A .spm vocabulary with fewer pieces than the matrices have rows."""
    spm = tmp_path / "vocab.spm"
    spm.write_bytes(tokenizer_model.read_bytes())
    weights = tied_weights(328)
    path, *_ = save(tmp_path, OPTIONS, weights)
    out = tmp_path / "checkpoint"
    done = CliRunner().invoke(
        main, ["import", "marian", str(path), "--vocab", str(spm), "--output", str(out)]
    )
    assert done.exit_code == 0, done.output
    checkpoint = open_checkpoint(out)
    model = checkpoint.load_model()
    assert (model.config.tied, model.config.source_vocabulary_size) == ("all", 0)
    assert SearchOptions(**checkpoint.search) == SearchOptions(12, 0.0, "length", loop_guard=True)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    ours = tokenizer_of((checkpoint.tokenizers[0].read_bytes(),) * 2)
    for line in ("The dog walks over the small river.", "l\u00e4uft gr\u00f6\u00dfer?"):
        found = model.embedding.weight[ours.encode_source(line)].detach().numpy()
        np.testing.assert_array_equal(found, weights["Wemb"][theirs.encode(line)])


def test_languages_before_the_source(tmp_path: Path) -> None:
    path, source, target = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    source.write_text(source.read_text().replace("s39:", '">>deu<<":'))
    imported = import_marian_model(path, source, target)
    (token,) = tokenizer_of(imported.tokenizers).encode_source(">>deu<<")
    assert imported.prompt == Prompt(target_languages={"deu": token}, target_side="source")


def test_a_user_defined_symbol_is_not_a_language() -> None:
    """SentencePiece encodes the symbol as two tokens, with a space before it."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat runs over the river"] * 9), model_writer=content,
        vocab_size=40, hard_vocab_limit=False, user_defined_symbols=[">>deu<<"], minloglevel=2,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    names = [model.id_to_piece(place) for place in range(model.get_piece_size())]
    assert ">>deu<<" in names
    assert opus_prompt(names, content.getvalue()) == Prompt()


REFUSED: tuple[dict[str, Any], ...] = (
    {"transformer-ffn-activation": "gelu"},
    {"transformer-decoder-autoreg": "average-attention"},
    {"dec-cell": "gru"} | {name: value for name, value in SSRU.items() if name != "dec-cell"},
    {"transformer-tied-layers": [1, 1]},
    {"transformer-tied-layers": ["a"]},
    {"dec-depth": 10**9},
    {"transformer-postprocess": "da", "transformer-preprocess": "n"},
    {"transformer-decoder-dim-ffn": "x"},
    {"version": "v1.11.5"} | {name: value for name, value in OTHER.items() if name != "version"},
    {"input-types": ["class", "sequence"]},
    {"dim-vocabs": [9, 9, 9]},
    {"lemma-dim-emb": False},
)  # fmt: skip


@pytest.mark.parametrize("settings", REFUSED, ids=lambda settings: str(settings)[:40])
def test_unsupported_settings_are_named(settings: dict[str, Any], tmp_path: Path) -> None:
    path = save(tmp_path, OPTIONS | settings, random_weights(OPTIONS))
    with pytest.raises(InputError, match=rf"npz: {next(iter(settings))} is "):
        import_marian_model(*path)


def test_forms_of_lists_in_yaml() -> None:
    """Lists of several forms, including the empty list of Marian 1.12."""
    text = (
        'input-types:\n  []\ndim-vocabs:\n  - 5\n  - 6\nmodels: [a.npz, "b"]\nvocabs:\n  [a, 2]\n'
    )
    assert read_settings(Path("model.npz"), text) == {
        "input-types": [], "dim-vocabs": [5, 6], "models": ["a.npz", "b"], "vocabs": ["a", 2],
    }  # fmt: skip
    for spoiled in ("a: 1\n  []\n", "a:\n  []\n  []\na:\n", "  []\n"):
        with pytest.raises(InputError, match=r"special:model\.yml"):
            read_settings(Path("model.npz"), spoiled)


DECODERS: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "of OPUS-MT": (
        "decoder.yml",
        "relative-paths: true\nmodels:\n  - model.npz\nvocabs:\n  - a.yml\n  - a.yml\n"
        "beam-size: 6\nnormalize: 1\nword-penalty: 0\nmini-batch: 1\nmaxi-batch-sort: src\n",
        {"beam_size": 6, "length_penalty": 1}, [],
    ),
    "written in training": (
        "model.npz.decoder.yml", "models:\n  - /old/other.npz\nbeam-size: 4\nnormalize: 0.6\n",
        {"beam_size": 4, "length_penalty": 0.6}, [],
    ),
    "of another model": (
        "decoder.yml", "models:\n  - other.npz\nbeam-size: 6\n", {}, [r"for the models \['other"],
    ),
    "with more than is supported": (
        "decoder.yml",
        "models:\n  - model.npz\n  - b.npz\nword-penalty: 0.5\nmax-length-factor: 2\nnew: 1\n", {},
        ["ensemble of 2 models", "word-penalty is 0.5", "max-length-factor is 2", "new is 1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_settings_of_the_decoder(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, text, search, warnings = DECODERS[name]
    paths = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    (tmp_path / file).write_text(text)
    expected = {"beam_size": 12, "length_penalty": 0.0, "length_penalty_form": "length"} | search
    assert import_marian_model(*paths).search == expected
    assert len(caplog.messages) == len(warnings)
    for found, warning in zip(caplog.messages, warnings, strict=True):
        assert re.search(warning, found)


COMMENTED = """--- # OPUS-MT
# for the demo
models:
  - model.npz  # the best one
  # - other.npz
vocabs: [a.yml, "b #1.yml"] # both
beam-size: 6   # quality
normalize: 0.6\r
shortlist: \nalignment:
word-penalty: ~
log: 'it''s # here'
skip-cost: No
"""


def test_settings_that_people_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Comments, the line ---, blank values and Booleans of YAML 1.1."""
    paths = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    (tmp_path / "decoder.yml").write_text(COMMENTED, newline="")
    values = read_decoder_file(tmp_path / "decoder.yml")
    assert values == {
        "models": ["model.npz"], "vocabs": ["a.yml", "b #1.yml"], "beam-size": 6, "normalize": 0.6,
        "log": "it's # here", "skip-cost": False,
    }  # fmt: skip
    imported = import_marian_model(*paths)
    assert (imported.search["beam_size"], imported.search["length_penalty"]) == (6, 0.6)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True), ("YES", True), ("on # names", True), ("y", True), ("'true'", True),
        ("No", False), ("N", False), ("", False), ("~", False), ("1", None), ("maybe", None),
        ("[true]", None),
    ],
)  # fmt: skip
def test_flags_of_the_decoder(text: str, expected: bool | None, tmp_path: Path) -> None:
    path = tmp_path / "decoder.yml"
    path.write_text(f"allow-unk: {text}\n")
    if expected is None:
        with pytest.raises(InputError, match="allow-unk is "):
            DecoderSettings.read(tmp_path / "model.npz")
    else:
        assert DecoderSettings.read(tmp_path / "model.npz").allows_unknown == expected


def test_broken_settings_of_the_decoder(tmp_path: Path) -> None:
    paths = save(tmp_path, OPTIONS, random_weights(OPTIONS))
    for text, message in (
        ("normalize: -1\n", r"decoder\.yml: .*length_penalty is -1"),
        ("beam-size: many\n", r"decoder\.yml: .*beam_size is 'many'"),
        ("beam-size: 6\n---\n", r"decoder\.yml: it has the line '---'"),
        ("- a\n", r"decoder\.yml: it has the line '- a'"),
    ):
        (tmp_path / "decoder.yml").write_text(text)
        with pytest.raises(InputError, match=message):
            import_marian_model(*paths)


def test_tokens_that_marian_bans(tokenizer_model: Path, tmp_path: Path) -> None:
    """Marian bans the unknown token and byte tokens of control characters by default."""
    spm = tmp_path / "vocab.spm"
    spm.write_bytes(tokenizer_model.read_bytes())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    rows = pieces.get_piece_size()
    path, *_ = save(tmp_path, OPTIONS, tied_weights(rows))

    def banned() -> set[str]:
        imported = import_marian_model(path, spm)
        names = tokenizer_of(imported.tokenizers).target_pieces(range(rows))
        assert imported.model.banned_tokens is not None
        found = imported.model.banned_tokens.tolist()
        return {names[place] for place in found if place not in (PAD, START)}

    control = {f"<0x{code:02X}>" for code in range(32)}
    assert banned() == {"<unk>", *control}
    (tmp_path / "decoder.yml").write_text("allow-unk: true\nallow-special: true\n")
    assert banned() == set()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_carriage_return_is_part_of_a_token(end: str, tmp_path: Path) -> None:
    tokens, path = ["</s>", "<unk>", "\r", "a\rb", "\x85", "c"], tmp_path / "vocab.txt"
    for last in (end, ""):
        path.write_bytes((end.join(tokens) + last).encode())
        assert read_vocabulary(path) == tokens


def test_broken_models(tmp_path: Path) -> None:
    weights = random_weights(OPTIONS)
    path, source, target = save(tmp_path, OPTIONS, weights)
    for name, text, message in (
        ("a.yml", "</s>: 0\n<unk>: 2\n", "token ids are not the numbers 0 to 1"),
        ("a.yml", "</s>: 0\n<unk>\n", "line 2: '<unk>' is not a token and an id"),
        ("a.json", "[]", "not a JSON object"),
        ("a.json", '{"</s>": "0"}', "not a JSON object of tokens and ids"),
        ("a.json", '{"</s>": 0, "a": 1}', "lacks </s> or <unk>"),
        ("a.txt", "</s>\n<unk>\n" + "x\n" * 2, "token 'x' twice"),
        ("a.spm", "x", "is not a SentencePiece model"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            import_marian_model(path, tmp_path / name, target)
    with pytest.raises(InputError, match=r"cannot read .*nothing"):
        import_marian_model(path, tmp_path / "nothing", target)
    save(tmp_path, OPTIONS, weights | {"encoder_l1_adapter": np.zeros(1)})
    with pytest.raises(InputError, match="encoder_l1_adapter"):
        import_marian_model(path, source, target)
    np.savez(path, **weights)
    with pytest.raises(InputError, match=r"has no special:model\.yml"):
        import_marian_model(path, source, target)
    np.savez(path, weights=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="Object arrays"):
        import_marian_model(path, source, target)
    settings = np.frombuffer(b"type: transformer\n  <<: *x\0", np.int8)
    np.savez(path, **{"special:model.yml": settings})
    with pytest.raises(InputError, match="line '"):
        import_marian_model(path, source, target)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [("last", 1), ("1", 0), (2, 1), ("0", None), ("3", None), ("first", None)],
)
def test_alignment_heads(layer: object, expected: int | None, tmp_path: Path) -> None:
    """Layers count from 1 in Marian, which takes alignments from the first head."""
    options = OPTIONS | {"dec-depth": 2, "transformer-guided-alignment-layer": layer}
    paths = save(tmp_path, options, random_weights(options))
    if expected is not None:
        assert import_marian_model(*paths).alignment_heads == AttentionHeads(expected, (0,))
    else:
        with pytest.raises(InputError, match="transformer-guided-alignment-layer is "):
            import_marian_model(*paths)

"""Ids of added tokens in directories without tokenizer.json, as transformers 4 saved them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.hugging_face_models import MODEL, SPECIAL, pieces_of, train_pieces
from support.importing import tokenizer_of
from support.marian_models import marian_tokenizer, save_random_marian

from translate_trt.export.importers.hugging_face.marian import import_marian
from translate_trt.export.importers.hugging_face.tokens import Tokens, read_added_tokens
from translate_trt.export.importers.settings_table import Config
from translate_trt.runtime.errors import InputError

LANGUAGES = ["ar_AR", "de_DE"]


@pytest.fixture(scope="module")
def pieces() -> bytes:
    return train_pieces(["a b c d e f g ab cd ef"] * 30, "bpe", 20)


def save_tokenizer(directory: Path, pieces: bytes, added: dict[str, int], record: str) -> None:
    """Save the files of mBART-50's and NLLB's tokenizers, and the ids of added tokens.

    Args:
        directory: Directory of the files.
        pieces: SentencePiece model.
        added: Ids by token.
        record: File of the ids: added_tokens.json, tokenizer_config.json, or "" for none.
    """
    (directory / MODEL).write_bytes(pieces)
    more = [token for token in added if token != "<mask>"]
    special = [*LANGUAGES, *(token for token in more if token not in LANGUAGES)]
    listed = {"additional_special_tokens": special, "mask_token": {"content": "<mask>"}}
    (directory / "special_tokens_map.json").write_text(json.dumps(listed))
    settings = {}
    if record == "tokenizer_config.json":
        tokens = {str(index): {"content": token} for token, index in added.items()}
        settings = {"added_tokens_decoder": tokens}
    elif record:
        (directory / record).write_text(json.dumps(added))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def names_of(directory: Path, size: int, kind: str = "mbart") -> list[str]:
    config = Config(directory / "config.json", {"model_type": kind, "vocab_size": size})
    return Tokens.read(config, None).names


@pytest.mark.parametrize("record", ["added_tokens.json", "tokenizer_config.json"])
def test_recorded_ids_replace_computed_ones(record: str, pieces: bytes, tmp_path: Path) -> None:
    order = ["<mask>", "de_DE", "xx_XX", "ar_AR", "[NAME]"]
    known = [*SPECIAL, *pieces_of(pieces)]
    added = {token: len(known) + index for index, token in enumerate(order)}
    save_tokenizer(tmp_path, pieces, added, record)
    assert names_of(tmp_path, len(known) + len(order)) == [*known, *order]


def test_tokens_without_a_recorded_id_keep_their_place(pieces: bytes, tmp_path: Path) -> None:
    """Before version 4.34, languages and the mask token were not recorded."""
    known = [*SPECIAL, *pieces_of(pieces)]
    order = [*LANGUAGES, "<mask>", "xx_XX"]
    save_tokenizer(tmp_path, pieces, {"xx_XX": len(known) + 3}, "added_tokens.json")
    assert names_of(tmp_path, len(known) + 4) == [*known, *order]
    (tmp_path / "added_tokens.json").unlink()
    assert names_of(tmp_path, len(known) + 4) == [*known, *LANGUAGES, "xx_XX", "<mask>"]


def test_a_language_that_was_added_to_m2m100(pieces: bytes, tmp_path: Path) -> None:
    known = [*SPECIAL, *pieces_of(pieces)]
    save_tokenizer(tmp_path, pieces, {"__xx__": len(known) + 100}, "tokenizer_config.json")
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(known)}))
    names = names_of(tmp_path, len(known) + 101, "m2m_100")
    assert names[len(known)] == "__af__"
    assert names[-2:] == ["__zu__", "__xx__"]


@pytest.mark.parametrize(
    "tokens",
    [[1], {"x": {"content": "a"}}, {"5": {"content": 3}}, {"5": "a"}, {"-5": {"content": "a"}}],
    ids=str,
)
def test_damaged_records_in_the_settings(tokens: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_added_tokens(tmp_path, {"added_tokens_decoder": tokens})


@pytest.mark.parametrize("content", ["[]", '{"a": "5"}', '{"a": true}', '{"a": -1}'])
def test_damaged_files_of_added_tokens(content: str, tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text(content)
    with pytest.raises(InputError):
        read_added_tokens(tmp_path, {})


# ---- Marian models of transformers ----


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a Marian model whose SentencePiece models are unigram models."""
    return save_marian(tmp_path_factory.mktemp("marian"), "unigram")


def save_marian(path: Path, kind: str) -> Path:
    pytest.importorskip("transformers", reason="transformers, which makes one, is not installed")
    lines = ["the cat sat on the mat", "he met the man", "hello world ! what ?"] * 20
    (path / "spm").write_bytes(train_pieces(lines, kind, 80, bos_id=-1, pad_id=-1))
    save_random_marian(path / "model", path / "spm", path / "spm", encoder_layers=1)
    return path / "model"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_tokens_that_were_added_to_a_marian_model(kind: str, tmp_path: Path) -> None:
    """Added tokens and languages have the tokens of transformers, as words of the source."""
    transformers = pytest.importorskip("transformers")
    directory = save_marian(tmp_path, kind)
    model = transformers.MarianMTModel.from_pretrained(directory)
    tokenizer = marian_tokenizer(directory)
    tokenizer.add_tokens(["[NAME]", "<glossary>", "new york"])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for saved in (model, tokenizer):
        saved.save_pretrained(directory)
    theirs = transformers.MarianTokenizer.from_pretrained(directory)
    imported = import_marian(directory)
    rows = load_file(directory / "model.safetensors")["model.shared.weight"]
    ours = tokenizer_of(imported.tokenizers)
    for line in ("the [NAME] met", "[NAME] <glossary>", "a new york man", ">>deu<< the <glossary>"):
        found, expected = ours.encode_source(line), theirs(line).input_ids[:-1]
        assert torch.equal(imported.model.embedding.weight[found], rows[expected]), line
        assert ours.decode(found) == line


@pytest.fixture
def copied(marian: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(marian, tmp_path / "copied"))


def test_added_tokens_of_marian_that_are_refused(copied: Path) -> None:
    vocabulary = json.loads((copied / "vocab.json").read_text())
    count = len(vocabulary)
    (copied / "added_tokens.json").write_text(json.dumps({"[NAME]": count}))
    with pytest.raises(InputError, match=rf"'\[NAME\]' has id {count}"):
        import_marian(copied)
    (copied / "target_vocab.json").write_text(json.dumps(vocabulary))
    config = json.loads((copied / "config.json").read_text())
    config["share_encoder_decoder_embeddings"] = False
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"vocab\.json lacks the added token '\[NAME\]'"):
        import_marian(copied)


@pytest.mark.parametrize("value", [True, False])
def test_cleaning_up_spaces(value: bool, copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"clean_up_tokenization_spaces": value}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    import_marian(copied)
    assert ("clean_up_tokenization_spaces" in caplog.text) == value

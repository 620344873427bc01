"""Packages of Argos Translate: translations of CTranslate2 with their tokenizer, and damage."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sentencepiece
from click.testing import CliRunner
from support.argos_packages import PREFIX, pack, save_package
from support.importing import tokenizer_of

from translate_trt.export.importers.ctranslate2 import argos_package
from translate_trt.export.importers.ctranslate2.argos_package import import_argos
from translate_trt.export.importers.recognition import import_directory, recognize_directory
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END
from translate_trt.train.search import beam_search

LINES = ["the cat sleeps.", "a dog and the house", "ö the <2de> 犬 _ cat", "the the the"]


def argos_translations(package: Path, prefix: str) -> list[list[str]]:
    """Translate as Argos does, without loops and the padding token."""
    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(package / "sentencepiece.model")
    )
    model = ctranslate2.Translator(str(package / "model"), compute_type="float32", intra_threads=1)
    found = model.translate_batch(
        [tokenizer.encode(line, out_type=str) for line in LINES],
        target_prefix=[[prefix]] * len(LINES) if prefix else None,
        beam_size=4, length_penalty=0.2, max_decoding_length=20,
        suppress_sequences=[["<blank>"]],
    )  # fmt: skip
    return [one.hypotheses[0] for one in found]


@pytest.mark.parametrize(
    ("metadata", "packed"),
    [
        ({}, False),
        ({"target_prefix": PREFIX, "type": "translate", "to_code": "zt"}, True),
        ({"shared": False}, True),
    ],
    ids=["plain", "prefix", "separate vocabularies"],
)
def test_translations_are_those_of_ctranslate2(
    metadata: dict[str, Any], packed: bool, tokenizer_model: Path, tmp_path: Path
) -> None:
    package = save_package(tmp_path / "translate-en_de-1_0", tokenizer_model, **metadata)
    path = pack(package) if packed else package
    model, imported = import_directory(path, (None, None))
    assert (model.name, imported.languages[0]) == ("argos", "en")
    assert imported.languages[1] == ("zh-Hant" if "to_code" in metadata else "de")
    assert {"beam_size": 4, "length_penalty": 0.2}.items() <= imported.search.items()
    tokenizer = tokenizer_of(imported.tokenizers)
    options = SearchOptions(**imported.search, max_length=20)
    sources = tokenizer.encode_source_batch(LINES)
    prefixes = [imported.prompt.of_target(options)] * len(LINES)
    found = beam_search(imported.model, sources, options, prefixes)
    tokens = [[token for token in one[0].tokens if token != END] for one in found]
    prefix = metadata.get("target_prefix", "")
    assert [*map(tokenizer.target_pieces, tokens)] == argos_translations(package, prefix)
    assert PREFIX not in "".join(tokenizer.decode_batch(tokens))


def test_the_command_takes_files_and_vocabulary_maps(tokenizer_model: Path, tmp_path: Path) -> None:
    package = save_package(tmp_path / "packages" / "translate-en_de-1_0", tokenizer_model)
    (package / "model" / "vmap.txt").write_text("\t▁the .\n▁the\t▁cat\n", encoding="utf-8")
    path = pack(package)
    assert recognize_directory(path.parent).name == "argos"
    arguments = ["import", "auto", str(path), "--output", str(tmp_path / "checkpoint")]
    done = CliRunner().invoke(main, [*arguments, "--languages", "en", "fr"])
    assert done.exit_code == 0, done.output
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "fr")
    assert checkpoint.shortlist is not None


# ---- damaged and unsupported packages ----


def repacked(path: Path, change: Callable[[dict[str, bytes]], object], top: str = "") -> None:
    """Change the files of a package."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{top}{name}", content)


TOP = "translate-en_de-1_0"
CHANGES: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "traversal": (lambda files: files.update({f"{TOP}/../../x": b""}), "outside"),
    "absolute": (lambda files: files.update({"/etc/x": b""}), "outside"),
    "backslash": (lambda files: files.update({f"{TOP}\\..\\x": b""}), "outside"),
    "two directories": (lambda files: files.update({"other/x": b""}), "single directory"),
    "no metadata": (lambda files: files.pop(f"{TOP}/metadata.json"), "metadata"),
    "no tokenizer": (lambda files: files.pop(f"{TOP}/sentencepiece.model"), "sentencepiece"),
    "no model": (lambda files: files.pop(f"{TOP}/model/model.bin"), r"model\.bin"),
    "bomb": (lambda files: files.update({f"{TOP}/model/model.bin": bytes(1 << 25)}), "too many"),
    "list": (lambda files: files.update({"x" * 250 + str(i): b"" for i in range(4000)}), "list"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_damaged_packages(
    name: str, tokenizer_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(argos_package.tempfile, "tempdir", str(tmp_path))
    change, message = CHANGES[name]
    path = pack(save_package(tmp_path / TOP, tokenizer_model))
    before = {*tmp_path.iterdir()}
    repacked(path, change)
    with pytest.raises(InputError, match=message):
        import_argos(path)
    assert {*tmp_path.iterdir()} == before


def test_truncated_and_encrypted_packages(tokenizer_model: Path, tmp_path: Path) -> None:
    path = pack(save_package(tmp_path / TOP, tokenizer_model))
    content = path.read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(InputError):
            import_argos(path)
    # The flag of encryption in the list of files.
    entry = content.index(f"{TOP}/metadata.json".encode(), content.index(b"PK\x01\x02")) - 46
    flags = struct.pack("<H", 1)
    path.write_bytes(content[: entry + 8] + flags + content[entry + 10 :])
    with pytest.raises(InputError, match="encrypted"):
        import_argos(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"type": "sbd"}, "type"),
        ({"to_code": None}, "to_code"),
        ({"target_prefix": ["<2de>"]}, "target_prefix"),
        ({"target_prefix": "<2fr>"}, "<2fr>"),
        ({"target_prefix": "▁the"}, "piece of words"),
    ],
    ids=["type", "language", "list", "unknown token", "word"],
)
def test_unsupported_metadata(
    metadata: dict[str, Any], message: str, tokenizer_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        import_argos(save_package(tmp_path / TOP, tokenizer_model, **metadata))


def test_byte_pair_encoding_is_refused(tokenizer_model: Path, tmp_path: Path) -> None:
    package = save_package(tmp_path / TOP, tokenizer_model)
    (package / "sentencepiece.model").rename(package / "bpe.model")
    with pytest.raises(InputError, match="subword-nmt"):
        import_argos(package)
    for content in ("[]", "{", json.dumps({"from_code": "en"})):
        (package / "metadata.json").write_text(content)
        with pytest.raises(InputError, match=r"metadata\.json"):
            import_argos(package)

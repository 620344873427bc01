"""Damaged directories: every import succeeds or ends in an InputError."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ctranslate2_models import save_random_model, words
from support.marian_models import save_random_marian

from translate_trt.export.importers.ctranslate2.converted import import_ctranslate2
from translate_trt.export.importers.hugging_face.marian import import_marian
from translate_trt.runtime.errors import TranslateTrtError

pytestmark = pytest.mark.slow

Import = Callable[[Path], Any]

VALUES: tuple[Any, ...] = (
    None, [], {}, -1, 0, 10**10, 10**400, 1e308, float("nan"), "x", True, [[]], [{}], [[10**10]],
)  # fmt: skip


@pytest.fixture(scope="module")
def directories(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path
) -> dict[str, tuple[Path, Import]]:
    pytest.importorskip("transformers", reason="transformers, which makes one, is not installed")
    path = tmp_path_factory.mktemp("directories")
    save_random_marian(path / "marian", tokenizer_model, tokenizer_model)
    tokens = words(40, "w")
    save_random_model(path / "ct2", (tokens, tokens), (1, 1), tied=True, quantization="int8")
    return {"marian-hf": (path / "marian", import_marian),
            "ctranslate2": (path / "ct2", import_ctranslate2)}  # fmt: skip


@pytest.mark.parametrize("command", ["marian-hf", "ctranslate2"])
def test_settings_of_any_value(command: str, directories: dict[str, tuple[Path, Import]]) -> None:
    """100 random pairs of a setting and a value."""
    directory, read = directories[command]
    names = ("config.json", "generation_config.json")
    files = [directory / name for name in names if (directory / name).is_file()]
    pairs = [
        (file, name, value)
        for file in files
        for name in json.loads(file.read_text())
        for value in VALUES
    ]
    for file, name, value in random.Random(1).sample(pairs, min(100, len(pairs))):
        whole = file.read_text()
        file.write_text(json.dumps(json.loads(whole) | {name: value}))
        try:
            read(directory)
        except TranslateTrtError:
            pass
        finally:
            file.write_text(whole)
    read(directory)


def test_bytes_of_ctranslate2(directories: dict[str, tuple[Path, Import]]) -> None:
    """150 files with changed names, shapes and types, or huge sizes."""
    directory, read = directories["ctranslate2"]
    path = directory / "model.bin"
    content, rng, refused = path.read_bytes(), random.Random(2), 0
    places = [place for place in range(len(content) - 80) if content.startswith(b"coder/", place)]
    try:
        for _ in range(150):
            place = rng.choice(places) + rng.randint(-6, 70)
            change = rng.choice([b"\0", b"\xff", bytes([rng.randrange(256)]),
                                 struct.pack("<I", 0xFFFFFFFF)])  # fmt: skip
            path.write_bytes(content[:place] + change + content[place + len(change) :])
            try:
                read(directory)
            except TranslateTrtError:
                refused += 1
    finally:
        path.write_bytes(content)
    read(directory)
    assert refused > 75

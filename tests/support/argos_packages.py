"""Packages of Argos Translate with random models."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from support.ctranslate2_models import SPECIAL, save_random_model
from support.marian_models import pieces_of

PREFIX = "<2de>"


def save_package(
    directory: Path, tokenizer: Path, pair: str = "en_de", shared: bool = True, **metadata: Any
) -> Path:
    """Write an installed package.

    Args:
        directory: where it goes.
        tokenizer: SentencePiece model of both languages.
        pair: languages.
        shared: both have one vocabulary; otherwise each lacks every second piece.
        metadata: further fields of metadata.json.
    """
    directory.mkdir(parents=True)
    pieces = pieces_of(tokenizer)
    sides = (pieces, pieces) if shared else (pieces[::2], pieces[1::2])
    source_tokens, target_tokens = ([*SPECIAL, *side, PREFIX] for side in sides)
    save_random_model(directory / "model", (source_tokens, target_tokens), layers=(1, 1))
    shutil.copyfile(tokenizer, directory / "sentencepiece.model")
    source, target = pair.split("_")
    values = {
        "package_version": "1.0", "argos_version": "1.0", "from_code": source, "to_code": target,
        "from_name": "A", "to_name": "B", **metadata,
    }  # fmt: skip
    (directory / "metadata.json").write_text(json.dumps(values))
    (directory / "stanza").mkdir()
    (directory / "stanza" / "resources.json").write_text("{}")
    return directory


def pack(directory: Path) -> Path:
    """Pack a package as Argos's file beside it."""
    path = directory.with_name(f"{directory.name}.argosmodel")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(directory.rglob("*")):
            archive.write(file, file.relative_to(directory.parent))
    return path

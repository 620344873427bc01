"""Public test sets, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.paths import ROOT

DATA = Path(os.environ.get("TRANSLATE_TRT_DATA", ROOT.parent / "shared" / "data"))


def folder_of(name: str) -> Path:
    """Return the folder of a test set; skip the test if it is missing."""
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in {DATA}; TRANSLATE_TRT_DATA names another place")
    return DATA / name


def multi30k(part: str) -> list[str]:
    """Return the lines of a part in English, German and French."""
    paths = (folder_of("multi30k") / f"{part}.{language}" for language in ("en", "de", "fr"))
    return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]

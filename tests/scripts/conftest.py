from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

SCRIPTS = ROOT / "scripts"


@pytest.fixture(autouse=True)
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the folder of the scripts on the path, as Python does when it runs them."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "corpus"]:
        del sys.modules[name]


@pytest.fixture
def generator() -> Path:
    return SCRIPTS / "generate_corpus.py"

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).with_name("fake_translator.py")


@pytest.fixture
def fake_translator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that stands in for Translator in this process; its lists of calls are empty."""
    fake = runpy.run_path(str(FAKE))["FakeTranslator"]
    monkeypatch.setattr("translate_trt.runtime.translator.Translator", fake)
    return fake


@pytest.fixture
def fake_program() -> Path:
    """`translate-trt` as a script to start in a process of its own, with that translator."""
    return FAKE

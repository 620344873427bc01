from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

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


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(targets=("onnx-fp32", "onnx-int8", "onnx-int8-shortlist"))


@pytest.fixture
def translate(bundle: Path, fake_translator: Any) -> Callable[..., Result]:
    """`translate-trt translate` of that bundle with that translator."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        flags = ["translate", "--bundle", str(bundle), *map(str, arguments)]
        return CliRunner().invoke(main, flags, input=stdin)

    return run

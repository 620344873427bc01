from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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


class FakeComet:
    """The package `unbabel-comet`, with a model that compares lengths.

    Attributes:
        needs_references: Of the model.
        loaded: Paths of the checkpoints that were loaded.
    """

    __version__ = "2.2.7"

    def __init__(self) -> None:
        self.needs_references = True
        self.loaded: list[str] = []

    def download_model(self, name: str) -> str:
        if name == "missing":
            raise KeyError(f"Model '{name}' not supported by COMET.")
        return f"/hub/{name}/checkpoints/model.ckpt"

    def load_from_checkpoint(self, path: str) -> FakeComet:
        if path == "bad.ckpt":
            raise Exception("no hparams")
        self.loaded.append(path)
        return self

    def requires_references(self) -> bool:
        return self.needs_references

    def predict(
        self, samples: list[dict[str, str]], batch_size: int, gpus: int, progress_bar: bool
    ) -> SimpleNamespace:
        texts = [
            (one["src"], one["mt"], *([one["ref"]] if self.needs_references else []))
            for one in samples
        ]
        return SimpleNamespace(scores=[self.score(*each) for each in texts])

    def score(self, source: str, text: str, reference: str | None = None) -> float:
        """Return the score of one sample."""
        other = source if reference is None else f"{source} {reference}"
        return min(len(text), len(other)) / max(len(text), len(other), 1)


@pytest.fixture
def fake_comet(monkeypatch: pytest.MonkeyPatch) -> FakeComet:
    fake = FakeComet()
    monkeypatch.setitem(sys.modules, "comet", fake)
    return fake

"""Comparison of an imported Marian model with marian-decoder, whose translations are given here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.importing import tokenizer_of
from support.marian_files import OPTIONS, random_weights, save

from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.train.config import END
from translate_trt.train.search import beam_search

TEXT = ["s1 s2 s3", "s5 s4", "s9 s8 s7 s6"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Model, source vocabulary, target vocabulary and text."""
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    return [*map(str, save(tmp_path, OPTIONS, random_weights(OPTIONS))), str(text)]


@pytest.mark.nightly
def test_exit_code(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script fails if Marian's translation is improbable, and not if the limit allows it."""
    import compare_marian

    imported = import_marian_model(*map(Path, files[:3]))
    tokenizer = tokenizer_of(imported.tokenizers)
    sources = [tokenizer.encode_source(line) for line in TEXT]
    found = beam_search(imported.model, sources, compare_marian.SEARCH)
    translations = [  # Marian prints the words of such a vocabulary
        [
            piece.removeprefix("▁")
            for piece in tokenizer.target_pieces([t for t in best.tokens if t != END])
        ]
        for [best] in found
    ]
    given = [list(one) for one in translations]
    monkeypatch.setattr(compare_marian, "marian_translations", lambda *_: given)
    model, source_file, target_file, text = files
    command = ["", model, source_file, text, "--target-vocabulary", target_file]
    monkeypatch.setattr(sys, "argv", command)
    assert compare_marian.main() == 0
    assert "| model.npz | onnx-fp32 | 3 | 3 | 0 | 0 | - |" in capsys.readouterr().out

    given[1] = ["t3", "t4", *given[1]]
    assert compare_marian.main() == 1
    shown = capsys.readouterr().out
    assert "| model.npz | onnx-fp32 | 3 | 2 | 0 | 1 |" in shown
    assert "| onnx-fp32 | 2 | 1 | " in shown
    assert "NO near tie" in shown

    monkeypatch.setattr(sys, "argv", [*command, "--limit", "1000"])
    assert compare_marian.main() == 0

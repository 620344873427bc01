"""Comparison of translations with near ties."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def lines(path: Path, *pairs: tuple[float, str]) -> Path:
    if path.suffix == ".jsonl":
        rows = [json.dumps({"translation": text, "score": score}) for score, text in pairs]
    else:
        rows = [f"{score}\t{text}" for score, text in pairs]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_ties_are_lines_with_equal_scores() -> None:
    from compare_translations import Comparison, compare

    expected = [(-0.5, "a"), (-0.6, "b"), (-20.0, "c"), (-0.8, "d")]
    found = [(-0.5001, "a"), (-0.6009, "x"), (-20.01, "y"), (-0.82, "z")]
    assert compare(expected, found, "fp32") == Comparison(4, 1, 2, pytest.approx(1e-4))
    assert compare(expected, found, "fp16").differing == 0
    with pytest.raises(ValueError, match="shorter"):
        compare(expected, found[:3], "fp32")


@pytest.mark.parametrize(
    ("lines", "differing", "passes"), [(500, 1, True), (500, 2, False), (3000, 3, True)]
)
def test_one_line_may_always_differ(lines: int, differing: int, passes: bool) -> None:
    from compare_translations import Comparison

    assert Comparison(lines, lines - differing, 0, 0.0).passes("fp32") == passes


def test_text_and_json_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from compare_translations import main

    pairs = [(-0.25, "ein Haus"), (-0.5, ""), (-0.75, "zwei\u2028Zeilen")]
    text = lines(tmp_path / "a.txt", *pairs)
    same, other = lines(tmp_path / "b.jsonl", *pairs), lines(tmp_path / "c.jsonl", *2 * pairs[:1])
    monkeypatch.setattr(sys, "argv", ["", str(text), str(same)])
    assert main() == 0
    assert "3 lines: 3 identical, 0 tied, 0 differ" in capsys.readouterr().out
    lines(tmp_path / "c.jsonl", *[(score - 1, text + "x") for score, text in pairs])
    monkeypatch.setattr(sys, "argv", ["", str(text), str(other)])
    assert main() == 1

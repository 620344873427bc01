"""Benchmark of constraints: recall, and a run with a tiny bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_recall_counts_whole_words() -> None:
    from constraints import recall

    translations = ["Ein Hund läuft.", "Hunde laufen", "a  b c"]
    assert recall(translations, [["Hund"], ["Hund"], ["a b", "d"]]) == 50
    assert recall(["a"], [[]]) == 0


def test_constraints_raise_recall(
    tmp_path: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from constraints import main

    source, reference = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("a dog\n\nthe cat sleeps\n")
    reference.write_text("ein Hund\n\ndie Katze schläft\n")
    out = tmp_path / "report.json"
    flags = ["--bundle", compiled_bundle, "--source", source, "--reference", reference]
    flags += ["--beams", 2, 4, "--rounds", 1, "--out", out]
    monkeypatch.setattr(sys, "argv", ["constraints.py", *map(str, flags)])
    main()
    report = json.loads(out.read_text())
    assert report["settings"]["lines"] == 2
    for kinds in report["results"].values():
        assert next(iter(kinds)) == "no constraints"
        assert kinds["1 word"]["recall"] >= kinds["1 word"]["recall_without"]

"""Benchmark of constraints: the choice of phrases, recall, and its table from a tiny bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REFERENCES = ["Ein Hund läuft, sagt er.", "Zwei Männer", "(Ja!) Die Katze schläft im Haus."]


def test_phrases_are_words_of_the_reference() -> None:
    from constraints import KINDS, words_of

    assert words_of(REFERENCES[2]) == ["Ja", "Die", "Katze", "schläft", "im", "Haus"]
    for reference in REFERENCES:
        words = words_of(reference)
        (word,) = KINDS["1 word"](reference)
        assert word in words
        several = KINDS["3 words"](reference)
        assert len(several) == min(3, len(words))
        assert [one for one in words if one in several] == several
        for phrase in KINDS["a phrase of 3 words"](reference):
            assert f" {phrase} " in f" {' '.join(words)} "
        assert KINDS["3 words"](reference) == several
    assert KINDS["a phrase of 3 words"](REFERENCES[1]) == []


def test_recall_counts_whole_words() -> None:
    from constraints import recall

    translations = ["Ein Hund läuft.", "Hunde laufen", "a  b c"]
    assert recall(translations, [["Hund"], ["Hund"], ["a b", "d"]]) == 50
    assert recall(["a"], [[]]) == 0


def test_the_report_and_its_table(
    tmp_path: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from constraints import main
    from results_tables import render_constraints

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
    rendered = render_constraints(report)
    assert "| 4 | a phrase of 3 words | " in rendered
    assert "2 lines of a.en" in rendered

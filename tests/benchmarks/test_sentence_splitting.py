"""Comparison of sentence splitters: how boundaries are counted, and its table."""

from __future__ import annotations

import pytest


def test_boundaries_are_compared_by_position() -> None:
    from sentence_splitting import boundaries, joined, measure

    groups = joined(["One two.", "a headline", "Three!", 'Four?"', "Five.", "", "Six."] * 5, seed=1)
    assert {len(group) for group in groups} <= {1, 2, 3, 4, 5}
    assert [line for group in groups for line in group] == [
        "One two.", "Three!", 'Four?"', "Five.", "Six."
    ] * 5  # fmt: skip
    assert boundaries(["A b. ", "C d.", "e"]) == {3, 6}
    assert boundaries([]) == set()

    def never(language: str, line: str) -> list[str]:
        return [line]

    def everywhere(language: str, line: str) -> list[str]:
        return line.split()

    assert measure(never, "en", groups) == {"precision": 0, "recall": 0, "f1": 0}
    found = measure(everywhere, "en", [["One two.", "Three.", "Four."]])
    assert found["recall"] == 100
    assert found["precision"] == pytest.approx(100 * 2 / 3)


def test_the_table_of_splitters() -> None:
    from results_tables import render_sentence_splitting

    score = {"precision": 90.0, "recall": 90.0, "f1": 90.04, "sentences/s": [2000.0, 1.0, 3.0]}
    found = {
        "version": "1.2",
        "bytes": 4_200_000,
        "texts": {"a.en-de.de:de": score, "b.fr:fr": {**score, "sentences/s": [1000.4, 1.0, 2.0]}},
        "growth": {"words": 3.96, "quotes": 12.5},
    }
    text = render_sentence_splitting(
        {
            "date": "2026-11-25",
            "machine": {"cpu": "EPYC", "cores": 2, "instructions": ["avx2"]},
            "versions": {},
            "settings": {"sentences": {"a.en-de.de:de": 10, "b.fr:fr": 10}, "seed": 1},
            "results": {"translate-trt": found, "other": found},
        }
    )
    assert "| library | a de | b fr | sentences/s | growth | size |" in text
    assert "| translate-trt | 90.0 | 90.0 | 1,000 to 2,000 | 12.5 |  |" in text
    assert "| other 1.2 | 90.0 | 90.0 | 1,000 to 2,000 | 12.5 | 4.2 MB |" in text

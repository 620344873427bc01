"""Comparison of sentence splitters: how boundaries are counted."""

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

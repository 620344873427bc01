"""Selection of training pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from translate_trt.export.distillation.distillation_options import SelectionOptions
from translate_trt.export.distillation.selection import (
    COUNTS,
    SOURCE,
    TARGET,
    Candidate,
    is_repetitive,
    select,
)
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.train.worker_processes import WorkerPool


def candidates(*texts: str, truncated: bool = False) -> list[Candidate]:
    return [Candidate(text, -0.1 * place, truncated) for place, text in enumerate(texts, start=1)]


def selected(
    out: Path, lines: list[Any], references: list[str] | None = None, **options: Any
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Select, and return the pairs and the counts."""
    with WorkerPool(1) as pool:
        counts = select(lines, references, SelectionOptions(**options), out, pool)
    assert json.loads((out / COUNTS).read_text()) == counts
    sides = [(out / name).read_text(encoding="utf-8").split("\n")[:-1] for name in (SOURCE, TARGET)]
    return list(zip(*sides, strict=True)), counts


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_the_hypothesis_nearest_to_the_reference(metric: str, tmp_path: Path) -> None:
    lines = [
        ("a", candidates("der Hund schläft", "eine Katze läuft schnell", "nichts davon")),
        ("b", candidates("gut so", "gut so", "schlecht")),
        ("c", candidates("ohne Referenz", "anders")),
    ]
    references = ["eine Katze läuft", "gut so", " "]
    pairs, _ = selected(tmp_path / "out", lines, references, metric=metric)
    assert pairs == [("a", "eine Katze läuft schnell"), ("b", "gut so"), ("c", "ohne Referenz")]


def test_the_best_hypothesis_without_references(tmp_path: Path) -> None:
    pairs, counts = selected(tmp_path / "out", [("a", candidates("x", "y"))])
    assert pairs == [("a", "x")]
    assert (counts["read"], counts["kept"]) == (1, 1)


def test_unfit_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    loop = "ja ja ja ja"
    lines = [
        ("", []), ("a", candidates("", " ")), ("b", candidates("x", truncated=True)),
        ("c", candidates(loop)), ("d", candidates(loop, "nein")), (loop, candidates(loop)),
        ("e\u2028f", candidates(" g\u2028h ")),
    ]  # fmt: skip
    pairs, counts = selected(tmp_path / "out", lines)
    assert pairs == [("d", "nein"), (loop, loop), ("e\u2028f", "g\u2028h")]
    assert counts == {
        "read": 7, "kept": 3, "not_translated": 2, "cut_off": 1, "repetitive": 1, "improbable": 0,
    }  # fmt: skip


def test_keep_takes_the_most_probable(tmp_path: Path) -> None:
    lines = [
        (name, [Candidate(name, p, False)])
        for name, p in zip("abcd", (-3, -1, -2, -1), strict=True)
    ]
    pairs, counts = selected(tmp_path / "out", lines, keep=0.5)
    assert [source for source, _ in pairs] == ["b", "d"]
    assert (counts["kept"], counts["improbable"]) == (2, 2)


def test_a_selection_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    selected(out, [("a", candidates("x"))])
    with pytest.raises(InputError, match=r"teacher's 1.*translations"):
        selected(out, [("a", [])])
    assert (out / SOURCE).read_text() == "a\n"
    assert selected(out, [("b", candidates("y"))])[0] == [("b", "y")]


@pytest.mark.parametrize(("count", "fewer"), [(1, "references"), (3, "lines")])
def test_references_of_another_length_are_refused(count: int, fewer: str, tmp_path: Path) -> None:
    lines = [("a", candidates("x")), ("b", candidates("y"))]
    with pytest.raises(InputError, match=f"there are only {min(count, 2)} {fewer}"):
        selected(tmp_path / "out", lines, ["r"] * count)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a a a a", True), ("a a a", False), ("x a b a b a b a b y", True), ("a b a b a b", False),
        ("a b c d " * 4, True), ("a b c d e " * 4, False), ("", False), ("a b a a b a a", False),
        ("我们" * 4 + "走。", True), ("他说、" + "一个大房子、" * 4, True), ("我们" * 3, False),
        ("哈哈哈哈、很好", False), ("とても" * 4, True), ("กรุงเทพมหานคร" * 4, True),
        ("他有 1000000 元", False), ("在 GPU 上、" * 4, True),
    ],
)  # fmt: skip
def test_repetitive_text(text: str, expected: bool) -> None:
    assert is_repetitive(text) is expected


@pytest.mark.parametrize(
    "options", [{"keep": 0.0}, {"keep": 1.1}, {"metric": "ter"}, {"hypotheses": 0}], ids=str
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        SelectionOptions(**options)

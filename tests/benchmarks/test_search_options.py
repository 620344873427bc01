"""Cost of search options: a report of a tiny bundle, its table, and options without a search."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime import SearchOptions, native

pytestmark = pytest.mark.slow


def test_every_option_has_a_search() -> None:
    from search_options import SAME_WORK, SEARCHES

    measured = {name for group in SEARCHES.values() for one in group for name in one.options}
    options = {field.name for field in dataclasses.fields(SearchOptions)} - {"beam_size"}
    assert measured | SAME_WORK == options
    assert not measured & SAME_WORK
    names = [one.name for group in SEARCHES.values() for one in group]
    assert len(names) == len(set(names))
    for beam_size, group in SEARCHES.items():
        assert not group[0].options
        for one in group:
            SearchOptions(beam_size=beam_size, **one.options)


def test_times_are_compared_row_by_row_in_each_round() -> None:
    from search_options import FIRST_TOKEN, Run, summarize

    def runs(rows: int, *seconds: float) -> list[Run]:
        return [Run(one, 2 * one, steps=5, rows=rows, target_tokens=40) for one in seconds]

    samples = {
        FIRST_TOKEN: runs(10, 1.0, 1.0, 2.0),
        "first": runs(60, 2.0, 3.0, 6.0),
        "other": runs(110, 5.0, 5.0, 6.0),
    }
    found = summarize(samples, 10)
    assert list(found) == ["first", "other"]
    assert found["other"] == {
        "lines_per_second": [2.0, pytest.approx(10 / 6), 2.0],
        "steps": 5,
        "rows": 110,
        "target_tokens": 40,
        "seconds_of_row": [0.04, 0.04, 0.04],
        "this / first": [1.0, 0.5, 2.0],
        "this / first, processor": [1.0, 0.5, 2.0],
    }
    assert found["first"]["this / first"] == [1.0, 1.0, 1.0]
    assert summarize({}, 10) == {}


@pytest.fixture
def report(
    tmp_path: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Measure a bundle without attention."""
    import search_options

    if native.library() is None:
        pytest.skip(native.status())
    source, out = tmp_path / "test.en", tmp_path / "report.json"
    source.write_text("a cat\n\nthe dog runs\nthe house\n", encoding="utf-8")
    command = ["search_options.py", "--bundle", compiled_bundle, "--source", source, "--out", out]
    command += ["--rounds", 1, "--lines", 2, "--max-length", 50]
    monkeypatch.setattr(sys, "argv", list(map(str, command)))
    search_options.main()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_table_of_a_report(report: dict[str, Any]) -> None:
    from performance_tables import render_search_options
    from search_options import SEARCHES

    assert report["settings"]["lines"] == 2  # the blank one is not among them
    assert report["results"]["left_out"] == {
        one.name: "no bundle is given as --with-attention."
        for one in SEARCHES[4]
        if one.on_attention
    }
    text = render_search_options(report)
    assert "2 lines of test.en, onnx-fp32" in text
    assert "at most 50 tokens. One worker, 1 thread; 1 round in turn" in text
    assert "- return_attention: no bundle is given as --with-attention." in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    names = [row[0].removeprefix("| ") for row in rows]
    for beam_size, head in ((4, "search with 4 beams"), (1, "search with 1 beam")):
        expected = [one.name for one in SEARCHES[beam_size] if not one.on_attention]
        first = names.index(head) + 2
        assert names[first : first + len(expected)] == expected
        assert rows[first][4] == "1.00 [1.00, 1.00]"


def test_what_a_bundle_refuses_is_left_out(report: dict[str, Any]) -> None:
    from performance_tables import render_search_options

    report["results"]["beams"]["1"] = {}
    report["settings"]["max_length"] = None
    text = render_search_options(report)
    assert "1 beam " not in text
    assert "vocabulary" in text
    assert "at most" not in text


def test_a_source_without_lines(
    tmp_path: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import search_options

    source = tmp_path / "empty.en"
    source.write_text("\n\n")
    command = ["search_options.py", "--bundle", str(compiled_bundle), "--source", str(source)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match=r"empty\.en has no line of 1 to \d+ tokens"):
        search_options.main()
    monkeypatch.setattr(sys, "argv", [*command, "--target", "onnx-int4"])
    with pytest.raises(SystemExit, match=r"error: .*onnx-int4"):
        search_options.main()

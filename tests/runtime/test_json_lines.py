"""JSON lines of translations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.json_lines import UNTRANSLATED, json_line, read_json_lines
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    segments = (Hypothesis((5,), -1.5, (-0.5, -math.inf), truncated=True),)
    best, other = TextHypothesis("a\u2028b", -1.5, segments), TextHypothesis("", -math.inf)
    path = tmp_path / "t.jsonl"
    lines = [json_line("x", Translation((best, other))), UNTRANSLATED]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    first, second = read_json_lines(path)
    assert first == (
        "x",
        [("a\u2028b", -1.5, [-0.5, -math.inf], True), ("", -math.inf, [], False)],
    )
    assert second == (None, [])


@pytest.mark.parametrize(
    "line",
    [
        "no JSON", "[]", "{}", '{"source": "x"}', '{"source": 3, "hypotheses": []}',
        '{"source": "x", "hypotheses": [{"text": "a"}]}', "[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_lines_are_refused_by_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps({'source': 'x', 'hypotheses': []})}\n{line}\n")
    with pytest.raises(InputError, match="line 2 is no translation"):
        list(read_json_lines(path))

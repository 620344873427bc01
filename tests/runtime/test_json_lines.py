"""JSON lines of translations."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
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
    assert first == ("x", [("a\u2028b", -1.5, [-0.5, -math.inf], True), ("", -math.inf, [], False)])
    assert second == (None, [])


@pytest.mark.parametrize("compressed", [False, True])
def test_other_fields_and_compression(tmp_path: Path, compressed: bool) -> None:
    segment = Hypothesis((5,), -0.5, (-0.5, -0.5), attention=np.eye(2, dtype=np.float32))
    line = json_line("x", Translation((TextHypothesis("a", -0.5, (segment,)),)))
    assert "attention" in line
    content = f"{line}\n".encode()
    path = tmp_path / "t.jsonl"
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert list(read_json_lines(path)) == [("x", [("a", -0.5, [-0.5, -0.5], False)])]


HYPOTHESIS = '{"text": "a", "score": 0, "token_log_probs": [], "truncated": false}'
TRANSLATION = f'{{"source": "x", "hypotheses": [{HYPOTHESIS}]}}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "Expecting"),
        ('{"source": "x", "hypo', "Unterminated"),
        ("[]", "list instead"),
        ('{"line": 3, "reason": "too long"}', "source is missing"),
        ('{"source": "x"}', "hypotheses is missing"),
        ('{"source": 3, "hypotheses": []}', "source"),
        ('{"source": "x", "hypotheses": ""}', "hypotheses"),
        ('{"source": "x", "hypotheses": ["a"]}', "str instead"),
        ('{"source": "\xff", "hypotheses": []}', "0xff"),
        *(
            (TRANSLATION.replace(old, new), reason)
            for old, new, reason in (
                ('"text": "a"', '"text": null', "text is not a string"),
                ('"score": 0, ', "", "score is missing"),
                ('"score": 0', '"score": "0"', "score has a value that is no number"),
                ('"score": 0', '"score": true', "score has a value that is no number"),
                ('"score": 0', '"score": NaN', "NaN is no number of JSON"),
                ('"score": 0', '"score": 1' + "0" * 400, "too large to convert to float"),
                ('probs": []', 'probs": "12"', "token_log_probs is not a list"),
                ('probs": []', 'probs": [[]]', "token_log_probs has a value that is no number"),
                ("false", "0", "truncated is not true or false"),
            )
        ),
    ],
)  # fmt: skip
def test_damaged_lines_are_refused_by_number(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(f"{TRANSLATION}\n{line}\n".encode("latin-1"))
    lines = read_json_lines(path)
    assert next(lines) == ("x", [("a", 0.0, [], False)])  # before the damage is read
    with pytest.raises(InputError) as caught:
        next(lines)
    assert str(caught.value).startswith(f"{path}, line 2 is no translation as ")
    assert reason in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(InputError, match="file"):
        list(read_json_lines(path))
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"line 1.*translation"):
        list(read_json_lines(path))
    path.write_bytes(gzip.compress(f"{TRANSLATION}\n".encode() * 9)[:-9])
    with pytest.raises(InputError, match="damaged or incomplete"):
        list(read_json_lines(path))

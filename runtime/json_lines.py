"""Translations with all hypotheses as JSON lines: of `translate --json` and `corpus --json`.

Each line is an object: `source`, and `hypotheses` from best to worst, each with `text`, `score`,
`token_log_probs` and `truncated`. A line that `corpus` could not translate has no hypotheses, and
its source is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.runtime.results import TextHypothesis, Translation

#: The line of a text that could not be translated.
UNTRANSLATED = '{"source": null, "hypotheses": []}'


class ScoredText(NamedTuple):
    """Hypothesis of a JSON line.

    Attributes:
        text: Translation.
        score: Score of the search; minus infinity if the line has null.
        token_log_probs: Log-probabilities of the generated tokens, likewise.
        truncated: Whether the maximum length was reached before the end symbol.
    """

    text: str
    score: float
    token_log_probs: list[float]
    truncated: bool


def json_line(source: str, translation: Translation) -> str:
    """Format the translation of a line as JSON, without a line end."""
    hypotheses = [_json_hypothesis(hypothesis) for hypothesis in translation.hypotheses]
    # JSON escapes line ends within strings, and readers of JSON lines ignore U+2028.
    return json.dumps({"source": source, "hypotheses": hypotheses}, ensure_ascii=False)


def _json_hypothesis(hypothesis: TextHypothesis) -> dict[str, Any]:
    value: dict[str, Any] = {
        "text": hypothesis.text,
        "score": _json_number(hypothesis.score),
        "token_log_probs": [_json_number(number) for number in hypothesis.token_log_probs],
        "truncated": hypothesis.truncated,
    }
    attention = [
        segment.attention for segment in hypothesis.segments if segment.attention is not None
    ]
    if attention:
        value["attention"] = [matrix.astype(float).round(6).tolist() for matrix in attention]
    return value


def _json_number(number: float) -> float | None:
    """Convert a number to JSON, which has no infinity: the log-probability of 0 becomes null."""
    return float(number) if math.isfinite(number) else None


def read_json_lines(path: Path) -> Iterator[tuple[str | None, list[ScoredText]]]:
    """Iterate over the sources and hypotheses of a file of JSON lines.

    Raises:
        InputError: The file cannot be read, or a line is damaged.
    """
    with open_input(str(path)) as stream:
        for number, line in enumerate(read_lines(stream, str(path)), start=1):
            try:
                value = json.loads(line)
                source = value["source"]
                if not isinstance(source, str | None):
                    raise TypeError("source")
                found = [_scored_text(one) for one in value["hypotheses"]]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(
                    f"{path}, line {number} is no translation as `translate-trt translate --json` "
                    f"writes it ({type(error).__name__}: {error})."
                ) from error
            yield source, found


def _scored_text(value: Any) -> ScoredText:
    text, truncated = value["text"], value["truncated"]
    if not isinstance(text, str) or not isinstance(truncated, bool):
        raise TypeError("text or truncated")
    log_probs = [_number(one) for one in value["token_log_probs"]]
    return ScoredText(text, _number(value["score"]), log_probs, truncated)


def _number(value: Any) -> float:
    return -math.inf if value is None else float(value)

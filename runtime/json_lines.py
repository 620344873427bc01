"""Translations with all hypotheses as JSON lines: of `translate --json` and `corpus --json`.

Each line is an object: `source`, and `hypotheses` from best to worst, each with `text`, `score`,
`token_log_probs`, `truncated` and `looped`, and on request with `attention`, `alignments` and
`terms`. A line that `corpus` could not translate has no hypotheses, and its source is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from translate_trt.runtime.bundle.fields import refuse_constant
from translate_trt.runtime.confidence import Word
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import display_name, open_input, reading, text_lines
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.glossary import Term

#: Returns the words of a hypothesis with their confidences.
WordsOf = Callable[[TextHypothesis], Sequence[Word]]

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


def json_line(
    source: str,
    translation: Translation,
    alignment_threshold: float | None = None,
    words: WordsOf | None = None,
) -> str:
    """Format the translation of a line as JSON, without a line end.

    Args:
        source: Text of the line.
        translation: Its translation.
        alignment_threshold: See `Alignment.pairs`; for translations with alignments.
        words: Returns the words of a hypothesis, which are added; None adds none.
    """
    # JSON escapes line ends within strings, and readers of JSON lines ignore U+2028.
    hypotheses = json_hypotheses(translation, alignment_threshold, words)
    return json.dumps({"source": source, "hypotheses": hypotheses}, ensure_ascii=False)


def json_hypotheses(
    translation: Translation,
    alignment_threshold: float | None = None,
    words: WordsOf | None = None,
) -> list[dict[str, Any]]:
    """Convert the hypotheses of a translation to JSON objects; see `json_line`."""
    return [_json_hypothesis(one, alignment_threshold, words) for one in translation.hypotheses]


def _json_hypothesis(
    hypothesis: TextHypothesis, alignment_threshold: float | None, words: WordsOf | None
) -> dict[str, Any]:
    value: dict[str, Any] = {
        "text": hypothesis.text,
        "score": json_number(hypothesis.score),
        "token_log_probs": [json_number(number) for number in hypothesis.token_log_probs],
        "truncated": hypothesis.truncated,
        "looped": hypothesis.looped,
    }
    if words is not None:
        value["words"] = [
            {"text": one.text, "confidence": round(one.confidence, 6)} for one in words(hypothesis)
        ]
    attention = [
        segment.attention for segment in hypothesis.segments if segment.attention is not None
    ]
    if attention:
        value["attention"] = [matrix.astype(float).round(6).tolist() for matrix in attention]
    if hypothesis.alignment is not None:
        value["alignments"] = hypothesis.alignment.pharaoh(alignment_threshold)
    if hypothesis.terms is not None:
        value["terms"] = [json_term(term) for term in hypothesis.terms]
    return value


def json_term(term: Term) -> dict[str, Any]:
    """Convert a term of a glossary to a JSON object."""
    return {"source": term.source, "targets": [*term.targets], "found": term.found}


def json_number(number: float) -> float | None:
    """Convert a number to JSON, which has no infinity: the log-probability of 0 becomes null."""
    return float(number) if math.isfinite(number) else None


def read_json_lines(path: Path) -> Iterator[tuple[str | None, list[ScoredText]]]:
    """Iterate over the sources and hypotheses of a file of JSON lines; see `read_json_objects`.

    Other fields, such as attention, are ignored.
    """
    for value, found in read_json_objects(str(path)):
        yield value["source"], found


def read_json_objects(path: str) -> Iterator[tuple[dict[str, Any], list[ScoredText]]]:
    """Iterate over the objects of a file of JSON lines, and their hypotheses.

    Args:
        path: Path of a file, which may be compressed, or "-" for standard input.

    Raises:
        InputError: The file cannot be read, or a line is damaged. Bytes that are not UTF-8 are
            damage, too, because these files are written by programs.
    """
    name = display_name(path)
    with open_input(path) as stream, reading(name):
        for number, raw in enumerate(text_lines(stream, name), start=1):
            yield _parse(raw, name, number)


def _parse(raw: bytes, name: str, number: int) -> tuple[dict[str, Any], list[ScoredText]]:
    try:
        text = raw.rstrip(b"\r\n").decode("utf-8")
        value = json.loads(text, parse_constant=refuse_constant)
        _field(value, "source", str | None, "a string or null")
        found = _field(value, "hypotheses", list, "a list")
        return value, [_scored_text(one) for one in found]
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{name}, line {number} is no translation as `translate-trt translate --json` writes "
            f"it ({json_reason(error)}); the file is damaged or of another kind."
        ) from error


def json_reason(error: Exception) -> str:
    """Return what is wrong with a line of JSON, for messages, without the line number 1."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _scored_text(value: Any) -> ScoredText:
    log_probs = _field(value, "token_log_probs", list, "a list")
    return ScoredText(
        text=_field(value, "text", str, "a string"),
        score=_number("score", _field(value, "score", object, "")),
        token_log_probs=[_number("token_log_probs", one) for one in log_probs],
        truncated=_field(value, "truncated", bool, "true or false"),
    )


def _field(value: Any, name: str, kind: Any, kind_name: str) -> Any:
    """Return a field of an object; ValueError if it is missing or of another type."""
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} instead of an object")
    if name not in value:
        raise ValueError(f"{name} is missing")
    if not isinstance(value[name], kind):
        raise ValueError(f"{name} is not {kind_name}")
    return value[name]


def _number(name: str, value: Any) -> float:
    if value is None:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} has a value that is no number")
    return float(value)

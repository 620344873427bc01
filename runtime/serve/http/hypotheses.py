"""Hypotheses of an answer: scores, confidences and alignments."""

from __future__ import annotations

from typing import Any

from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.http.messages import TextQuery, TranslateQuery
from translate_trt.runtime.serve.http.routing import Route
from translate_trt.runtime.translator import Translator


def describe_hypotheses(
    query: TranslateQuery, route: Route, by_hops: list[Translation]
) -> list[dict[str, Any]]:
    """Return the hypotheses of a text as JSON values.

    Args:
        query: The request, which says what is asked for.
        route: Bundles that translated the text.
        by_hops: Its translation by each bundle; those before the last have one hypothesis.
    """
    wanted = by_hops[-1].hypotheses[: query.num_hypotheses or query.alternatives + 1]
    before = [one.hypotheses[0] for one in by_hops[:-1]]
    return [_describe(query, route, before, one) for one in wanted]


def describe_words(
    query: TextQuery,
    route: Route,
    before: list[TextHypothesis],
    found: TextHypothesis,
) -> dict[str, Any]:
    """Return the words and alignments of a translation, as far as the request asks for them.

    Args:
        query: The request.
        route: Bundles that translated the text.
        before: Its translations by the bundles before the last.
        found: Its translation by the last one.
    """
    described: dict[str, Any] = {}
    if query.words:
        words = route.hops[-1].bundle.translator.words(found) if route.hops else []
        described["words"] = [
            {"text": one.text, "confidence": round(one.confidence, 4)} for one in words
        ]
    if query.alignments:
        described["alignments"] = _aligned([*before, found])
    return described


def _describe(
    query: TranslateQuery, route: Route, before: list[TextHypothesis], found: TextHypothesis
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "text": found.text,
        "score": found.score,
        "truncated": found.truncated,
        "looped": found.looped,
        **describe_words(query, route, before, found),
    }
    if query.tokens:
        translator = route.hops[-1].bundle.translator if route.hops else None
        described["tokens"] = [] if translator is None else _tokens(translator, found)
    return described


def _tokens(translator: Translator, found: TextHypothesis) -> list[dict[str, Any]]:
    """Return the tokens with their log-probabilities, without the end symbol."""
    pieces = translator.tokenizer.target_pieces
    return [
        {"text": piece, "log_prob": round(value, 4)}
        for segment in found.segments
        for piece, value in zip(
            pieces(segment.tokens), segment.token_log_probs[: len(segment.tokens)], strict=True
        )
    ]


def _aligned(chain: list[TextHypothesis]) -> list[tuple[int, int]]:
    """Return aligned words; through a pivot language, words that meet in one of its words."""
    pairs: list[tuple[int, int]] | None = None
    for one in chain:
        own = [] if one.alignment is None else one.alignment.pairs()
        if pairs is None:
            pairs = own
        else:
            targets: dict[int, list[int]] = {}
            for begin, target in own:
                targets.setdefault(begin, []).append(target)
            pairs = sorted(
                {(source, end) for source, through in pairs for end in targets.get(through, ())}
            )
    return pairs or []

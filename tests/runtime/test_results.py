"""Translations of several segments."""

from __future__ import annotations

from translate_trt.runtime import Hypothesis, TextHypothesis, Translation

SEGMENTS = (Hypothesis((5, 6), -1.0, (-0.5, -0.5, 0.0)), Hypothesis((7,), -2.0, (-2.0,), True))
FOUND = Translation((TextHypothesis("Haus Hund", -3.0, SEGMENTS),))


def test_a_line_joins_its_segments() -> None:
    (best,) = FOUND.hypotheses
    assert FOUND.segment_count == 2
    assert best.token_log_probs == (-0.5, -0.5, 0.0, -2.0)
    assert best.truncated

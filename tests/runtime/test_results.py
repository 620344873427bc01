"""Translations, and the former names of their properties."""

from __future__ import annotations

import pytest

from translate_trt.runtime import Hypothesis, TextHypothesis, Translation

SEGMENTS = (Hypothesis((5, 6), -1.0, (-0.5, -0.5, 0.0)), Hypothesis((7,), -2.0, (-2.0,), True))
FOUND = Translation((TextHypothesis("Haus Hund", -3.0, SEGMENTS),))


def test_a_line_joins_its_segments() -> None:
    (best,) = FOUND.hypotheses
    assert FOUND.segment_count == 2
    assert best.token_log_probs == (-0.5, -0.5, 0.0, -2.0)
    assert best.truncated


def test_former_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="pieces is now segments") as warned:
        assert FOUND.hypotheses[0].pieces == SEGMENTS
    with pytest.warns(DeprecationWarning, match="piece_count is now segment_count"):
        assert FOUND.piece_count == 2
    assert warned[0].filename == __file__

"""The graph that checks TopK's order among equal values."""

from __future__ import annotations

import pytest


@pytest.mark.nightly
def test_the_graph_builds() -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    from topk_ties import SHAPES, graph

    from translate_trt.export.engines.builder import build_engine
    from translate_trt.export.engines.network import load_builder
    from translate_trt.export.engines.options import EngineOptions
    from translate_trt.runtime.backends.engines import Profile

    options = EngineOptions(cache=None, compute_capabilities=("8.9",))
    engine = build_engine(load_builder("tensorrt_rtx"), graph(), (Profile(1, 1),), options)
    assert engine.record.layers["TOPK"] == len(SHAPES)

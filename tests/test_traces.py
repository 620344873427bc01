"""Graphs that tests trace once per structure are those that tracing anew yields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from support.models import EVERYTHING_ELSE, LEARNED_POSITIONS
from support.shared import SharedFiles
from support.traces import cached_trace, structure

from translate_trt.export import compile as compile_module
from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.graphs import EncoderGraph, StepGraph
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.export.trace import trace
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.nightly

LIMITS = Limits(10, 60)
SMALL: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24}


CONTRACT = ensemble_contract([ModelConfig(heads=2, **SMALL)])


def random_model(seed: int, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(vocabulary_size=310, heads=2, **(changes | SMALL)))
    for parameter in model.parameters():  # biases too, which begin as zeros
        torch.nn.init.normal_(parameter)
    return model.eval()


@pytest.mark.parametrize(
    "changes", [EVERYTHING_ELSE, LEARNED_POSITIONS], ids=["everything else", "learned positions"]
)
def test_other_weights_in_a_kept_graph_are_a_new_trace(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []

    def counted(*arguments: Any) -> ir.Model:
        traced.append(arguments)
        return trace(*arguments)

    monkeypatch.setattr("support.traces.trace", counted)
    monkeypatch.setattr(compile_module, "trace", cached_trace(SharedFiles(tmp_path)))
    model = random_model(1, **changes)
    contract = ensemble_contract([model.config], attention=True)
    trace_graphs(model, LIMITS, contract, DYNAMIC_OPSET)
    model = random_model(2, **changes)
    kept = trace_graphs(model, LIMITS, contract, DYNAMIC_OPSET)
    assert len(traced) == 2
    monkeypatch.setattr(compile_module, "trace", trace)
    fresh = trace_graphs(model, LIMITS, contract, DYNAMIC_OPSET)
    for name in ("encoder", "step"):
        found, right = (
            ir.to_proto(graphs[name]).SerializeToString(deterministic=True)
            for graphs in (kept, fresh)
        )
        assert found == right, name


def test_structures_differ_in_all_but_weights() -> None:
    def structures(seed: int, **changes: Any) -> list[object]:
        model = random_model(seed, **changes)
        return [structure(EncoderGraph(model, 10)), structure(StepGraph(model, 60, CONTRACT))]

    right = structures(1)
    assert structures(2) == structures(1, dropout=0.3) == right
    for changes in (EVERYTHING_ELSE, LEARNED_POSITIONS, {"tied": "none"}, {"activation": "gelu"}):
        for one, other in zip(structures(1, **changes), right, strict=True):
            assert one != other, changes
    model = random_model(1)
    assert structure(EncoderGraph(model, 11)) != right[0]
    assert structure(StepGraph(model, 61, CONTRACT)) != right[1]
    with_attention = ensemble_contract([model.config], attention=True)
    assert structure(StepGraph(model, 60, with_attention)) != right[1]
    # Of two layers that share a tensor a graph has one name alone.
    sharing, separate = random_model(1), random_model(1)
    norm = sharing.decoder_layers[0].cross_attention_norm.norm
    norm.weight = sharing.decoder_layers[0].self_attention_norm.norm.weight
    assert structure(StepGraph(sharing, 60, CONTRACT)) != structure(
        StepGraph(separate, 60, CONTRACT)
    )

"""Graphs that tests trace once per structure are those that tracing anew yields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from support.models import EVERYTHING_ELSE, LEARNED_POSITIONS
from support.shared import SharedFiles
from support.traces import cached_trace

from translate_trt.export import compile as compile_module
from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.export.trace import trace
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.nightly

LIMITS = Limits(10, 60)
SMALL: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24}


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

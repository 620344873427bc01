"""CUDA graphs, with a fake of capture and replay that has their static tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from translate_trt.train.config import ModelConfig
from translate_trt.train.cuda_graphs import WIDEST, WIDTH_STEP, keep_gradients, padded_shape
from translate_trt.train.data.batches import ParallelData, encode_parallel, epoch_batches
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.objective import Objective
from translate_trt.train.trainer.run import prepare_job

SMALL = ModelConfig(
    vocabulary_size=50, encoder_layers=2, decoder_layers=2, d_model=16, d_ff=32, heads=2, dropout=0
)
TOKENS = 60


class Replay(torch.autograd.Function):
    """Forward and backward pass over static tensors, as those of make_graphed_callables."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, count: int, *values: torch.Tensor) -> torch.Tensor:
        for own, given in zip(graph.inputs, values[:count], strict=True):
            own.copy_(given)
        with torch.enable_grad():
            graph.output = graph.module(*graph.inputs)
        ctx.graph, ctx.count = graph, count
        graph.shown.copy_(graph.output)
        return graph.shown.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        graph = ctx.graph
        found = torch.autograd.grad(graph.output, graph.weights, gradient, allow_unused=True)
        for own, new in zip(graph.gradients, found, strict=True):
            own.copy_(torch.zeros_like(own) if new is None else new)
        return (None, None, *(None,) * ctx.count, *(own.detach() for own in graph.gradients))


class Graph:
    """Module with the static inputs, output and gradients of a captured one."""

    def __init__(self, module: nn.Module, samples: tuple[torch.Tensor, ...]) -> None:
        assert module.training
        self.module, self.inputs = module, samples
        self.weights = list(module.parameters())
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        self.output = module(*samples)
        self.shown = self.output.detach().clone()

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        assert [x.shape for x in inputs] == [x.shape for x in self.inputs]
        found: torch.Tensor = Replay.apply(self, len(inputs), *inputs, *self.weights)
        return found


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Graphs that have been captured."""
    graphs: list[Graph] = []

    def capture(
        module: nn.Module, samples: tuple[torch.Tensor, ...], *, allow_unused_input: bool, pool: int
    ) -> Graph:
        assert allow_unused_input
        assert pool == 7
        graphs.append(Graph(module, samples))
        return graphs[-1]

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 7)
    return graphs


def pairs(count: int = 60, longest: int = 14) -> ParallelData:
    random = np.random.default_rng(0)

    def sentences() -> list[list[int]]:
        return [random.integers(4, 50, random.integers(1, longest)).tolist() for _ in range(count)]

    return encode_parallel(sentences(), sentences(), None)


def gradients(
    model: Transformer, graphs: bool, data: ParallelData, batches: list[np.ndarray[Any, Any]]
) -> tuple[torch.Tensor, ...]:
    """Return the losses of batches, and the sums of their gradients."""
    objective = Objective(model, 0.1, torch.float32, fuse=False, graphs=graphs)
    model.zero_grad()
    if graphs:
        keep_gradients(model)
    losses = []
    for rows in batches:
        found = objective(data.batch(rows))
        found.loss.backward()
        losses.append(found.smoothed.detach())
    weights = (p.grad for p in model.parameters())
    return torch.stack(losses), *(g.clone() for g in weights if g is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "tied": "none", "decoder_ties": "1,1"},
        {"source_end": False, "decoder_mixer": "ssru"},
    ],
)
def test_gradients_are_those_without_graphs(changes: dict[str, Any], captured: list[Graph]) -> None:
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(SMALL, **changes)).train()
    plain = pairs().for_model(model)
    padded = dataclasses.replace(plain, graph_tokens=TOKENS)
    batches = epoch_batches(padded, TOKENS, 1, 0)
    expected = gradients(model, False, plain, batches)
    found = gradients(model, True, padded, batches)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
    shapes = {tuple(graph.inputs[0].shape) for graph in captured}
    assert shapes == {(TOKENS // width, width) for _, width in shapes}
    assert len(captured) == len(shapes) < len(batches) / 3


def test_wide_batches_have_no_graph(captured: list[Graph]) -> None:
    model = Transformer(SMALL).train()
    padded = dataclasses.replace(pairs(4, 150).for_model(model), graph_tokens=TOKENS)
    rows = np.flatnonzero(padded.source.lengths > WIDEST)
    assert len(rows)
    gradients(model, True, padded, [rows])
    assert not captured


def test_shapes_are_few_and_hold_the_tokens() -> None:
    for longest in range(1, 300):
        rows, width = padded_shape(1, longest, 1_000)
        assert 0 <= width - longest < WIDTH_STEP
        assert width % WIDTH_STEP == 0
        assert rows == max(1, 1_000 // width)
    assert padded_shape(9, 8, 40) == (9, 8)


def test_a_run_reaches_the_weights_of_one_without_graphs(
    text: TextFiles,
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    captured: list[Graph],
) -> None:
    weights = []
    make: Callable[..., Any] = Trainer
    for graphs in (True, False):
        monkeypatch.setattr(Trainer, "_can_graph", lambda self, graphs=graphs: graphs)
        changes = {"dropout": 0.0, "steps": 6, "micro_batch_tokens": 128, "batch_tokens": 256}
        out = tmp_path_factory.mktemp("runs") / "run"
        trainer = make(prepare_job(text, out, "tiny", settings | changes), Group(CPU))
        if not graphs:  # the same sentences in each step
            monkeypatch.setattr(trainer.objective, "graphs", None)
            monkeypatch.setattr(trainer, "graphs", True)
        trainer.run()
        # The gradient of these biases is 0 but for rounding, which Adam magnifies.
        state = trainer.model.state_dict()
        weights.append({name: x for name, x in state.items() if not name.endswith("key.bias")})
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-5)
    assert captured


CPU = torch.device("cpu")

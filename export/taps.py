"""Taps: record the residual stream of a PyTorch model, or make a graph's module return it.

The residual stream of a stack is its embedding and the result of each sub-layer (sections 3.1 and
5.4). Fusions never cross one of its tensors, and a pass hands on the names of values it replaces,
so the tensors survive every pass. `compile` names them in the graphs, where `verify --layers`,
Polygraphy and Netron find them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from translate_trt.export.ensemble import EnsembleStepGraph, labelled
from translate_trt.export.graphs import StepGraph
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Residual, Transformer
from translate_trt.train.search import Ensemble

#: Name of the tensor after the residual stream, in graphs with logits of the whole vocabulary.
LOGITS = "logits"
#: Stack that each graph runs, by the name of the graph.
STACKS = {"encoder": "encoder", "step": "decoder"}


def sublayers(config: ModelConfig, stack: str) -> tuple[str, ...]:
    """Names of the sub-layers of a stack's layers, in order."""
    if stack == "encoder":
        return ("self_attention", "feed_forward")
    return ("ssru" if config.is_recurrent else "self_attention", "cross_attention", "feed_forward")


def stream(config: ModelConfig, stack: str) -> tuple[str, ...]:
    """Names of a stack's residual stream: the embedding, then each sub-layer, bottom first."""
    layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
    names = sublayers(config, stack)
    return (f"{stack}.embedding", *(f"{stack}.{i}.{name}" for i in range(layers) for name in names))


@contextmanager
def recording(model: Transformer, stack: str) -> Iterator[dict[str, Tensor]]:
    """Record the residual stream of a stack, by name, each time it runs.

    Args:
        model: The PyTorch model, possibly part of a module that is being traced.
        stack: Name of the stack, "encoder" or "decoder".

    Yields:
        The tensors of the latest run by name, in the order of `stream`.
    """
    layers: list[Any] = getattr(model, f"{stack}_layers")
    kinds = sublayers(model.config, stack)
    residuals: list[Residual] = [
        getattr(layer, f"{kind}_norm") for layer in layers for kind in kinds
    ]
    names = stream(model.config, stack)
    found: dict[str, Tensor] = {}
    if model.config.norm == "pre":  # the residual sum is the input of the next norm
        norms = [*(residual.norm for residual in residuals), getattr(model, f"{stack}_norm")]
        hooks = [
            norm.register_forward_pre_hook(_recorder(of_norm, found))
            for norm, of_norm in _by_module(norms, names)
        ]
    else:
        first = getattr(layers[0], kinds[0])
        skipped = [""] * (layers.count(layers[0]) - 1)  # of later layers with the same weights
        embedding = itertools.cycle([names[0], *skipped])
        matmul = first.forget if kinds[0] == "ssru" else first.query
        hooks = [matmul.register_forward_pre_hook(_recorder(embedding, found))]
        norms = [residual.norm for residual in residuals]
        for norm, of_norm in _by_module(norms, names[1:]):
            hooks.append(norm.register_forward_hook(_recorder(of_norm, found)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


class Taps(NamedTuple):
    """Names of tapped tensors, in order.

    Attributes:
        stream: The residual streams of the model, or of all members of an ensemble.
        logits: The logits of the whole vocabulary, in a step without a shortlist.
    """

    stream: tuple[str, ...]
    logits: tuple[str, ...]


@contextmanager
def tapped(module: nn.Module, model: Transformer | Ensemble, graph: str) -> Iterator[Taps]:
    """Make a graph's module return its tapped tensors after its own outputs.

    Args:
        module: An encoder or step graph of a model or an ensemble.
        model: The model or ensemble inside the module.
        graph: Name of the graph, "encoder" or "step".

    Yields:
        The names of the tapped tensors, which begin with the label of an ensemble's member.
    """
    stack, members = STACKS[graph], labelled(model)
    with ExitStack() as hooks:
        recorded = [
            (prefix, stream(one.config, stack), hooks.enter_context(recording(one, stack)))
            for prefix, one in members
        ]
        logits: dict[str, Tensor] = {}
        names = tuple(f"{prefix}{LOGITS}" for prefix, _ in members)
        searched: nn.Module | None = None
        if isinstance(module, StepGraph) and module.contract.shortlist is None:
            searched = module.search
        elif isinstance(module, EnsembleStepGraph):
            searched = module.total
        if searched is None:
            names = ()
        else:

            def read(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                logits.update(zip(names, inputs, strict=False))

            hooks.callback(searched.register_forward_pre_hook(read).remove)

        def append(_: nn.Module, __: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Any:
            of_streams = (found[name] for _, own, found in recorded for name in own)
            return (*outputs, *of_streams, *(logits[name] for name in names))

        hooks.callback(module.register_forward_hook(append).remove)
        streams = tuple(f"{prefix}{name}" for prefix, own, _ in recorded for name in own)
        yield Taps(streams, names)


def _by_module(
    modules: Sequence[nn.Module], names: Sequence[str]
) -> list[tuple[nn.Module, Iterator[str]]]:
    """Assign names to the calls of modules, of which some run several times, in order.

    Returns:
        Each distinct module with the names of its calls, over and over.
    """
    named: dict[nn.Module, list[str]] = {}
    for module, name in zip(modules, names, strict=True):
        named.setdefault(module, []).append(name)
    return [(module, itertools.cycle(of_module)) for module, of_module in named.items()]


def _recorder(names: Iterator[str], found: dict[str, Tensor]) -> Callable[..., None]:
    """Return a hook that records a module's input, or its output, unless its name is empty."""

    def hook(_: nn.Module, *values: Any) -> None:
        value = values[-1]
        if name := next(names):
            found[name] = value[0] if isinstance(value, tuple) else value

    return hook

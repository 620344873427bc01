"""Taps: record the residual stream of a PyTorch model, or make a graph's module return it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from translate_trt.export.graphs import StepGraph
from translate_trt.export.residual_stream import LOGITS, STACKS, stream, sublayers
from translate_trt.train.model import Residual, Transformer


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
    hooks = []
    if model.config.norm == "pre":  # the residual sum is the input of the next norm
        norms = [*(residual.norm for residual in residuals), getattr(model, f"{stack}_norm")]
        for norm, of_norm in _by_module(norms, names):
            hooks.append(_on_input(norm, of_norm, found))
    else:
        first = getattr(layers[0], kinds[0])
        skipped = [""] * (layers.count(layers[0]) - 1)  # of later layers with the same weights
        embedding = itertools.cycle([names[0], *skipped])
        hooks.append(
            _on_input(first.forget if kinds[0] == "ssru" else first.query, embedding, found)
        )
        for norm, of_norm in _by_module([residual.norm for residual in residuals], names[1:]):
            hooks.append(_on_output(norm, of_norm, found))
    try:
        yield found
    finally:
        for remove in hooks:
            remove()


@contextmanager
def tapped(module: nn.Module, model: Transformer, graph: str) -> Iterator[tuple[str, ...]]:
    """Make a graph's module return its tapped tensors after its own outputs.

    Args:
        module: An `EncoderGraph` or a `StepGraph`.
        model: The model inside the module.
        graph: Name of the graph, "encoder" or "step".

    Yields:
        The names of the tapped tensors, in order.
    """
    names = stream(model.config, STACKS[graph])
    with recording(model, STACKS[graph]) as found:
        hooks = []
        # With a shortlist there are no logits of the whole vocabulary.
        if isinstance(module, StepGraph) and module.contract.shortlist is None:
            names = (*names, LOGITS)
            hooks.append(_on_input(module.search, itertools.repeat(LOGITS), found))
        hooks.append(
            module.register_forward_hook(
                lambda _, __, outputs: (*outputs, *(found[name] for name in names))
            ).remove
        )
        try:
            yield names
        finally:
            for remove in hooks:
                remove()


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


def _on_input(
    module: nn.Module, names: Iterator[str], found: dict[str, Tensor]
) -> Callable[[], None]:
    """Record a module's input in each call, unless its name is empty.

    Returns:
        A function that removes the hook.
    """

    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if name := next(names):
            found[name] = inputs[0]

    return module.register_forward_pre_hook(hook).remove


def _on_output(
    module: nn.Module, names: Iterator[str], found: dict[str, Tensor]
) -> Callable[[], None]:
    """Record a module's output in each call; return a function that removes the hook."""

    def hook(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        found[next(names)] = output

    return module.register_forward_hook(hook).remove

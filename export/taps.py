"""Taps: record the residual stream of a PyTorch model, or make a graph's module return it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from translate_trt.export.graphs import StepGraph
from translate_trt.export.residual_stream import LOGITS, STACKS, SUBLAYERS, stream
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
    residuals: list[Residual] = [
        getattr(layer, f"{name}_norm") for layer in layers for name in SUBLAYERS[stack]
    ]
    names = stream(stack, len(layers))
    found: dict[str, Tensor] = {}
    if model.config.norm == "pre":  # the residual sum is the input of the next norm
        norms = [*(residual.norm for residual in residuals), getattr(model, f"{stack}_norm")]
        hooks = [_on_input(norm, name, found) for norm, name in zip(norms, names, strict=True)]
    else:
        hooks = [_on_input(layers[0].self_attention.query, names[0], found)]
        hooks += [
            _on_output(residual.norm, name, found)
            for residual, name in zip(residuals, names[1:], strict=True)
        ]
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
    names = stream(STACKS[graph], len(getattr(model, f"{STACKS[graph]}_layers")))
    with recording(model, STACKS[graph]) as found:
        hooks = []
        # With a shortlist there are no logits of the whole vocabulary.
        if isinstance(module, StepGraph) and module.contract.shortlist is None:
            names = (*names, LOGITS)
            hooks.append(_on_input(module.search, LOGITS, found))
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


def _on_input(module: nn.Module, name: str, found: dict[str, Tensor]) -> Callable[[], None]:
    """Record a module's input; return a function that removes the hook."""

    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found[name] = inputs[0]

    return module.register_forward_pre_hook(hook).remove


def _on_output(module: nn.Module, name: str, found: dict[str, Tensor]) -> Callable[[], None]:
    """Record a module's output; return a function that removes the hook."""

    def hook(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        found[name] = output

    return module.register_forward_hook(hook).remove

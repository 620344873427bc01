"""Roles of tensors, kept in a graph's metadata while it is compiled.

Passes and fusion rules decide by a tensor's role, never by its name: names are for people and for
`verify --layers`. `compile.trace_graphs` sets the roles; `trace.check` removes them before a graph
is saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

#: A table whose rows are looked up by token. Tables of positions have no role: they are small, and
#: keep their precision.
EMBEDDING = "embedding"
#: A tensor of the residual stream (residual_stream.py), which fusions keep as an output.
RESIDUAL = "residual"

_KEY = "translate_trt.role"


def has_role(value: ir.Value | None, role: str) -> bool:
    """Whether a value has that role."""
    return value is not None and value.metadata_props.get(_KEY) == role


def copy_role(source: ir.Value, target: ir.Value) -> None:
    """Give a value the role of the value that it replaces, if that has one."""
    if _KEY in source.metadata_props:
        target.metadata_props[_KEY] = source.metadata_props[_KEY]


def set_roles(model: ir.Model, role: str, names: Collection[str]) -> None:
    """Give every value of these names the role."""
    for value in _values(model.graph):
        if value.name in names:
            value.metadata_props[_KEY] = role


def remove_roles(model: ir.Model) -> None:
    """Remove the roles of all values of the graph."""
    for value in _values(model.graph):
        value.metadata_props.pop(_KEY, None)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs

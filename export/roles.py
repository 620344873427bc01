"""Roles of tensors, kept in a graph's metadata while it is compiled.

Passes and fusion rules decide by a tensor's role, never by its name: names are for people and for
`verify --layers`. `compile.trace_graphs` sets the roles; `trace.check` removes them before a graph
is saved.

The same holds for recorded activation scales: a matrix may have the largest magnitude of what it is
multiplied with (train/activation_scales.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

#: A table whose rows are looked up by token. Tables of positions have no role: they are small, and
#: keep their precision.
EMBEDDING = "embedding"
#: A tensor of the residual stream (taps.py), which fusions keep as an output.
RESIDUAL = "residual"

_KEY = "translate_trt.role"
_INPUT_MAGNITUDE = "translate_trt.input_magnitude"


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
    """Remove the roles and input magnitudes of all values of the graph."""
    for value in _values(model.graph):
        value.metadata_props.pop(_KEY, None)
        value.metadata_props.pop(_INPUT_MAGNITUDE, None)


def set_input_magnitudes(model: ir.Model, magnitudes: Mapping[str, float]) -> None:
    """Set the largest magnitudes of the inputs of matrices, by the names of the matrices."""
    for name, magnitude in magnitudes.items():
        if name in model.graph.initializers:
            matrix = model.graph.initializers[name]
            matrix.metadata_props[_INPUT_MAGNITUDE] = repr(float(magnitude))


def input_magnitude(matrix: ir.Value | None) -> float | None:
    """Return the recorded largest magnitude of a matrix's input; None if there is none."""
    recorded = None if matrix is None else matrix.metadata_props.get(_INPUT_MAGNITUDE)
    return None if recorded is None else float(recorded)


def copy_input_magnitude(matrices: Iterable[ir.Value], target: ir.Value) -> None:
    """Give a matrix that several were made into the largest of their input magnitudes.

    The target has none if one of the matrices has none.
    """
    found = [input_magnitude(matrix) for matrix in matrices]
    known = [magnitude for magnitude in found if magnitude is not None]
    if known and len(known) == len(found):
        target.metadata_props[_INPUT_MAGNITUDE] = repr(max(known))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs

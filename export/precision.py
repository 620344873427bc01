"""Precisions as passes over a float32 graph."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from translate_trt.export.passes.dynamic_int8 import DynamicInt8


def _keep(model: ir.Model) -> None:
    """Float32 is what was traced."""


def _int8(model: ir.Model) -> None:
    DynamicInt8(model).run()


#: What to do to a traced graph, by the precision's name.
PRECISIONS: dict[str, Callable[[ir.Model], None]] = {"fp32": _keep, "int8": _int8}

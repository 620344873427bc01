"""Precision as a pass: what to apply to a float32 graph, by the precision's name."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from translate_trt.export.passes.base import Pass
from translate_trt.export.passes.int8 import DynamicInt8
from translate_trt.export.passes.mixed_precision import MixedPrecision
from translate_trt.export.passes.value_bounds import Bound

_HALF = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def precision_pass(precision: str, bounds: Mapping[str, Bound]) -> Pass | None:
    """The pass that brings a graph to a precision; None for float32, which is what was traced.

    Args:
        precision: "fp32", "fp16", "bf16" or "int8".
        bounds: of the graph's inputs, by name, as far as they are known (see `ranges`).
    """
    if precision in _HALF:
        return MixedPrecision(_HALF[precision], bounds)
    return DynamicInt8() if precision == "int8" else None

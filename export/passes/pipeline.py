"""The passes of each target in order, and the account of what they did."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from translate_trt.export.fused_ops.fuse import FuseOps
from translate_trt.export.passes.attention import FuseAttention, FuseTransposes
from translate_trt.export.passes.base import Pass
from translate_trt.export.passes.fp16_kv_cache import Fp16KvCache
from translate_trt.export.passes.int8 import DynamicInt8
from translate_trt.export.passes.mixed_precision import MixedPrecision
from translate_trt.export.passes.multi_head import FuseMultiHeadAttention
from translate_trt.export.passes.simplify import KeepSizes, Simplify
from translate_trt.export.passes.top_k import TopKFirst
from translate_trt.export.passes.weights import (
    FoldMatmulScales,
    FoldScales,
    MergeMatmuls,
    StoreWeights,
)
from translate_trt.runtime.errors import OptionError, TranslateTrtError

#: What every target has first: the traced graph without what is known beforehand.
COMMON: tuple[Pass, ...] = (
    StoreWeights(),
    Simplify(),
    FoldScales(),
    MergeMatmuls(),
    TopKFirst(),
    KeepSizes(),
)

# The embedding table is the vocabulary's matrix too: kernels for both read the same one.
_WITH_TABLE_AS_IT_IS = tuple(
    FoldMatmulScales() if isinstance(one, FoldScales) else one for one in COMMON
)


@dataclass(frozen=True)
class Report:
    """One line of --explain.

    Attributes:
        graph: "encoder" or "step".
        name: of the pass.
        summary: what it does.
        matches: places rewritten; None: the pass was switched off.
        refused: why places that looked right were left alone.
        nodes_before: of the graph.
        nodes_after: of the graph.
    """

    graph: str
    name: str
    summary: str
    matches: int | None
    refused: tuple[str, ...]
    nodes_before: int
    nodes_after: int


def passes_for(backend: str, precision: Pass | None) -> tuple[Pass, ...]:
    """The passes of a target in order.

    Args:
        backend: as in the manifest.
        precision: the pass that sets it; None keeps float32.
    """
    # Kernels are for CPUs, and 16 bits are for GPUs.
    calls = backend == "onnxruntime" and not isinstance(precision, MixedPrecision)
    common = _WITH_TABLE_AS_IT_IS if calls else COMMON
    # Simplify also infers types, which a precision goes by.
    whole: tuple[Pass, ...] = (*common, *_FUSED[backend], Simplify())
    if precision is not None:
        whole = (*whole, precision, Simplify())
    if calls and isinstance(precision, DynamicInt8):
        whole = (*whole, Fp16KvCache())
    return (*whole, FuseOps()) if calls else whole


# TensorRT's attention layer is made from ONNX's operator; ONNX Runtime is fastest with its own.
_FUSED: dict[str, tuple[Pass, ...]] = {
    "onnxruntime": (FuseMultiHeadAttention(),),
    "tensorrt": (FuseAttention(), FuseTransposes()),
    "tensorrt_rtx": (FuseAttention(), FuseTransposes()),
}

#: Every pass by its name, for --disable-pass.
PASSES: dict[str, Pass] = {
    one.name: one
    for one in (*COMMON, *itertools.chain(*_FUSED.values()), FuseOps())
    if not one.required
}


def check_names(disabled: Collection[str]) -> None:
    """Raise an OptionError if a name is not that of a pass that can be switched off."""
    for name in disabled:
        if name not in PASSES:
            raise OptionError(
                f"there is no pass {name!r} to switch off; choose from {', '.join(PASSES)}."
            )


def run_passes(
    model: ir.Model,
    passes: Sequence[Pass],
    disabled: Collection[str] = (),
    after: Callable[[str, ir.Model], None] | None = None,
) -> list[Report]:
    """Apply passes to a graph, in place and in order.

    Args:
        model: the graph.
        passes: what to apply.
        disabled: names of passes to leave out.
        after: called with each pass's name and the graph after it.

    Raises:
        TranslateTrtError: a pass fails; the message names it and the graph.
    """
    graph = str(model.graph.name)
    reports = []
    for one in passes:
        before = len(model.graph)
        if one.name in disabled:
            reports.append(Report(graph, one.name, one.summary, None, (), before, before))
            continue
        try:
            outcome = one.run(model)
        except TranslateTrtError:
            raise
        except Exception as error:  # of a library, whose message alone would name neither
            raise TranslateTrtError(
                f"the pass {one.name} failed on the {graph} graph: {error}. "
                f"Leave it out with --disable-pass {one.name}, and please report it."
            ) from error
        reports.append(
            Report(
                graph,
                one.name,
                one.summary,
                outcome.matches,
                outcome.refused,
                before,
                len(model.graph),
            )
        )
        if after is not None:
            after(one.name, model)
    return reports

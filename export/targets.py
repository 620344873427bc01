"""Targets: the kinds of graphs that a bundle can hold, each with its passes and its layout."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from translate_trt.export.contract import GraphLayout
from translate_trt.export.fused_ops.fuse import FuseOps
from translate_trt.export.fused_ops.gpu import FuseGpuOps
from translate_trt.export.passes.attention import FuseAttention, FuseTransposes
from translate_trt.export.passes.attention_sums import AttentionSums
from translate_trt.export.passes.base import Pass
from translate_trt.export.passes.fp16_kv_cache import Fp16KvCache
from translate_trt.export.passes.int8 import DynamicInt8
from translate_trt.export.passes.mixed_precision import MixedPrecision
from translate_trt.export.passes.multi_head import FuseMultiHeadAttention
from translate_trt.export.passes.shared_weights import SeparateReaders
from translate_trt.export.passes.simplify import KeepSizes, Simplify
from translate_trt.export.passes.top_k import TopKFirst
from translate_trt.export.passes.weights import (
    FoldMatmulScales,
    FoldScales,
    MergeMatmuls,
    StoreWeights,
)
from translate_trt.runtime.backends.packages import CUDA, TORCH, extra
from translate_trt.runtime.bundle.contract import ShortlistForm
from translate_trt.runtime.bundle.manifest import SHORTLIST

#: The newest opset whose operators ONNX Runtime 1.21 all runs on a CPU; it quantizes row by row.
DYNAMIC_OPSET = 21
#: The first opset with TensorScatter, which writes static caches in place.
STATIC_OPSET = 24

# KV-cache dtype per precision; float32 by default.
_CACHE_TYPES = {"fp16": "float16", "bf16": "bfloat16", "int8": "float16"}
#: Cache slots of the inputs that a step is traced with; static caches have more.
EXAMPLE_SLOTS = 7

# ---- passes, in order ----

_BEFORE_SCALES: tuple[Pass, ...] = (StoreWeights(), Simplify())
_AFTER_SCALES: tuple[Pass, ...] = (MergeMatmuls(), TopKFirst(), KeepSizes())
_COMMON: tuple[Pass, ...] = (*_BEFORE_SCALES, FoldScales(), *_AFTER_SCALES)
# The last Simplify also infers the types that a precision pass reads.
# ONNX Runtime on a CPU, in FP32 and before fused operators. Kernels of Embed and of the vocabulary
# matmul share one matrix, so the scale of embeddings is not folded into it.
_CPU_PASSES: tuple[Pass, ...] = (
    *_BEFORE_SCALES, FoldMatmulScales(), *_AFTER_SCALES, FuseMultiHeadAttention(), Simplify(),
)  # fmt: skip
# ONNX Runtime on a GPU, in FP32.
_GPU_PASSES: tuple[Pass, ...] = (*_COMMON, FuseMultiHeadAttention(), Simplify())
# PyTorch and TensorRT's attention layer run ONNX's operator; ONNX Runtime is fastest with its own.
_STATIC_PASSES: tuple[Pass, ...] = (*_COMMON, FuseAttention(), FuseTransposes(), Simplify())

_CPU = {
    "fp32": (*_CPU_PASSES, FuseOps()),
    "int8": (
        *_CPU_PASSES, DynamicInt8(), Simplify(), Fp16KvCache(), FuseOps(), SeparateReaders(),
    ),
}  # fmt: skip
_FP16: tuple[Pass, ...] = (MixedPrecision(ir.DataType.FLOAT16), Simplify())
_BF16: tuple[Pass, ...] = (MixedPrecision(ir.DataType.BFLOAT16), Simplify())
_ONNX_FP16: tuple[Pass, ...] = (*_GPU_PASSES, *_FP16[:-1], Simplify(expand=True))
_STATIC = {
    "fp16": (*_STATIC_PASSES, *_FP16),
    "bf16": (*_STATIC_PASSES, *_BF16),
    "fp32": _STATIC_PASSES,
}
# For kernels in Triton, after precision has been decided.
_FUSED = {precision: (*passes, FuseGpuOps()) for precision, passes in _STATIC.items()}
# For TensorRT's step, after precision has been decided.
_TENSORRT = {
    precision: (*passes, AttentionSums(), Simplify(expand=True))
    for precision, passes in _STATIC.items()
}


@dataclass(frozen=True)
class Target:
    """Kind of entry of a bundle.

    Attributes:
        backend: Name of the runtime's backend in the manifest.
        precision: Precision of weights and matmuls: "fp32", "fp16", "bf16" or "int8".
        passes: Passes that turn the traced FP32 graphs into this target's, in order.
        package: Package that builds engines; None if the graphs themselves run.
        plugin_passes: The same for engines with plugins; none if the package does not build them.
        static: Whether the graphs have static caches and one beam size, and run in the shapes of
            profiles.
        shortlist: Whether translations are restricted to a lexical shortlist.
    """

    backend: str
    precision: str
    passes: tuple[Pass, ...]
    package: str | None = None
    plugin_passes: tuple[Pass, ...] = ()
    static: bool = False
    shortlist: bool = False

    @property
    def opset(self) -> int:
        """Opset of the graphs."""
        return STATIC_OPSET if self.static else DYNAMIC_OPSET

    def layout(
        self,
        beam_size: int,
        max_target_length: int,
        shortlist: ShortlistForm | None = None,
        all_options: bool = False,
    ) -> GraphLayout:
        """Layout of the graphs.

        Args:
            beam_size: Beam size of static graphs.
            max_target_length: Longest translation that static caches must hold.
            shortlist: Sizes of the shortlist table, for targets with a shortlist.
            all_options: Whether static graphs have the inputs of rules 13 to 15, which others
                always have.
        """
        cache_type = _CACHE_TYPES.get(self.precision, "float32")
        if not self.static:
            shortlist = shortlist if self.shortlist else None
            return GraphLayout(cache_type=cache_type, shortlist=shortlist)
        slots = beam_size * max(max_target_length, EXAMPLE_SLOTS + 1)
        return GraphLayout(beam_size, slots, cache_type, marks=all_options)


#: Targets by the name that `--target` takes.
TARGETS: dict[str, Target] = {
    "onnx-fp32": Target("onnxruntime", "fp32", _CPU["fp32"]),
    "onnx-int8": Target("onnxruntime", "int8", _CPU["int8"]),
    **{
        f"onnx-{precision}{SHORTLIST}": Target("onnxruntime", precision, passes, shortlist=True)
        for precision, passes in _CPU.items()
    },
    "onnx-fp16": Target("onnxruntime", "fp16", _ONNX_FP16),  # a CPU computes in FP32
    **{
        f"{extra(package)}-{precision}": Target(
            package, precision, passes, package, plugin_passes, static=True
        )
        for package, with_plugins in (("tensorrt", _FUSED), ("tensorrt_rtx", {}))
        for precision, passes in _TENSORRT.items()
        for plugin_passes in (with_plugins.get(precision, ()),)
    },
    **{
        f"{backend}-{precision}": Target(backend, precision, passes, static=True)
        for backend in (TORCH, CUDA)
        for precision, passes in _FUSED.items()
    },
}

#: Every pass that `--disable-pass` can leave out, by name.
PASSES: dict[str, Pass] = {
    one.name: one for target in TARGETS.values() for one in target.passes if not one.required
}

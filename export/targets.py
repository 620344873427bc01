"""What a bundle can be compiled for, and the layout of its graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from translate_trt.export.contract import GraphLayout
from translate_trt.runtime.bundle.contract import ShortlistForm
from translate_trt.runtime.bundle.manifest import SHORTLIST

#: 21 quantizes row by row, and is the newest whose every operator ONNX Runtime 1.21 runs on a CPU.
DYNAMIC_OPSET = 21
#: TensorScatter, which writes static caches in place, came in 24.
STATIC_OPSET = 24

# KV-cache dtype per precision; float32 by default.
_CACHE_TYPES = {"fp16": "float16", "bf16": "bfloat16", "int8": "float16"}


@dataclass(frozen=True)
class Target:
    """One kind of entry of a bundle.

    Attributes:
        backend: of the runtime, as the manifest names it.
        precision: of weights and products.
        package: that builds engines; None: the graphs themselves are what runs.
        description: for people.
        shortlist: a translation is made of tokens that its source makes likely, and no others.
    """

    backend: str
    precision: str
    package: str | None
    description: str
    shortlist: bool = False

    @property
    def opset(self) -> int:
        """Of the graphs."""
        return DYNAMIC_OPSET if self.package is None else STATIC_OPSET

    def layout(
        self, beam_size: int, max_target_length: int, shortlist: ShortlistForm | None = None
    ) -> GraphLayout:
        """How its graphs are laid out.

        Args:
            beam_size: the one that an engine is made for.
            max_target_length: the longest translation an engine's caches must hold.
            shortlist: of the table, for a target that has one.
        """
        cache_type = _CACHE_TYPES.get(self.precision, "float32")
        if self.package is None:
            return GraphLayout(
                cache_type=cache_type, shortlist=shortlist if self.shortlist else None
            )
        return GraphLayout(beam_size, beam_size * max_target_length, cache_type)


def _engine(package: str, precision: str) -> dict[str, Any]:
    name = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}[package]
    return {"backend": package, "precision": precision, "package": package,
            "description": f"{name} engines"}  # fmt: skip


#: By the name that `--target` takes.
TARGETS: dict[str, Target] = {
    "onnx-fp32": Target("onnxruntime", "fp32", None, "ONNX Runtime, CPU"),
    "onnx-int8": Target("onnxruntime", "int8", None, "ONNX Runtime, CPU, products in 8 bits"),
    **{
        f"onnx-{precision}{SHORTLIST}": Target(
            "onnxruntime", precision, None, f"as onnx-{precision}, with a shortlist", shortlist=True
        )
        for precision in ("fp32", "int8")
    },
    "onnx-fp16": Target("onnxruntime", "fp16", None, "ONNX Runtime, GPU (a CPU computes in FP32)"),
    **{
        f"{package.replace('_', '-')}-{precision}": Target(**_engine(package, precision))
        for package in ("tensorrt", "tensorrt_rtx")
        for precision in ("fp16", "bf16", "fp32")
    },
}

"""Mixed precision: cast a graph to FP16 or BF16, except where 16 bits are not enough.

TensorRT's strongly typed networks take types from the graph, so this pass decides them. Matmuls and
attention, their weights and the KV caches are in 16 bits. Long sums and large ranges stay in FP32:
residuals and LayerNorm, softmax and log-softmax, scores, the beam search. An FP16 matmul stays in
FP32 as well if its result could exceed 65,504 for some input (`value_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from translate_trt.export.passes.base import (
    NO_BOUNDS,
    Outcome,
    Pass,
    add_constant,
    constant,
    drop_unused_constants,
    is_embedding,
)
from translate_trt.export.passes.bound import Bound
from translate_trt.export.passes.expectations import Expected
from translate_trt.export.passes.value_bounds import bounds_of, is_softmax, largest_score
from translate_trt.runtime.errors import TranslateTrtError

_NUMPY = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
_CACHES = ("self_", "cross_", "next_self_")

# Half of the largest FP16 number: bounds assume exact arithmetic, matmuls round their operands.
_LARGEST_FP16 = 65_504 / 2
# Masks an attention score as MASKED does, and is finite in FP16.
_MASKED_FP16 = -6e4

# Operators that pass values on (almost) unchanged: in 16 bits if their input is.
_MOVES = {
    "Reshape", "Transpose", "Split", "Slice", "Concat", "Unsqueeze", "Squeeze", "Expand",
    "Identity", "ScatterND", "TensorScatter", "Relu",
}  # fmt: skip
_CACHE_WRITES = {"ScatterND", "TensorScatter"}
# Attention operators, with the index of the bias among their inputs.
_ATTENTION = {"Attention": 3, "MultiHeadAttention": 5}
_MATMULS = {"MatMul", *_ATTENTION}


def is_cache(value: ir.Value) -> bool:
    """Whether an input or output of a graph is a KV cache."""
    return str(value.name).startswith(_CACHES)


class MixedPrecision(Pass):
    """Cast one graph to 16 bits where that is safe.

    Args:
        dtype: FLOAT16 or BFLOAT16.
        input_bounds: Bounds of the graph's inputs by name. The step's inputs have the bounds that
            the encoder's outputs have.
    """

    summary = "16-bit matmuls, attention, weights and caches; FP32 where 16 bits are not enough"
    required = True

    def __init__(self, dtype: ir.DataType, input_bounds: Mapping[str, Bound] = NO_BOUNDS) -> None:
        self.name = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}[dtype]
        self._dtype, self._input_bounds = dtype, input_bounds
        logits = dtype == ir.DataType.FLOAT16  # too coarse in BF16
        self.expected = Expected(
            encoder=lambda model: 5 * model.encoder_layers + 1,
            # The attention whose weights are an output is two matmuls, or computes them beside it.
            step=lambda model: (
                8 * model.self_attentions + 6 * model.ssrus + model.attention + logits
            ),
        )

    def with_input_bounds(self, bounds: Mapping[str, Bound]) -> MixedPrecision:
        """Return the pass for a graph whose inputs have these bounds."""
        return MixedPrecision(self._dtype, bounds)

    def run(self, model: ir.Model) -> Outcome:
        """Rewrite the model in place; a match is a matmul in 16 bits.

        Raises:
            TranslateTrtError: A weight or the bound of a cache exceeds the range of FP16.
        """
        ShapeInferencePass()(model)  # rewrites leave values without types
        # BF16 has the range of FP32 and needs no bounds.
        fp16 = self._dtype == ir.DataType.FLOAT16
        bounds = bounds_of(model, self._input_bounds) if fp16 else {}
        outputs = {
            str(value.name): bounds[value] for value in model.graph.outputs if value in bounds
        }
        caster = _Caster(model.graph, self._dtype, bounds)
        caster.run()
        return Outcome(caster.matmuls, tuple(caster.refused), caster.too_large, outputs)


class _Caster:
    """Cast of one graph to 16 bits, node by node."""

    def __init__(
        self, graph: ir.Graph, dtype: ir.DataType, bounds: Mapping[ir.Value, Bound]
    ) -> None:
        self.graph, self.dtype, self.bounds = graph, dtype, bounds
        self.matmuls = 0
        self.refused: list[str] = []
        self.too_large = 0  # refusals due to the magnitude of the weights
        self._narrow: set[ir.Value] = set()
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        self._narrow_caches()
        for node in list(self.graph):
            # A Cast keeps its type, a Shape reads no elements, and a node that writes 16 bits has
            # been rewritten before.
            if node.op_type in ("Cast", "Shape") or node.outputs[0].dtype == self.dtype:
                continue
            rule = _RULES.get(node.op_type)
            if rule is not None and rule(self, node):
                self._to_16_bits(node)
            else:
                self._to_fp32(node)
        self._cast_outputs()
        drop_unused_constants(self.graph)

    def _narrow_caches(self) -> None:
        for value in self.graph.inputs:
            if is_cache(value):
                # Setting `dtype` would change the type object, which a copy of the graph shares.
                value.type = ir.TensorType(self.dtype)
                self._narrow.add(value)
        for node in self.graph:
            self._narrow |= {x for x in node.inputs if x is not None and x.dtype == self.dtype}

    def _cast_outputs(self) -> None:
        for index, value in enumerate(self.graph.outputs):
            cache = is_cache(value)
            if cache:
                self._check_cache(value)
            if cache and value not in self._narrow:
                self._cast_output(index, value, self.dtype)
            elif not cache and value in self._narrow:
                self._cast_output(index, value, ir.DataType.FLOAT)

    # ---- rules: whether a node is in 16 bits ----

    def always(self, node: ir.Node) -> bool:
        return True

    def if_embedding(self, node: ir.Node) -> bool:
        return is_embedding(node)

    def if_input_is(self, node: ir.Node) -> bool:
        return any(x in self._narrow for x in node.inputs)

    def if_readers_are(self, node: ir.Node) -> bool:
        """A bias is added in 16 bits if what reads the sum is in 16 bits, as its matmul is."""
        values = [x for x in node.inputs if x in self._narrow or _is_float(x)]
        variable = [x for x in values if constant(x) is None]
        readers = {use.node.op_type for use in node.outputs[0].uses()}
        return (
            len(values) == 2
            and len(variable) == 1
            and variable[0] in self._narrow
            and not readers.isdisjoint(_MOVES | _MATMULS)
        )

    def if_exact_enough(self, node: ir.Node) -> bool:
        reason = self._too_large(node) or self._too_coarse(node)
        if reason is not None:
            self.refused.append(f"{node.outputs[0].name}: {reason}")
        return reason is None

    def _too_large(self, node: ir.Node) -> str | None:
        if self.dtype != ir.DataType.FLOAT16:
            return None
        inputs = node.inputs[:3] if node.op_type in _ATTENTION else node.inputs
        values = {str(x.name): self.bounds.get(x) for x in inputs if x is not None
                  and constant(x) is None and not is_softmax(x)}  # fmt: skip
        values["the result"] = self._result(node)
        for name, bound in values.items():
            if bound is None:
                return f"kept in FP32: no bound is known for {name}"
            if not bound.largest <= _LARGEST_FP16:
                self.too_large += 1
                return f"kept in FP32: {name} could reach {bound.largest:.3g}"
        return None

    def _too_coarse(self, node: ir.Node) -> str | None:
        """Refuse logits in BF16, whose 8 bits are steps of 1/16 near 10: candidates would tie.

        On Multi30k (scripts/multi30k.sh) logits in BF16 cost 0.19 BLEU and missed the gate.
        """
        readers = {use.node for use in node.outputs[0].uses()}
        biased = [reader for reader in readers if reader.op_type == "Add"]
        readers |= {use.node for one in biased for use in one.outputs[0].uses()}
        ranked = {reader.op_type for reader in readers} & {"TopK", "LogSoftmax"}
        if self.dtype == ir.DataType.BFLOAT16 and ranked:
            return "kept in FP32: candidates are ranked by it"
        return None

    def _result(self, node: ir.Node) -> Bound | None:
        """Bound of the scores of an attention, or of a matmul with its bias."""
        if node.op_type in _ATTENTION:
            score = largest_score(node, self.bounds)
            return None if score is None else Bound(np.array([score]), np.inf)
        found = [self.bounds.get(node.outputs[0])]
        found += [
            self.bounds.get(use.node.outputs[0])
            for use in node.outputs[0].uses()
            if use.node.op_type == "Add" and any(constant(x) is not None for x in use.node.inputs)
        ]
        if any(bound is None for bound in found):
            return None
        return max((b for b in found if b is not None), key=lambda bound: bound.largest)

    # ---- casts ----

    def _to_16_bits(self, node: ir.Node) -> None:
        self.matmuls += node.op_type in _MATMULS
        for index, value in enumerate(node.inputs):
            if not _is_float(value) or value in self._narrow:
                continue
            assert value is not None
            if _ATTENTION.get(node.op_type) == index:
                value = self._clamped(value, node)
            node.replace_input_with(index, self._as(value, self.dtype, node))
        for output in node.outputs:
            output.type = ir.TensorType(self.dtype)
            self._narrow.add(output)

    def _to_fp32(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value in self._narrow:
                assert value is not None
                node.replace_input_with(index, self._as(value, ir.DataType.FLOAT, node))

    def _as(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        """Return the value in another type, cast once, before its first reader."""
        if (value, dtype) not in self._casts:
            array = constant(value)
            if array is not None:
                self._casts[value, dtype] = self._constant(str(value.name), array)
            else:
                self._casts[value, dtype] = self._cast(value, dtype, before)
        return self._casts[value, dtype]

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        if self.dtype == ir.DataType.FLOAT16 and array.size:
            largest = float(np.abs(array).max())
            if not largest <= float(np.finfo(np.float16).max):
                raise TranslateTrtError(
                    f"the weights {name} reach {largest:.6g}, beyond FP16's 65504; "
                    "choose a bf16 or fp32 target."
                )
        return add_constant(self.graph, f"{name}_{self.dtype.name.lower()}",
                            array.astype(_NUMPY[self.dtype]))  # fmt: skip

    def _cast(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        node = ir.node("Cast", [value], {"to": int(dtype)})
        cast = node.outputs[0]
        cast.name, cast.shape, cast.dtype = f"{value.name}_{dtype.name.lower()}", value.shape, dtype
        self.graph.insert_before(before, node)
        return cast

    def _clamped(self, bias: ir.Value, before: ir.Node) -> ir.Value:
        if self.dtype != ir.DataType.FLOAT16:
            return bias
        if (bias, ir.DataType.UNDEFINED) not in self._casts:
            floor = add_constant(self.graph, "masked_fp16", np.array(_MASKED_FP16, np.float32))
            node = ir.node("Max", [bias, floor])
            clamped = node.outputs[0]
            clamped.name, clamped.shape = f"{bias.name}_clamped", bias.shape
            clamped.type = ir.TensorType(ir.DataType.FLOAT)
            self.graph.insert_before(before, node)
            self._casts[bias, ir.DataType.UNDEFINED] = clamped
        return self._casts[bias, ir.DataType.UNDEFINED]

    def _check_cache(self, value: ir.Value) -> None:
        bound = self.bounds.get(value)
        if self.dtype == ir.DataType.FLOAT16 and (
            bound is None or not bound.largest <= _LARGEST_FP16
        ):
            reach = "have no known bound" if bound is None else f"could reach {bound.largest:.3g}"
            raise TranslateTrtError(
                f"the keys or values {value.name} {reach}, beyond FP16's 65504; "
                "choose a bf16 or fp32 target."
            )

    def _cast_output(self, index: int, value: ir.Value, dtype: ir.DataType) -> None:
        node = ir.node("Cast", [value], {"to": int(dtype)})
        name, value.name = value.name, f"{value.name}_uncast"
        node.outputs[0].name, node.outputs[0].shape = name, value.shape
        node.outputs[0].type = ir.TensorType(dtype)
        self.graph.append(node)
        self.graph.outputs[index] = node.outputs[0]


def _is_float(value: ir.Value | None) -> bool:
    if value is None:
        return False
    array = constant(value) if value.dtype is None else None
    dtype = value.dtype if array is None else ir.DataType.from_numpy(array.dtype)
    return dtype in (ir.DataType.FLOAT, *_NUMPY)


#: By operator, the rule for its nodes; every other operator is in FP32.
_RULES: dict[str, Callable[[_Caster, ir.Node], bool]] = {
    **dict.fromkeys(_MOVES, _Caster.if_input_is),
    **dict.fromkeys(_CACHE_WRITES, _Caster.always),
    **dict.fromkeys(_MATMULS, _Caster.if_exact_enough),
    **dict.fromkeys(("Add", "Mul"), _Caster.if_readers_are),
    "Gather": _Caster.if_embedding,
}

"""Translation of exported PyTorch programs into ONNX graphs.

`torch.export` records the ATen operators that a module calls, and `_OPERATORS` has a function for
each operator of the modules in export/graphs.py, which writes its ONNX nodes. `torch.onnx.export`
knows every operator, but takes most of the time of tracing (docs/adr/0012): it runs each of them
twice more on tensors of symbolic sizes, and parses its library of translations for every graph.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
import torch.onnx.ops  # registers the operators of torch.ops.onnx_symbolic
from onnx_ir.tape import Tape
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype
from torch import SymInt, Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from translate_trt.export.fused_ops.declarations import DOMAIN, RMS_NORM, VERSION
from translate_trt.runtime.errors import TranslateTrtError

_ATEN = torch.ops.aten
_IR_VERSION = 10
_LAST = 2**63 - 1  # end of a slice without an end

# A node of the program, whose type does not tell what the arguments of its operator are; and an
# argument, which is a node or a Python value.
_Node: TypeAlias = Any
_Argument: TypeAlias = Any
_Rule: TypeAlias = Callable[["_Translator", _Node], Any]


def to_onnx(
    program: ExportedProgram,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    name: str,
    opset: int,
) -> ir.Model:
    """Translate an exported program.

    Args:
        program: The program. Its operators neither write to their arguments nor depend on a device.
        inputs: The sizes of each input by its name; names of axes stand for any size.
        outputs: Names of its outputs.
        name: Name of the graph.
        opset: Version of ONNX's operator set.

    Returns:
        A model with the weights of the program's module, under their names there.

    Raises:
        TranslateTrtError: The program calls an operator that has no translation.
    """
    translator = _Translator(program, inputs)
    for node in program.graph.nodes:
        if node.op == "call_function":
            translator.translate(node)
    (returned,) = program.graph.find_nodes(op="output")
    results = translator.name_outputs(returned.args[0], outputs)
    domains = {domain: version or opset for domain, version in translator.tape.used_opsets}
    graph = ir.Graph(
        translator.inputs,
        results,
        nodes=translator.tape.nodes,
        initializers=list(translator.weights.values()),
        # Of a set, whose order differs between processes; files must not.
        opset_imports=dict(sorted((domains | {"": opset}).items())),
        name=name,
    )
    return ir.Model(graph, ir_version=_IR_VERSION)


class _Translator:
    """Values of the nodes of a program, and the ONNX nodes that compute them.

    Attributes:
        inputs: Inputs of the graph.
        weights: Parameters and buffers that the graph reads, by name.
        tape: Nodes of the graph.
    """

    def __init__(self, program: ExportedProgram, inputs: Mapping[str, Sequence[int | str]]) -> None:
        self.tape = Tape()
        self.weights: dict[str, ir.Value] = {}
        self.inputs: list[ir.Value] = []
        self._values: dict[fx.Node, Any] = {}
        self._tensors: dict[fx.Node, tuple[str, Tensor]] = {}
        self._constants: dict[tuple[object, ...], ir.Value] = {}
        self._sizes: dict[object, ir.Value] = {}  # values of sizes by their expressions
        self._axis_names: dict[str, str] = {}
        self._sized: dict[object, tuple[ir.Value, int]] = {}  # inputs and their axes of a size
        named = iter(inputs.items())
        tensors = program.state_dict | program.constants
        specs = program.graph_signature.input_specs
        for node, spec in zip(program.graph.find_nodes(op="placeholder"), specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                self._values[node] = self._input(node, *next(named))
            else:
                self._tensors[node] = str(spec.target), tensors[str(spec.target)]

    def _input(self, node: fx.Node, name: str, axes: Sequence[int | str]) -> ir.Value:
        value = ir.Value(name=name)
        self.inputs.append(value)
        for index, (size, axis) in enumerate(zip(node.meta["val"].shape, axes, strict=True)):
            if isinstance(size, SymInt):
                self._axis_names[str(size.node.expr)] = str(axis)
                self._sized.setdefault(size.node.expr, (value, index))
        self._describe(value, node.meta["val"])
        return value

    # ---- nodes ----

    def translate(self, node: _Node) -> None:
        """Write the nodes of an operator."""
        rule = _OPERATORS.get(node.target)
        if rule is None:
            raise TranslateTrtError(
                f"the operator {node.target} has no translation into ONNX; "
                "add one to export/aten_to_onnx.py."
            )
        result = rule(self, node)
        meta = node.meta.get("val")
        if isinstance(result, ir.Value):
            self._describe(result, meta)
            # An operator that does nothing is its argument, which has a name.
            if result.name is None:
                result.name = node.name
        else:
            for value, of_value in zip(result, meta, strict=True):
                self._describe(value, of_value)
        self._values[node] = result

    def name_outputs(self, returned: Sequence[fx.Node], names: Sequence[str]) -> list[ir.Value]:
        """Give the results of the program the names of the graph's outputs."""
        results: list[ir.Value] = []
        for node, name in zip(returned, names, strict=True):
            value = self.value(node)
            if value.producer() is None or value in results:  # an input or an output already
                value = self.op("Identity", value)
                self._describe(value, node.meta["val"])
            value.name = name
            results.append(value)
        return results

    def op(self, kind: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node with one output."""
        return self.tape.op(kind, inputs, attributes)

    # ---- arguments ----

    def value(self, argument: _Argument, dtype: torch.dtype | None = None) -> ir.Value:
        """Return the value of a tensor, a size or a number, cast to a type.

        Sizes are scalars of type int64. A number needs a type.
        """
        if not isinstance(argument, fx.Node):
            assert dtype is not None
            return self.constant(argument, dtype)
        known = argument not in self._tensors
        value: ir.Value = self._values[argument] if known else self._weight(argument)
        if dtype is None or dtype == self.dtype(argument):
            return value
        return self.op("Cast", value, to=from_torch_dtype(dtype))

    def values(self, node: _Node) -> tuple[ir.Value, ...]:
        """Return the values of a node with several."""
        found: tuple[ir.Value, ...] = self._values[node]
        return found

    def dtype(self, argument: _Argument) -> torch.dtype | None:
        """Return the type of a tensor or a size; None for a number."""
        meta = argument.meta["val"] if isinstance(argument, fx.Node) else argument
        if isinstance(meta, Tensor):
            return meta.dtype
        return torch.int64 if isinstance(meta, SymInt) else None

    def constant(self, content: object, dtype: torch.dtype = torch.int64) -> ir.Value:
        """Return a constant of a type, the same one for the same content."""
        array = np.array(content, from_torch_dtype(dtype).numpy())
        key = (array.tobytes(), array.shape, dtype)
        if key not in self._constants:
            self._constants[key] = self.op("Constant", value=ir.tensor(array))
        return self._constants[key]

    def size(self, size: SymInt, of: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis as a scalar, from an input that has the same size if any."""
        key = size.node.expr
        if key not in self._sizes:
            sized, index = self._sized.get(key, (of, axis))
            self._sizes[key] = self.op(
                "Squeeze", self.op("Shape", sized, start=index, end=index + 1)
            )
        return self._sizes[key]

    def is_known(self, size: SymInt) -> bool:
        """Whether a size is one of an input, or was computed."""
        return size.node.expr in self._sized or size.node.expr in self._sizes

    def vector(self, sizes: Sequence[_Argument]) -> ir.Value:
        """Return sizes as a vector; each is a number, a node of the program, or a scalar value."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(sizes))
        one = self.constant([-1])
        parts = [
            self.constant([size])
            if isinstance(size, int)
            else self.op("Reshape", size if isinstance(size, ir.Value) else self.value(size), one)
            for size in sizes
        ]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def _weight(self, node: fx.Node) -> ir.Value:
        """Return a parameter, a buffer or a constant tensor."""
        name, tensor = self._tensors[node]
        if name not in self.weights:
            self.weights[name] = ir.Value(
                name=name,
                shape=ir.Shape(tensor.shape),
                type=ir.TensorType(from_torch_dtype(tensor.dtype)),
                const_value=TorchTensor(tensor, name),
            )
        return self.weights[name]

    def _describe(self, value: ir.Value, meta: object) -> None:
        """Set type and shape of a value, with the contract's names of axes."""
        if isinstance(meta, Tensor):
            value.type = ir.TensorType(from_torch_dtype(meta.dtype))
            value.shape = ir.Shape([self._axis(size) for size in meta.shape])
        elif isinstance(meta, SymInt):
            value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])

    def _axis(self, size: int | SymInt) -> int | str:
        if isinstance(size, int):
            return size
        return re.sub(
            r"\w+", lambda x: self._axis_names.get(x.group(), x.group()), str(size.node.expr)
        )


# ---- operators ----


def _arguments(node: _Node, *defaults: object) -> tuple[_Argument, ...]:
    """Return the arguments of an operator, with the defaults of those after the first."""
    given = tuple(node.args)
    return given + defaults[len(given) - 1 :]


def _elementwise(kind: str) -> _Rule:
    """Operator of one tensor."""
    return lambda to, node: to.op(kind, to.value(node.args[0]))


def _arithmetic(kind: str, swapped: bool = False) -> _Rule:
    """Operator of two operands, of the type of the result."""

    def rule(to: _Translator, node: _Node) -> ir.Value:
        assert not node.kwargs, node.kwargs  # alpha of sums, rounding of quotients
        dtype = to.dtype(node)
        first, second = (to.value(x, dtype) for x in node.args)
        return to.op(kind, *((second, first) if swapped else (first, second)))

    return rule


def _comparison(kind: str) -> _Rule:
    """Comparison of two operands, both of the type that holds either."""

    def rule(to: _Translator, node: _Node) -> ir.Value:
        dtype = functools.reduce(torch.promote_types, filter(None, map(to.dtype, node.args)))
        if not dtype.is_floating_point and any(isinstance(x, float) for x in node.args):
            dtype = torch.float32
        return to.op(kind, *(to.value(x, dtype) for x in node.args))

    return rule


def _not_equal(to: _Translator, node: _Node) -> ir.Value:
    return to.op("Not", _comparison("Equal")(to, node))


def _where(to: _Translator, node: _Node) -> ir.Value:
    condition, *choices = node.args
    return to.op("Where", to.value(condition), *(to.value(x, to.dtype(node)) for x in choices))


def _same(to: _Translator, node: _Node) -> ir.Value:
    return to.value(node.args[0])


def _cast(to: _Translator, node: _Node) -> ir.Value:
    return to.value(node.args[0], to.dtype(node))


def _along_axis(kind: str) -> _Rule:
    """Operator along an axis, which is its second argument."""
    return lambda to, node: to.op(kind, to.value(node.args[0]), axis=node.args[1])


def _reduction(kind: str) -> _Rule:
    """Reduction over axes; sums of booleans and integers are int64."""

    def rule(to: _Translator, node: _Node) -> ir.Value:
        x, axes, *keep = node.args
        kept = int(bool(keep and keep[0]))
        return to.op(kind, to.value(x, to.dtype(node)), to.constant(axes), keepdims=kept)

    return rule


def _gelu(to: _Translator, node: _Node) -> ir.Value:
    approximate = node.kwargs.get("approximate", "none")
    return to.op("Gelu", to.value(node.args[0]), approximate=approximate)


def _silu(to: _Translator, node: _Node) -> ir.Value:
    x = to.value(node.args[0])
    return to.op("Mul", x, to.op("Sigmoid", x))


def _clamp(to: _Translator, node: _Node) -> ir.Value:
    x, *limits = node.args
    bounds = (None if limit is None else to.value(limit, to.dtype(node)) for limit in limits)
    return to.op("Clip", to.value(x), *bounds)


def _floor_divide(to: _Translator, node: _Node) -> ir.Value:
    # Div of integers rounds to zero; without its remainder, the dividend is a multiple.
    x, y = (to.value(argument, torch.int64) for argument in node.args)
    return to.op("Div", to.op("Sub", x, to.op("Mod", x, y)), y)


def _linear(to: _Translator, node: _Node) -> ir.Value:
    x, weight, *bias = (to.value(x) for x in node.args)
    matmul = to.op("MatMul", x, to.op("Transpose", weight, perm=[1, 0]))
    return to.op("Add", matmul, *bias) if bias else matmul


def _layer_norm(to: _Translator, node: _Node) -> ir.Value:
    x, axes, weight, bias, epsilon, *_ = node.args
    operands = (to.value(argument) for argument in (x, weight, bias))
    return to.op("LayerNormalization", *operands, axis=-len(axes), epsilon=float(epsilon))


def _rms_norm(to: _Translator, node: _Node) -> ir.Value:
    x, _, weight, epsilon = node.args
    operands = to.value(x), to.value(weight)
    attributes = {"epsilon": float(epsilon)}
    return to.tape.op(RMS_NORM, operands, attributes, domain=DOMAIN, version=VERSION)


def _embedding(to: _Translator, node: _Node) -> ir.Value:
    table, indices = node.args[:2]
    return to.op("Gather", to.value(table), to.value(indices), axis=0)


def _transpose(to: _Translator, node: _Node) -> ir.Value:
    x, first, second = node.args
    order = list(range(x.meta["val"].dim()))
    order[first], order[second] = order[second], order[first]
    return to.op("Transpose", to.value(x), perm=order)


def _unsqueeze(to: _Translator, node: _Node) -> ir.Value:
    x, axis = node.args
    return to.op("Unsqueeze", to.value(x), to.constant([axis]))


def _view(to: _Translator, node: _Node) -> ir.Value:
    x, sizes = node.args
    return to.op("Reshape", to.value(x), to.vector(sizes), allowzero=0)


def _split_or_join_axes(to: _Translator, node: _Node) -> ir.Value:
    """`flatten` and `unflatten`: a reshape to sizes that are constants or those of an input."""
    source = node.args[0].meta["val"]
    x = to.value(node.args[0])
    sizes: list[object] = []
    for axis, size in enumerate(node.meta["val"].shape):
        if isinstance(size, int):
            sizes.append(size)
        elif to.is_known(size) or (axis < source.dim() and source.shape[axis] == size):
            sizes.append(to.size(size, x, axis))
        else:
            sizes.append(-1)
    return to.op("Reshape", x, to.vector(sizes), allowzero=0)


def _expand(to: _Translator, node: _Node) -> ir.Value:
    x, sizes = node.args
    return to.op("Expand", to.value(x), to.vector([1 if size == -1 else size for size in sizes]))


def _expand_as(to: _Translator, node: _Node) -> ir.Value:
    x, other = (to.value(argument) for argument in node.args)
    return to.op("Expand", x, to.op("Shape", other, start=0))


def _filled(content: float | None = None) -> _Rule:
    """Tensor of the sizes of another, filled with a number."""

    def rule(to: _Translator, node: _Node) -> ir.Value:
        number = node.args[1] if content is None else content
        shape = to.op("Shape", to.value(node.args[0]), start=0)
        return to.op("Expand", to.value(number, to.dtype(node)), shape)

    return rule


def _arange(to: _Translator, node: _Node) -> ir.Value:
    return to.op("Range", to.constant(0), to.value(node.args[0], torch.int64), to.constant(1))


def _slice(to: _Translator, node: _Node) -> ir.Value:
    x, axis, start, end, step = _arguments(node, 0, None, None, 1)
    start, end = start or 0, _LAST if end is None else end
    if (start, end, step) == (0, _LAST, 1):
        return to.value(x)
    places = to.vector([start]), to.vector([end]), to.constant([axis]), to.constant([step])
    return to.op("Slice", to.value(x), *places)


def _select(to: _Translator, node: _Node) -> ir.Value:
    x, axis, index = node.args
    return to.op("Gather", to.value(x), to.constant(index), axis=axis)


def _index(to: _Translator, node: _Node) -> ir.Value:
    x, indices = node.args
    ((axis, index),) = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    return to.op("Gather", to.value(x), to.value(index), axis=axis)


def _gather(to: _Translator, node: _Node) -> ir.Value:
    x, axis, index = node.args
    return to.op("GatherElements", to.value(x), to.value(index), axis=axis)


def _concatenate(to: _Translator, node: _Node) -> ir.Value:
    parts, axis = _arguments(node, 0)
    return to.op("Concat", *(to.value(x, to.dtype(node)) for x in parts), axis=axis)


def _stack(to: _Translator, node: _Node) -> ir.Value:
    parts, axis = _arguments(node, 0)
    place = to.constant([axis])
    return to.op("Concat", *(to.op("Unsqueeze", to.value(x), place) for x in parts), axis=axis)


def _cumulative_sum(to: _Translator, node: _Node) -> ir.Value:
    x, axis = node.args
    return to.op("CumSum", to.value(x, to.dtype(node)), to.constant(axis))


def _argmax(to: _Translator, node: _Node) -> ir.Value:
    x, axis, keep = _arguments(node, None, False)
    return to.op("ArgMax", to.value(x), axis=axis, keepdims=int(keep))


def _best(
    to: _Translator, x: ir.Value, count: ir.Value, axis: int, largest: bool
) -> tuple[ir.Value, ...]:
    """Return the first values in order, and their indices."""
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    return tuple(to.tape.op_multi_out("TopK", [x, count], attributes, num_outputs=2))


def _top_k(to: _Translator, node: _Node) -> tuple[ir.Value, ...]:
    x, count, axis, *_ = _arguments(node, 1, -1)
    return _best(to, to.value(x), to.vector([count]), axis, True)


def _sort(to: _Translator, node: _Node) -> tuple[ir.Value, ...]:
    x, axis, descending = _arguments(node, -1, False)
    value = to.value(x)
    end = axis + 1 or x.meta["val"].dim()
    count = to.op("Shape", value, start=axis, end=end)
    return _best(to, value, count, axis, descending)


def _item(to: _Translator, node: _Node) -> ir.Value:
    found, index = node.args
    return to.values(found)[int(index)]


def _size(to: _Translator, node: _Node) -> ir.Value:
    x, axis = node.args
    return to.size(node.meta["val"], to.value(x), axis)


def _onnx_operator(to: _Translator, node: _Node) -> ir.Value | tuple[ir.Value, ...]:
    """Operator of `torch.onnx.ops.symbolic` or `symbolic_multi_out`."""
    inputs, kind = node.args[:2]
    given = node.kwargs
    assert set(given["attr_types"]) <= {"i"}, given
    attributes = {
        key: given["attr_ints"][first]
        for key, (first, _) in zip(given["attr_keys"], given["attr_pos"], strict=True)
    }
    several = isinstance(node.meta["val"], (tuple, list))
    outputs = to.tape.op_multi_out(
        kind,
        [to.value(x) for x in inputs],
        attributes,
        num_outputs=len(node.meta["val"]) if several else 1,
        domain=given.get("domain", ""),
        version=given.get("version"),
    )
    return tuple(outputs) if several else outputs[0]


_OPERATORS: dict[object, _Rule] = {
    operator.getitem: _item,
    operator.add: _arithmetic("Add"),
    operator.sub: _arithmetic("Sub"),
    operator.mul: _arithmetic("Mul"),
    torch.sym_min: _arithmetic("Min"),
    torch.sym_max: _arithmetic("Max"),
    _ATEN.sym_size.int: _size,
    _ATEN.scalar_tensor.default: _cast,
    _ATEN._assert_tensor_metadata.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.detach_.default: _same,
    _ATEN.lift_fresh_copy.default: _same,
    _ATEN.to.device: _cast,
    _ATEN.to.dtype: _cast,
    # of numbers
    _ATEN.add.Tensor: _arithmetic("Add"),
    _ATEN.sub.Tensor: _arithmetic("Sub"),
    _ATEN.rsub.Scalar: _arithmetic("Sub", swapped=True),
    _ATEN.mul.Tensor: _arithmetic("Mul"),
    _ATEN.div.Tensor: _arithmetic("Div"),
    _ATEN.floor_divide.default: _floor_divide,
    _ATEN.remainder.Scalar: _arithmetic("Mod"),  # of integers
    _ATEN.pow.Tensor_Tensor: _arithmetic("Pow"),
    _ATEN.maximum.default: _arithmetic("Max"),
    _ATEN.neg.default: _elementwise("Neg"),
    _ATEN.exp.default: _elementwise("Exp"),
    _ATEN.log.default: _elementwise("Log"),
    _ATEN.relu.default: _elementwise("Relu"),
    _ATEN.sigmoid.default: _elementwise("Sigmoid"),
    _ATEN.silu.default: _silu,
    _ATEN.gelu.default: _gelu,
    _ATEN.clamp.default: _clamp,
    _ATEN.cumsum.default: _cumulative_sum,
    _ATEN.sum.dim_IntList: _reduction("ReduceSum"),
    _ATEN.mean.dim: _reduction("ReduceMean"),
    _ATEN.amax.default: _reduction("ReduceMax"),
    _ATEN.argmax.default: _argmax,
    _ATEN.softmax.int: _along_axis("Softmax"),
    _ATEN.log_softmax.int: _along_axis("LogSoftmax"),
    _ATEN.matmul.default: _arithmetic("MatMul"),
    _ATEN.linear.default: _linear,
    _ATEN.layer_norm.default: _layer_norm,
    _ATEN.rms_norm.default: _rms_norm,
    # of truth values
    _ATEN.eq.Scalar: _comparison("Equal"),
    _ATEN.eq.Tensor: _comparison("Equal"),
    _ATEN.ne.Scalar: _not_equal,
    _ATEN.ne.Tensor: _not_equal,
    _ATEN.lt.Scalar: _comparison("Less"),
    _ATEN.lt.Tensor: _comparison("Less"),
    _ATEN.le.Tensor: _comparison("LessOrEqual"),
    _ATEN.gt.Scalar: _comparison("Greater"),
    _ATEN.ge.Scalar: _comparison("GreaterOrEqual"),
    _ATEN.ge.Tensor: _comparison("GreaterOrEqual"),
    _ATEN.__and__.Tensor: _arithmetic("And"),
    _ATEN.__or__.Tensor: _arithmetic("Or"),
    _ATEN.bitwise_not.default: _elementwise("Not"),
    _ATEN.where.self: _where,
    _ATEN.where.Scalar: _where,
    _ATEN.where.ScalarSelf: _where,
    _ATEN.where.ScalarOther: _where,
    # of places
    _ATEN.arange.default: _arange,
    _ATEN.full_like.default: _filled(),
    _ATEN.ones_like.default: _filled(1),
    _ATEN.zeros_like.default: _filled(0),
    _ATEN.embedding.default: _embedding,
    _ATEN.gather.default: _gather,
    _ATEN.index.Tensor: _index,
    _ATEN.select.int: _select,
    _ATEN.slice.Tensor: _slice,
    _ATEN.sort.default: _sort,
    _ATEN.topk.default: _top_k,
    _ATEN.cat.default: _concatenate,
    _ATEN.stack.default: _stack,
    _ATEN.expand.default: _expand,
    _ATEN.expand_as.default: _expand_as,
    _ATEN.flatten.using_ints: _split_or_join_axes,
    _ATEN.unflatten.int: _split_or_join_axes,
    _ATEN.transpose.int: _transpose,
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN.view.default: _view,
    torch.ops.onnx_symbolic._symbolic.default: _onnx_operator,
    torch.ops.onnx_symbolic._symbolic_multi_out.default: _onnx_operator,
}

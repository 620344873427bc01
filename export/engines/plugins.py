"""Ahead-of-time plugins of TensorRT: its engines run the kernels of fused operators (`--plugins`).

An operator of `PLUGINS` becomes one plugin for each of its launches, which the same description as
in other targets gives (`fused_operators.operators`); the bodies of all others become TensorRT's own
layers. The parser finds a plugin by the type of its node, and the builder puts the PTX, the grid
and the arguments, as expressions of the input's sizes, into the engine, so that no runtime needs
this package.

TensorRT passes a kernel the addresses of the inputs, then 32-bit integers, then the addresses of
the outputs (`tensorrt.plugin.aot_impl`). Plugins have no tensors of type bool (NvInferRuntime.h,
`IPluginV3OneBuild::getOutputDataTypes`), so casts surround them. Which buffers alias if a plugin
updates a network's input is not documented: TensorRT's own layers write the caches.

No engine with plugins has been built yet: libnvinfer is in no package index.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
import sympy
import torch
from onnx_ir.passes import common
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv

from translate_trt.export.engines.network import EngineError
from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.passes.base import axes, constant_of, substitute
from translate_trt.export.plans.cubin_cache import made_by
from translate_trt.runtime.backends.pytorch.fused_operators import FusedOperator, operators
from translate_trt.runtime.backends.pytorch.onnx_operators import DTYPES
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.gpu.cubins import Ptx, Specialization, compile_to_ptx, specialize
from translate_trt.runtime.gpu.launch import Launch

#: Fused operators that become plugins: attention of a step, norms, and the search. TensorRT fuses
#: what the others do into its matmuls, and has an attention layer for the encoder.
PLUGINS = frozenset((
    "GpuCachedAttention", "GpuBeamAttention", "GpuBeamAttentionMean",
    "GpuNorm", "GpuAddNorm", "GpuBiasAddNorm",
    "GpuNormCast", "GpuAddNormCast", "GpuBiasAddNormCast",
    "GpuTopLogits", "GpuBiasedTopLogits", "GpuSelectBeams", "GpuFollowAncestry",
))  # fmt: skip

#: Namespace of the plugins in TensorRT's registry.
NAMESPACE = DOMAIN

# Members of TensorRT's DataType.
_TYPES = {
    torch.float32: "FLOAT", torch.float16: "HALF", torch.bfloat16: "BF16",
    torch.int32: "INT32", torch.int64: "INT64",
}  # fmt: skip

# Any size will do: no kernel depends on one (`_Letters`).
_EXAMPLE = 8

# Dynamic shared memory that every kernel may have; TensorRT does not say whether it asks for more.
_MOST_SHARED = 48 << 10

# The registry belongs to the process.
_registered: set[str] = set()

#: Sizes of a tensor as expressions of the letters of axes.
Sizes: TypeAlias = tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Plugin:
    """A launch of a kernel as a layer.

    Attributes:
        kernel: The kernel.
        inputs: Sizes and types of the inputs.
        integers: Integers, which the kernel takes after the inputs.
        outputs: Sizes and types of the outputs.
        arguments: Parameters of the kernel that get each input, integer and output, in this order;
            the kernel uses at most one of them.
        grid: Number of programs along each axis.
        architecture: Compute capability to compile for, times ten.
    """

    kernel: Specialization
    inputs: tuple[tuple[Sizes, torch.dtype], ...]
    integers: Sizes
    outputs: tuple[tuple[Sizes, torch.dtype], ...]
    arguments: tuple[tuple[str, ...], ...]
    grid: Sizes
    architecture: int

    @functools.cached_property
    def name(self) -> str:
        """Name in the registry; plugins that differ in anything have different ones."""
        kernel = replace(self.kernel, aligned=frozenset())  # whose order is not the same everywhere
        key = repr([made_by(), sorted(self.kernel.aligned), replace(self, kernel=kernel)])
        return f"{self.kernel.name}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def sizes(self, shapes: Sequence[Sequence[Any]]) -> dict[sympy.Expr, Any]:
        """Find the sizes of the letters.

        Args:
            shapes: Shape of each input: integers, or expressions of TensorRT.
        """
        return {
            letter: size
            for (letters, _), shape in zip(self.inputs, shapes, strict=True)
            for letter, size in zip(letters, shape, strict=True)
            if letter.is_Symbol
        }


def evaluate(expression: sympy.Expr, sizes: Mapping[sympy.Expr, Any]) -> Any:
    """Compute an expression of sizes, which may be integers or expressions of TensorRT.

    Raises:
        EngineError: TensorRT has no such operation.
    """
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return sizes[expression]
    # TensorRT's expressions take integers on the right alone.
    parts = [evaluate(part, sizes) for part in expression.args]
    if isinstance(expression, FloorDiv):
        return parts[0] // parts[1]
    if not isinstance(expression, sympy.Add | sympy.Mul):
        raise EngineError(f"no plugin has a size of {expression}; build without plugins.")
    result, *others = sorted(parts, key=lambda part: isinstance(part, int))
    for other in others:
        result = result + other if isinstance(expression, sympy.Add) else result * other
    return result


def insert_plugins(model: ir.Model, architecture: int) -> tuple[Plugin, ...]:
    """Replace fused operators by plugins, or their bodies, in place.

    Args:
        model: A graph with fused operators for GPUs.
        architecture: Compute capability to compile for, times ten.

    Returns:
        The plugins, which must be registered before the graph is parsed.

    Raises:
        EngineError: The shape of an operator's input is not known.
    """
    table, letters = operators(), _Letters()
    casts: dict[ir.Value, ir.Value] = {}
    plugins: dict[str, Plugin] = {}
    for node in list(model.graph):
        if node.domain == DOMAIN and node.op_type in PLUGINS:
            for plugin in _replace(node, table[node.op_type], letters, casts, architecture):
                plugins[plugin.name] = plugin
    model.graph.sort()
    common.RemoveUnusedNodesPass()(model)
    common.InlinePass()(model)
    common.RemoveUnusedNodesPass()(model)  # a body's attention, where a plugin computes it
    model.functions.clear()
    return tuple(plugins.values())


class _Letters:
    """PyTorch's symbols for the letters of dynamic axes; code that branches on one fails."""

    def __init__(self) -> None:
        self._environment = ShapeEnv()
        self._sizes: dict[str, Any] = {}

    def size(self, axis: int | ir.SymbolicDim) -> Any:
        """Return the size of an axis as PyTorch takes it."""
        if isinstance(axis, int):
            return axis
        name = str(axis.value)
        if name not in self._sizes:
            self._sizes[name] = self._environment.create_unbacked_symint()
        return self._sizes[name]

    def expressions(self, sizes: Sequence[Any]) -> Sizes:
        """Return sizes as expressions of the letters."""
        own = {size.node.expr: sympy.Symbol(name) for name, size in self._sizes.items()}
        return tuple(
            size.node.expr.xreplace(own)
            if isinstance(size, torch.SymInt)
            else sympy.Integer(int(size))
            for size in sizes
        )


def _replace(
    node: ir.Node,
    operator: FusedOperator,
    letters: _Letters,
    casts: dict[ir.Value, ir.Value],
    architecture: int,
) -> list[Plugin]:
    """Add the plugins of a fused operator to the graph, and substitute their outputs for its own.

    Args:
        node: The operator.
        operator: Its launches.
        letters: Letters of dynamic axes.
        casts: Casts of the graph from bool to int32, which this function adds to.
        architecture: Compute capability to compile for, times ten.
    """
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    values = list(node.inputs)
    for output, index in operator.in_place:
        values[index] = node.outputs[output]  # which the operator's body goes on to write
    for index, value in enumerate(values):
        if value is not None and value.dtype == ir.DataType.BOOL:
            if value not in casts:
                cast = ir.node("Cast", [value], {"to": int(ir.DataType.INT32)})
                graph.append(cast)
                casts[value] = cast.outputs[0]
            values[index] = casts[value]
    inputs, outputs, launches = _launches(node, operator, letters.size)
    examples = _launches(node, operator, lambda size: size if isinstance(size, int) else _EXAMPLE)
    of_tensor = dict(zip(map(id, inputs), values, strict=True))
    results = dict(zip(map(id, outputs), node.outputs, strict=True))
    plugins = []
    for launch, example in zip(launches, examples[2], strict=True):
        parameters: dict[int, list[str]] = {}
        for name, tensor in launch.tensors.items():
            parameters.setdefault(id(tensor), []).append(name)
        tensors = {id(tensor): tensor for tensor in launch.tensors.values()}
        taken = [key for key in tensors if key in of_tensor]
        written = [key for key in tensors if key not in of_tensor]
        kernel = specialize(example)
        integers = [name for name, _ in kernel.types if name not in launch.tensors]
        plugin = Plugin(
            kernel=kernel,
            inputs=tuple((letters.expressions(tensors[k].shape), tensors[k].dtype) for k in taken),
            integers=letters.expressions([launch.arguments[name] for name in integers]),
            outputs=tuple(
                (letters.expressions(tensors[k].shape), tensors[k].dtype) for k in written
            ),
            arguments=(
                *(tuple(parameters[k]) for k in taken),
                *((name,) for name in integers),
                *(tuple(parameters[k]) for k in written),
            ),
            grid=letters.expressions(launch.grid),
            architecture=architecture,
        )
        plugins.append(plugin)
        layer = ir.node(
            plugin.name,
            [of_tensor[key] for key in taken],
            {"plugin_namespace": NAMESPACE, "plugin_version": "1", "aot": 1},
            num_outputs=len(written),
        )
        graph.append(layer)
        for key, value in zip(written, layer.outputs, strict=True):
            of_tensor[key] = value
            result = results.get(key)
            if result is not None and result.dtype == ir.DataType.BOOL:
                cast = ir.node("Cast", [value], {"to": int(ir.DataType.BOOL)})
                graph.append(cast)
                value = cast.outputs[0]
            if result is not None:
                substitute(value, result)
    return plugins


def _launches(
    node: ir.Node, operator: FusedOperator, size: Callable[[int | ir.SymbolicDim], Any]
) -> tuple[list[Any], list[Tensor | None], Sequence[Launch]]:
    """Return inputs, outputs and launches of an operator on the meta device.

    Outputs that nothing reads, or that the operator updates in place, are None.

    Args:
        node: The operator.
        operator: Its launches.
        size: Maps the sizes of axes to integers or PyTorch's symbols.

    Raises:
        EngineError: The shape of an input is not known.
    """

    def empty(shape: Sequence[Any], dtype: torch.dtype) -> Tensor:
        dtype = torch.int32 if dtype == torch.bool else dtype
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    inputs: list[Any] = []
    for index, value in enumerate(node.inputs):
        shape = None if value is None else axes(value)
        if index in operator.scalars:
            inputs.append(constant_of(value).item())
        elif value is None or shape is None or value.dtype is None:
            raise EngineError(f"input {index} of {node.op_type} has no known shape and type.")
        else:
            inputs.append(empty([size(axis) for axis in shape], DTYPES[int(value.dtype)]))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    forms = operator.forms(attributes, inputs)
    outputs = [
        empty(*form)
        if not isinstance(form, Tensor) and (value.uses() or value.is_graph_output())
        else None
        for form, value in zip(forms, node.outputs, strict=True)
    ]
    return inputs, outputs, operator.describe(attributes, inputs, outputs)


# ---- TensorRT ----


def with_plugins(content: bytes, architecture: int) -> tuple[bytes, Callable[[Any], None]]:
    """Insert plugins into an ONNX file.

    Args:
        content: The file.
        architecture: Compute capability to compile for, times ten.

    Returns:
        The new file, and the function that registers its plugins with the package tensorrt.

    Raises:
        EngineError: See `insert_plugins`.
    """
    model = ir.from_proto(onnx.load_model_from_string(content))
    plugins = insert_plugins(model, architecture)
    register = functools.partial(register_plugins, plugins)
    return ir.to_proto(model).SerializeToString(), register


def register_plugins(plugins: Sequence[Plugin], trt: Any) -> None:
    """Compile plugins and add them to TensorRT's registry, each once in a process.

    Args:
        plugins: Plugins of a graph.
        trt: The package tensorrt.

    Raises:
        EngineError: TensorRT cannot launch a kernel.
        BackendError: Triton compiles a kernel to something unexpected.
    """
    new = {plugin.name: plugin for plugin in plugins if plugin.name not in _registered}
    if not new:
        return
    kernels = {plugin.kernel for plugin in new.values()}
    compiled = compile_to_ptx(
        kernels, plugins[0].architecture, min(available_cores(), len(kernels))
    )
    for name, plugin in new.items():
        _register(trt, name, plugin, compiled[plugin.kernel])
        _registered.add(name)


def _register(trt: Any, name: str, plugin: Plugin, ptx: Ptx) -> None:
    trtp = importlib.import_module(f"{trt.__name__}.plugin")
    text = arrange(ptx, plugin)
    if ptx.shared > _MOST_SHARED:
        raise EngineError(
            f"{ptx.entry} needs {ptx.shared} bytes of shared memory, and plugins have at most "
            f"{_MOST_SHARED}; build without plugins."
        )

    def describe(*inputs: Any) -> tuple[Any, ...]:
        sizes = plugin.sizes([tensor.shape_expr for tensor in inputs])
        return tuple(
            trtp.from_shape_expr(
                tuple(evaluate(size, sizes) for size in shape), getattr(trt.DataType, _TYPES[dtype])
            )
            for shape, dtype in plugin.outputs
        )

    def launch(*arguments: Any) -> tuple[Any, ...]:
        sizes = plugin.sizes([x.shape_expr for x in arguments[: len(plugin.inputs)]])
        values = trtp.KernelLaunchParams()
        for axis, size in zip("xyz", plugin.grid, strict=False):
            setattr(values, f"grid_{axis}", evaluate(size, sizes))
        values.block_x, values.shared_mem = ptx.threads, ptx.shared
        integers = tuple(trtp.SymInt32(evaluate(x, sizes)) for x in plugin.integers)
        return ptx.entry, text, values, trtp.SymIntExprs.from_tuple(integers)

    # TensorRT reads the numbers of inputs and outputs from signatures, which it checks.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = [
        inspect.Parameter(f"input_{index}", kind, annotation=trtp.TensorDesc)
        for index in range(len(plugin.inputs))
    ]
    others = [inspect.Parameter(one, kind) for one in ("outputs", "tactic")]
    results = types.GenericAlias(tuple, (trtp.TensorDesc,) * len(plugin.outputs))
    returned = (str, str, trtp.KernelLaunchParams, trtp.SymIntExprs)
    signed: Any = describe, launch
    signed[0].__signature__ = inspect.Signature(inputs, return_annotation=results)
    signed[1].__signature__ = inspect.Signature(
        [*inputs, *others], return_annotation=types.GenericAlias(tuple, returned)
    )
    trtp.register(f"{NAMESPACE}::{name}")(describe)
    trtp.aot_impl(f"{NAMESPACE}::{name}")(launch)


def arrange(ptx: Ptx, plugin: Plugin) -> str:
    """Declare a kernel's parameters in the order in which TensorRT passes arguments.

    A kernel reads its parameters by name, so their declarations alone change. Parameters that it
    does not use go: scratch memory, and further ones for a tensor that it gets.

    Raises:
        EngineError: The kernel uses two parameters for one argument, or one without an argument.
    """
    entry = re.escape(ptx.entry)
    pattern = re.compile(rf"(?<=\.entry {entry}\()(.*?)(?=\n\))", re.DOTALL)
    head, declared, body = pattern.split(ptx.text)
    lines = [line.strip() for line in declared.split(",")]
    used = {int(number) for number in re.findall(rf"\b{entry}_param_(\d+)\b", body)}
    order = [name for name, _ in plugin.kernel.types]
    chosen: list[int] = []
    for names in plugin.arguments:
        indices = [order.index(name) for name in names]
        found = used.intersection(indices) or {indices[0]}
        if len(found) > 1:
            raise EngineError(
                f"{ptx.entry} uses several of {', '.join(names)}; build without plugins."
            )
        chosen += found
    if missing := used.difference(chosen):
        raise EngineError(f"{ptx.entry} uses parameters {missing} that no plugin has.")
    return head + ",".join(f"\n\t{lines[index]}" for index in chosen) + body

"""Ahead-of-time plugins, whose kernels run in Triton's interpreter as TensorRT would call them.

libnvinfer is in no package index. With NVIDIA's wheel tensorrt-cu13-bindings, whose Python sources
need no library, the names and signatures that are used here are compared with its own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from support.engines import ONNX_TYPES
from support.small_models import small_model

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler
from translate_trt.export.engines import builder as builder_module
from translate_trt.export.engines import plugins as plugins_module
from translate_trt.export.engines.network import (
    EngineError,
    dtype_name,
    inputs_outputs,
    load_builder,
    parse,
)
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.engines.plugins import (
    NAMESPACE,
    Plugin,
    arrange,
    evaluate,
    insert_plugins,
    register_plugins,
)
from translate_trt.export.trace import check
from translate_trt.runtime.backends.engine_log import logger
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.bundle.contract import Contract, request_values
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.gpu.cubins import Ptx, compile_to_ptx
from translate_trt.runtime.gpu.launch import DEPENDENT
from translate_trt.runtime.options import SearchOptions

pytestmark = pytest.mark.slow

TARGET, BEAMS = "tensorrt-fp32", 2

#: Graphs with plugins, and the plugins, by role.
Inserted: TypeAlias = dict[str, tuple[onnx.ModelProto, tuple[Plugin, ...]]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Contract, dict[str, Path]]:
    """The contract and the graphs with fused operators, by role."""
    engines = EngineOptions(plugins=True)
    options = BuildOptions((TARGET,), beam_size=BEAMS, attention=True, engines=engines)
    compiler = Compiler(small_model(), Limits(24, 74), options)
    folder = tmp_path_factory.mktemp("graphs")
    for role, model in compiler.graphs(TARGET).items():
        onnx.save(check(model), folder / f"{role}.onnx")
    return compiler.contract(TARGET), {
        role: folder / f"{role}.onnx" for role in ("encoder", "step")
    }


@pytest.fixture(scope="module")
def inserted(
    compiled: tuple[Contract, dict[str, Path]],
) -> Inserted:
    """The graphs with plugins, and the plugins, by role."""
    found = {}
    for role, path in compiled[1].items():
        model = ir.load(path)
        plugins = insert_plugins(model, 90)
        found[role] = ir.to_proto(model), plugins
    return found


def call(plugin: Plugin, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a kernel with the arguments of TensorRT: inputs, integers, and outputs."""
    sizes = plugin.sizes([x.shape for x in inputs])
    tensors = [torch.tensor(np.ascontiguousarray(x)) for x in inputs]
    assert [x.dtype for x in tensors] == [dtype for _, dtype in plugin.inputs]
    before = [x.clone() for x in tensors]
    outputs = [
        torch.full([evaluate(size, sizes) for size in shape], -7, dtype=dtype)
        for shape, dtype in plugin.outputs
    ]
    values = [*tensors, *(evaluate(x, sizes) for x in plugin.integers), *outputs]
    arguments = {
        name: value for names, value in zip(plugin.arguments, values, strict=True) for name in names
    }
    kernel = getattr(importlib.import_module(plugin.kernel.module), plugin.kernel.name)
    grid = tuple(evaluate(size, sizes) for size in plugin.grid)
    arguments |= {**dict(plugin.kernel.constants), DEPENDENT: False}
    kernel[grid](**arguments, **dict(plugin.kernel.options))
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))
    return [x.numpy() for x in outputs]


def layer(plugin: Plugin) -> type[OpRun]:
    """Return the operator of a plugin's nodes for ONNX's reference implementation."""

    def run(_: OpRun, *inputs: np.ndarray, **attributes: Any) -> tuple[np.ndarray, ...]:
        return tuple(call(plugin, inputs))

    return type(plugin.name, (OpRun,), {"op_domain": "", "_run": run})


def test_graphs_with_plugins_compute_the_same(
    compiled: tuple[Contract, dict[str, Path]],
    inserted: Inserted,
) -> None:
    """The encoder and two steps against the bodies of the fused operators."""
    contract, paths = compiled
    lengths = torch.tensor([17, 9])
    sources = torch.randint(4, 40, (2, 17), generator=torch.Generator().manual_seed(1))
    values: dict[str, Any] = contract.initial_state(2, BEAMS, 4)
    values |= request_values([SearchOptions()] * 2, np.full(2, 20))
    state = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in values.items()}

    def run(role: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        model, plugins = inserted[role]
        evaluator = ReferenceEvaluator(model, new_ops=[layer(plugin) for plugin in plugins])
        feeds = {x.name: inputs[x.name].numpy() for x in model.graph.input}
        found = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        program = Program(paths[role], *contract.graphs[role], torch.device("cpu"), kernels=False)
        copies = {name: tensor.clone() for name, tensor in inputs.items()}
        plan, outputs = Plan.record(program, copies)
        expected = dict(zip(plan.outputs, outputs, strict=True))
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(torch.from_numpy(found[name]), tensor, msg=name)
        return {name: tensor.clone() for name, tensor in expected.items()}

    encoded = run("encoder", {"source_ids": sources, "source_lengths": lengths})
    for _ in range(2):
        following = run("step", {**encoded, **state})
        state |= {spec.name: following[spec.following.name] for spec in contract.state}
    assert int(state["positions"][0]) == 2


# ---- TensorRT's side ----


class FakePlugins:
    """The parts of `tensorrt.plugin` that are used; expressions of sizes are integers."""

    class TensorDesc:
        def __init__(self, shape_expr: Sequence[int], dtype: Any = None) -> None:
            self.shape_expr, self.dtype = shape_expr, dtype

    class KernelLaunchParams(SimpleNamespace):
        pass

    class SymInt32(int):
        pass

    class SymIntExprs(tuple[int, ...]):
        @classmethod
        def from_tuple(cls, shape_exprs: tuple[int, ...]) -> FakePlugins.SymIntExprs:
            return cls(shape_exprs)

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], Any] = {}

    def register(self, plugin_id: str) -> Any:
        return lambda function: self.functions.update({("register", plugin_id): function})

    def aot_impl(self, plugin_id: str) -> Any:
        return lambda function: self.functions.update({("aot_impl", plugin_id): function})

    @staticmethod
    def from_shape_expr(shape_expr: tuple[int, ...], dtype: Any) -> FakePlugins.TensorDesc:
        return FakePlugins.TensorDesc(shape_expr, dtype)


def written(kernels: Sequence[Any], *_: int) -> dict[Any, Ptx]:
    """Write PTX whose kernels use each parameter that an argument is named after."""
    found = {}
    for kernel in kernels:
        names = [f"{kernel.name}_param_{index}" for index in range(len(kernel.types) + 2)]
        declared = ",".join(f"\n\t.param .u64 {name}" for name in names)
        found[kernel] = Ptx(
            f".visible .entry {kernel.name}({declared}\n)\n{{}}", kernel.name, 64, 9
        )
    return found


def test_plugins_are_registered_once_with_what_their_launches_need(
    inserted: Inserted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakePlugins()
    trt: Any = SimpleNamespace(__name__="tensorrt")
    trt.DataType = Enum("DataType", "FLOAT HALF BF16 INT32 INT64")
    monkeypatch.setitem(sys.modules, "tensorrt.plugin", fake)
    monkeypatch.setattr(plugins_module, "compile_to_ptx", written)
    monkeypatch.setattr(plugins_module, "_registered", set())
    plugins = inserted["step"][1]
    register_plugins(plugins, trt)
    assert len(fake.functions) == 2 * len(plugins)
    register_plugins(plugins, SimpleNamespace())  # which would fail if any were left
    sizes = {"N": 3, "S": 130, "P": 600}
    for plugin in plugins:
        describe = fake.functions["register", f"{NAMESPACE}::{plugin.name}"]
        launch = fake.functions["aot_impl", f"{NAMESPACE}::{plugin.name}"]
        shapes = [[int(x.subs(sizes)) for x in shape] for shape, _ in plugin.inputs]
        inputs = [FakePlugins.TensorDesc(shape) for shape in shapes]
        outputs = describe(*inputs)
        assert [list(x.shape_expr) for x in outputs] == [
            [int(x.subs(sizes)) for x in shape] for shape, _ in plugin.outputs
        ]
        entry, text, values, integers = launch(*inputs, outputs, 0)
        assert entry == plugin.kernel.name
        assert text.count(".param") == len(plugin.arguments)
        assert (values.block_x, values.shared_mem) == (64, 9)
        assert values.grid_x == int(plugin.grid[0].subs(sizes))
        assert [*integers] == [int(x.subs(sizes)) for x in plugin.integers]
        signature = inspect.signature(describe)
        assert len(signature.parameters) == len(inputs)
        assert len(signature.return_annotation.__args__) == len(outputs)
        assert [*inspect.signature(launch).parameters][len(inputs) :] == ["outputs", "tactic"]
    names = {plugin.kernel.name: plugin for plugin in plugins}
    assert {"cached_attention_kernel", "norm_kernel", "select_beams_kernel"} <= names.keys()
    assert [str(x) for x in names["attention_mean_kernel"].grid] == ["N", "((S + 127)//128)"]


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_the_bindings_have_what_the_fake_has() -> None:
    found = importlib.util.find_spec("tensorrt_bindings")
    if found is None or found.origin is None:
        pytest.skip("needs pip install --no-deps tensorrt-cu13-bindings")
    sources = (Path(found.origin).parent / "plugin").glob("*.py")
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    functions = {
        node.name: [argument.arg for argument in node.args.args]
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert {"TensorDesc", "KernelLaunchParams", "SymInt32", "SymIntExprs"} <= classes
    for name in ("register", "aot_impl", "from_shape_expr"):
        own = [*inspect.signature(getattr(FakePlugins(), name)).parameters]
        assert functions[name][: len(own)] == own
    assert functions["from_tuple"] == ["cls", "shape_exprs"]


def test_parameters_are_declared_in_the_order_of_the_arguments(
    inserted: Inserted, tmp_path: Path
) -> None:
    """Real PTX shows alone which parameters a kernel uses; NVIDIA's assembler takes the result."""
    from triton import knobs

    (plugin,) = (x for x in inserted["step"][1] if x.kernel.name == "select_logits")
    (ptx,) = compile_to_ptx([plugin.kernel], 80).values()
    text = arrange(ptx, plugin)
    declared = re.search(r"\.entry \w+\((.*?)\n\)", text, re.DOTALL)
    assert declared is not None
    indices = [int(index) for index in re.findall(r"_param_(\d+)", declared[1])]
    order = [name for name, _ in plugin.kernel.types]
    used = [order[index] for index in indices]
    assert all(name in names for name, names in zip(used, plugin.arguments, strict=True))
    assert "block_maxima" in used  # without a bias, the tensor is also passed as one
    path = tmp_path / "kernel.ptx"
    path.write_text(text)
    command = [knobs.nvidia.ptxas.path, "-arch=sm_80", str(path), "-o", str(tmp_path / "cubin")]
    subprocess.run(command, check=True)
    missing = replace(plugin, arguments=plugin.arguments[1:])
    with pytest.raises(EngineError, match="that no plugin has"):
        arrange(ptx, missing)


def test_the_layers_between_plugins_are_tensorrts(inserted: Inserted) -> None:
    """TensorRT-RTX parses what is left without the plugins, whose inputs have the right types."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    rtx = load_builder("tensorrt_rtx")
    for role, (proto, plugins) in inserted.items():
        cut, by_name = onnx.ModelProto(), {plugin.name: plugin for plugin in plugins}
        cut.CopyFrom(proto)
        graph, results, wanted = cut.graph, {}, {}
        for node in [node for node in graph.node if node.op_type in by_name]:
            plugin = by_name[node.op_type]
            results |= dict(zip(node.output, plugin.outputs, strict=True))
            wanted |= dict(zip(node.input, plugin.inputs, strict=True))
            graph.node.remove(node)
        computed = {name for node in graph.node for name in node.output}
        wanted = {name: form for name, form in wanted.items() if name in computed}
        del graph.output[:]
        for side, forms in ((graph.input, results), (graph.output, wanted)):
            for name, (shape, dtype) in forms.items():
                sizes = [int(size) if size.is_Integer else str(size) for size in shape]
                side.append(helper.make_tensor_value_info(name, ONNX_TYPES[named(dtype)], sizes))
        trt_builder = rtx.module.Builder(logger("tensorrt_rtx"))
        network = parse(rtx, trt_builder, cut.SerializeToString(), role)
        _, found = inputs_outputs(network)
        assert {one.name: (len(one.shape), dtype_name(one)) for one in found} == {
            name: (len(shape), named(dtype)) for name, (shape, dtype) in wanted.items()
        }
        kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
        assert kinds.count("KV_CACHE_UPDATE") == (2 if role == "step" else 0)


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("capability", "level", "expected"),
    [("9.0", "none", 90), ("12.1", "same_compute_capability", 121), ("8.9", "ampere_plus", 80),
     ("7.5", "none", None)],
)  # fmt: skip
def test_gpus_that_plugins_are_compiled_for(
    capability: str, level: str, expected: int | None
) -> None:
    record: Any = SimpleNamespace(compute_capabilities=(capability,), hardware_compatibility=level)
    if expected is None:
        with pytest.raises(OptionError, match=r"8\.0"):
            builder_module._plugin_architecture(record)
    else:
        assert builder_module._plugin_architecture(record) == expected

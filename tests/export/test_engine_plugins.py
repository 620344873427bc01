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
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from support.small_models import small_model

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler
from translate_trt.export.engines import builder as builder_module
from translate_trt.export.engines import plugins as plugins_module
from translate_trt.export.engines.builder import build_engine
from translate_trt.export.engines.network import Builder, EngineError, Graph, load_builder, parse
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
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.bundle.contract import Contract, request_values
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.gpu.cubins import Ptx, compile_to_ptx
from translate_trt.runtime.options import SearchOptions

pytestmark = pytest.mark.slow

TARGET, BEAMS = "tensorrt-fp32", 2
H100 = Gpu("NVIDIA H100 PCIe", "9.0", 114)


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
) -> dict[str, tuple[onnx.ModelProto, tuple[Plugin, ...]]]:
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
    assert [torch.from_numpy(x).dtype for x in inputs] == [dtype for _, dtype in plugin.inputs]
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in inputs]
    before = [x.clone() for x in tensors]
    outputs = [
        torch.full([evaluate(size, sizes) for size in shape], -7, dtype=dtype)
        for shape, dtype in plugin.outputs
    ]
    values = [*tensors, *(evaluate(x, sizes) for x in plugin.integers), *outputs]
    arguments = {
        name: value
        for names, value in zip(plugin.arguments, values, strict=True)
        for name in names
    }
    kernel = getattr(importlib.import_module(plugin.kernel.module), plugin.kernel.name)
    grid = tuple(evaluate(size, sizes) for size in plugin.grid)
    kernel[grid](**arguments, **dict(plugin.kernel.constants), **dict(plugin.kernel.options))
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))
    return [x.numpy() for x in outputs]


def layer(plugin: Plugin) -> type[OpRun]:
    """Return the operator of a plugin's nodes for ONNX's reference implementation."""

    def run(_: OpRun, *inputs: np.ndarray, **attributes: Any) -> tuple[np.ndarray, ...]:
        return tuple(call(plugin, inputs))

    return type(plugin.name, (OpRun,), {"op_domain": "", "_run": run})


def test_graphs_with_plugins_compute_the_same(
    compiled: tuple[Contract, dict[str, Path]],
    inserted: dict[str, tuple[onnx.ModelProto, tuple[Plugin, ...]]],
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

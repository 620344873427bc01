"""Execution plans, read from engines that tensorrt_rtx builds without a GPU."""

from __future__ import annotations

import json
import re

import pytest
from onnx import helper
from support.engines import attention, crafted

from translate_trt.export.engines.builder import build_engine
from translate_trt.export.engines.cache import Engine
from translate_trt.export.engines.network import EngineError, Graph, load_builder
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.engines.plan import Kernel, Plan, Tensor, read_inspection, read_plans
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.contract import TensorSpec

SLOTS = 64
CACHE = 8 * SLOTS * 64  # elements of a sentence's cache in `attention`


def built(graph: Graph, *profiles: Profile) -> Engine:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    options = EngineOptions(cache=None, compute_capabilities=("8.9",))
    return build_engine(load_builder("tensorrt_rtx"), graph, profiles, options)


def scratch_in_log(engine: Engine) -> list[int]:
    return [int(size) for size in re.findall(r"Max Scratch Memory: (\d+) bytes", engine.log)]


# ---- real engines ----


def test_fused_attention_copies_the_keys_and_values_that_it_reads() -> None:
    engine = built(attention("float16", "float16", SLOTS), Profile(1, 32))
    (plan,) = read_plans(engine.plan)
    copies = plan.copies(CACHE)
    assert [kernel.operations for kernel in copies] == [("Resh",), ("Resh",)]
    assert [tensor.name for kernel in copies for tensor in kernel.inputs] == ["key.1", "value.1"]
    assert all(kernel.layers == ("att",) for kernel in copies)
    assert all(kernel.outputs[0].bytes == 2 * CACHE for kernel in copies)
    # The update in place covers new elements only.
    assert plan.launches == 4
    update, attended = plan.kernels[0], plan.kernels[-1]
    assert update.outputs[0] in update.inputs
    assert not update.is_copy
    assert attended.name == "_gemm_mha_v2"
    assert attended.grid == (8, 1, 1)
    assert plan.covering(CACHE) == copies
    assert plan.copies(CACHE + 1) == ()
    assert [plan.scratch_bytes] == scratch_in_log(engine) == [2 * 2 * CACHE]
    assert (plan.shape_copies, plan.shape_checks) == (0, 0)  # N can only be 1
    assert plan.architectures == ("sm89",)


def test_there_is_a_plan_for_each_profile_in_order() -> None:
    engine = built(attention("float16", "float16", SLOTS), Profile(1, 32), Profile(8, 32))
    plans = read_plans(engine.plan)
    assert [len(plan.copies(CACHE)) for plan in plans] == [2, 2]
    assert [len(plan.copies(8 * CACHE)) for plan in plans] == [0, 2]
    assert [plan.scratch_bytes for plan in plans] == scratch_in_log(engine)
    # Dynamic shapes: sizes are computed on the host and copied to the GPU.
    assert plans[1].shape_copies > 0
    assert plans[1].shape_checks > 0
    read = plans[1].copies(8 * CACHE)[0].inputs[0]
    assert isinstance(read.dims[0], str)
    assert read.dims[1:] == (8, SLOTS, 64)
    assert read.elements is None
    assert read.bytes is None


def test_an_update_in_place_copies_nothing() -> None:
    past, new = ("N", 8, SLOTS, 64), ("N", 8, 4, 64)
    graph = crafted(
        [helper.make_node("TensorScatter", ["past", "new", "place"], ["next"], axis=2)],
        [
            TensorSpec("past", "float16", past),
            TensorSpec("new", "float16", new),
            TensorSpec("place", "int64", ("N",)),
        ],
        [TensorSpec("next", "float16", past)],
    )
    (plan,) = read_plans(built(graph, Profile(1, 32)).plan)
    assert plan.covering(CACHE) == ()
    assert plan.scratch_bytes == 0


def test_a_gemm_counts_once_with_its_epilogue() -> None:
    weights = helper.make_tensor("w", 10, [64, 128], [0.5] * (64 * 128))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights),
        helper.make_node("MatMul", ["x", "w"], ["h"], name="linear"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    graph = crafted(
        nodes,
        [TensorSpec("x", "float16", (64, 64))],
        [TensorSpec("y", "float16", (64, 128))],
    )
    (plan,) = read_plans(built(graph, Profile(1, 32)).plan)
    (kernel,) = plan.kernels
    assert kernel.is_gemm
    assert kernel.layers == ("linear", "relu")
    assert kernel.grid is None
    assert any(tensor.constant and tensor.bytes == 2 * 64 * 128 for tensor in kernel.inputs)


# ---- texts ----


PROGRAM = """header {
  version = 5
  region = { name=devmem_0 size=1000 type=user constant=false }
  region = { name=devmem_1 size=24 type=user constant=false }
  region = { name=consts size=500 constant=true }
  inputs={ "x.1" }
  accelerators={sm80 }
}
descriptors {
  tensor={ dims={ 8 "n" } name="x.1" region="" strides={ 4 1 } type=half }
  tensor={ const_payload_size=64 dims={ 8 4 } name="w" region=consts type=bf16 }
  sub_tensor={ base="w" dims={ 2 4 } name="w^deref" type=bf16 }
}
main {
 label bb1:
  shape_call={ name="sizes" stream=0 layers="" }
  function={ name=__myl_TranCast fqn=__myl_TranCast_0x1 input_args={ "x.1" "w^deref" }
    output_args={ "w" } grid = { 2 1 1 } block = { 32 4 1 } vec_width=2 unroll_factor=1
    is_tiled=true tile_dims={ 16 64 } cond_fqn = { function = other grid = { 9 9 9 } }
    layers="[ONNX Layer: a] {[ONNX Layer: b]" }
  signal={ name="1" stream=1 }
  wait={ name="1" stream=0 }
  fully_connected={ name="linear" output={ "w" } input={ "x.1" } layers="" }
}
shape_main {
 label bb2:
  assert={ name=check msg="
In op 'reshape' { Error: " }
  copy={ name="copy_s2d" output={ "n" } input={ "m" } speculate={ }}
}
"""
FALLBACK = """header {
  region = { name=runtime-fusion-consts size=132 }
}
main {
 label bb1:
  fully_connected={ name="linear" }
  add={ name="bias" }
  relu={ name="relu" }
}
"""


def test_a_program_is_read_from_its_text() -> None:
    engine = b"engine\0" + PROGRAM.encode() + b"}2\0\1" + FALLBACK.encode() + b"\0weights"
    x = Tensor("x.1", "half", (8, "n"), "x.1")
    weights = Tensor("w", "bf16", (8, 4), "w", constant=True)
    view = Tensor("w^deref", "bf16", (2, 4), "w")
    assert read_plans(engine) == (
        Plan(
            kernels=(
                Kernel(
                    "__myl_TranCast", "function", ("a", "b"), (x, view), (weights,),
                    (2, 1, 1), (32, 4, 1), covered=2 * 16 * 64,
                ),
                Kernel("linear", "fully_connected", (), (x,), (weights,)),
            ),
            scratch_bytes=1024,
            shape_copies=1,
            shape_checks=1,
            fallback_launches=2,
            architectures=("sm80",),
        ),
    )  # fmt: skip


def test_a_kernel_covers_its_vectors_unless_it_is_tiled() -> None:
    text = PROGRAM.replace("is_tiled=true", "is_tiled=false")
    (plan,) = read_plans(text.encode())
    assert plan.kernels[0].covered == 2 * 32 * 4 * 2
    text = PROGRAM.replace("grid = { 2 1 1 }", "grid = { 2 0 1 }")
    (plan,) = read_plans(text.encode())
    assert plan.kernels[0].covered is None
    # Without a grid, a copy covers its output.
    assert plan.copies(32) == plan.kernels[:1]
    assert plan.copies(33) == ()


@pytest.mark.parametrize(
    "engine",
    [b"", b"ftrt" + bytes(64), b"header {\n", FALLBACK.encode()],
    ids=["empty", "another format", "cut off", "only a fallback"],
)
def test_other_files_are_refused(engine: bytes) -> None:
    with pytest.raises(EngineError, match="no execution plan"):
        read_plans(engine)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(EngineError, match=r"'int3'.*plan.py"):
        Tensor("x", "int3", (2,), "x").bytes  # noqa: B018


# ---- engine inspector ----


def test_an_inspection_gives_kernels_and_sizes() -> None:
    def tensor(name: str, dims: list[int], kind: str) -> dict[str, object]:
        return {"Name": name, "Location": "Device", "Dimensions": dims, "Format/Datatype": kind}

    cache = tensor("self_key_0", [64, 8, 1224, 64], "Row major linear FP16 format")
    layers = [
        {
            "Name": "__myl_ReshTran_myl0_12",
            "LayerType": "kgen",
            "Inputs": [cache],
            "Outputs": [cache],
            "Metadata": "[ONNX Layer: node_Attention_1]\u001f[ONNX Layer: node_2]",
        },
        {
            "Name": "__myl_MulSum_myl0_13",
            "LayerType": "kgen",
            "Inputs": [cache],
            "Outputs": [tensor("scores", [64, 8, 4, 1224], "Float")],
        },
        {"Name": "linear_myl0_14", "LayerType": "gemm", "Inputs": [], "Outputs": []},
    ]
    plan = read_inspection(json.dumps({"Layers": layers, "Bindings": ["self_key_0"]}))
    assert plan.launches == 3
    assert plan.copies(64 * 8 * 1224 * 64) == plan.kernels[:1]
    assert plan.kernels[0].layers == ("node_Attention_1", "node_2")
    assert plan.kernels[0].inputs[0].bytes == 2 * 64 * 8 * 1224 * 64
    assert plan.kernels[1].outputs[0].bytes == 4 * 64 * 8 * 4 * 1224
    assert plan.kernels[2].is_gemm


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"Layers": ["a name"]}', '{"Layers": [{}]}'],
    ids=["empty", "a list", "no layers", "names only", "no fields"],
)
def test_descriptions_without_details_are_refused(text: str) -> None:
    with pytest.raises(EngineError, match="DETAILED"):
        read_inspection(text)

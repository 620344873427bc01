"""Memory and queue of the torch backend on the CPU, and its calls of a GPU on a fake."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.fake_accelerator import FakeAccelerator

from translate_trt.runtime.backends.device import ALIGNMENT, Launch
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.backends.pytorch.torch_device import Memory, TorchDevice, exact_math
from translate_trt.runtime.bundle.contract import TensorSpec
from translate_trt.runtime.errors import BackendError, BundleError

CPU = torch.device("cpu")
CACHE = ("N", 2, 8, 4)


def step_model(**changes: str) -> onnx.ModelProto:
    """Return a graph with a cache: y = x + the sum of the updated cache."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "TensorScatter", ["cache", "update", "positions"], ["next_cache"], axis=2),
        helper.make_node("ReduceSum", [changes.get("summed", "next_cache"), "axes"], ["sum"],
                         keepdims=0),
        # Export writes a cast before it, and sizes of caches.
        helper.make_node("Cast", ["cache"], ["cache_16"], to=TensorProto.FLOAT16),
        helper.make_node("Shape", ["cache_16"], ["size"], end=1),
        helper.make_node("Expand", ["one", changes.get("size", "size")], ["ones"]),
        helper.make_node("Add", ["x", "ones"], ["x_1"]),
        helper.make_node(changes.get("operator", "Add"), ["x_1", "sum"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "step",
        [value("x", TensorProto.FLOAT, ["N"]), value("update", TensorProto.FLOAT, ["N", 2, 1, 4]),
         value("positions", TensorProto.INT64, ["N"]),
         value("cache", TensorProto.FLOAT, list(CACHE))],
        [value("y", TensorProto.FLOAT, ["N"]),
         value("next_cache", TensorProto.FLOAT, list(CACHE))],
        [numpy_helper.from_array(np.array([1, 2, 3]), "axes"),
         numpy_helper.from_array(np.array(1, np.float32), "one")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


INPUTS = (
    TensorSpec("x", "float32", ("N",)), TensorSpec("update", "float32", ("N", 2, 1, 4)),
    TensorSpec("positions", "int64", ("N",)), TensorSpec("cache", "float32", CACHE, in_place=True),
)  # fmt: skip
OUTPUTS = (TensorSpec("y", "float32", ("N",)), TensorSpec("next_cache", "float32", CACHE))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    path = tmp_path / "step.onnx"
    onnx.save(step_model(), path)
    return Program(path, INPUTS, OUTPUTS, CPU)


class Step:
    """The memory of a step on a device."""

    def __init__(self, device: TorchDevice, rows: int = 3) -> None:
        self.device, self.rows = device, rows
        self.shapes = {
            spec.name: tuple(rows if axis == "N" else int(axis) for axis in spec.axes)
            for spec in INPUTS
        }
        sizes = {"x": 4 * rows, "update": 32 * rows, "positions": 8 * rows, "cache": 256 * rows}
        self.addresses = {name: device.allocate(size) for name, size in sizes.items()}
        self.addresses |= {"y": device.allocate(4 * rows), "next_cache": self.addresses["cache"]}

    def send(self, name: str, value: NDArray[Any]) -> None:
        pinned = self.device.pin(value.nbytes)
        ctypes.memmove(pinned, np.ascontiguousarray(value).ctypes.data, value.nbytes)
        self.device.copy_in(self.addresses[name], pinned, value.nbytes)

    def read(self, name: str, count: int) -> NDArray[np.float32]:
        pinned = self.device.pin(4 * count)
        self.device.copy_out(pinned, self.addresses[name], 4 * count)
        self.device.record().wait()
        return np.frombuffer(ctypes.string_at(pinned, 4 * count), np.float32)

    def prepare(self) -> None:
        self.send("x", np.arange(self.rows, dtype=np.float32))
        self.send("update", np.ones((self.rows, 2, 1, 4), np.float32))
        self.send("positions", np.arange(self.rows))
        self.device.fill(self.addresses["cache"], 0, 256 * self.rows)

    def launch(self) -> None:
        self.device.launch(Launch("step", 0, self.shapes, self.addresses))


def test_a_launch_works_on_the_bytes_at_the_addresses(program: Program) -> None:
    program.check_aliases(["cache"])
    step = Step(TorchDevice(CPU, {"step": program}))
    for _ in range(3):  # the first one makes the plan
        step.prepare()
        step.launch()
        np.testing.assert_array_equal(step.read("y", 3), [9, 10, 11])
        cache = step.read("cache", 192).reshape(3, 2, 8, 4)
        assert cache.sum() == 24
        assert all((cache[row, :, row] == 1).all() for row in range(3))


def test_a_capture_repeats_its_requests_on_the_same_addresses(program: Program) -> None:
    step = Step(TorchDevice(CPU, {"step": program}))
    step.device.begin_capture()
    with pytest.raises(BackendError, match="step graph"):
        step.launch()
    step.device.end_capture()
    step.prepare()
    step.launch()
    step.device.begin_capture()
    step.launch()
    step.device.copy(step.addresses["x"], step.addresses["y"], 12)
    replay = step.device.end_capture()
    step.prepare()
    np.testing.assert_array_equal(step.read("x", 3), [0, 1, 2])  # nothing has run
    for expected in ([9, 10, 11], [18, 19, 20]):
        replay()
        np.testing.assert_array_equal(step.read("x", 3), expected)


def test_addresses_and_shapes_that_do_not_fit(program: Program) -> None:
    step = Step(TorchDevice(CPU, {"step": program}))
    step.prepare()
    step.addresses["next_cache"] = step.device.allocate(768)
    with pytest.raises(BackendError, match="next_cache"):
        step.launch()
    step.addresses["next_cache"] = step.addresses["cache"]
    step.shapes["update"] = (3, 2, 5, 4)
    with pytest.raises(BackendError, match=r"bytes at 0x.* are not in the device's memory"):
        step.launch()
    step.shapes["update"] = (2, 2, 1, 4)
    with pytest.raises(BackendError, match="TensorScatter next_cache failed: "):
        step.launch()
    with pytest.raises(BackendError, match="capture"):
        step.device.end_capture()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"operator": "BitShift"}, "BitShift"), ({"summed": "cache"}, "updates cache")],
)
def test_graphs_that_are_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(step_model(**changes), path)
    with pytest.raises(BundleError, match=message):
        Program(path, INPUTS, OUTPUTS, CPU)


def test_other_inputs_and_damaged_files_are_refused(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    with pytest.raises(BundleError, match="outputs"):
        Program(path, (TensorSpec("x", "int64", ("N",)), *INPUTS[1:]), OUTPUTS, CPU)
    with pytest.raises(BundleError, match="write other"):
        program.check_aliases(["cache", "other"])
    path.write_bytes(b"\xff" * 9)
    with pytest.raises(BundleError, match=r"cannot read .*step\.onnx"):
        Program(path, INPUTS, OUTPUTS, CPU)


def test_sizes_must_not_depend_on_inputs(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(step_model(size="positions"), path)
    step = Step(TorchDevice(CPU, {"step": Program(path, INPUTS, OUTPUTS, CPU)}))
    step.prepare()
    with pytest.raises(BackendError, match="needs positions"):
        step.launch()


def test_plans_and_launches_are_bounded(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "translate_trt.runtime.backends.pytorch.torch_device._MOST_LAUNCHES", 2
    )  # fmt: skip
    device = TorchDevice(CPU, {"step": program})
    steps = [Step(device, rows) for rows in (1, 2, 3, 4)]
    for step in (*steps, *steps):
        step.prepare()
        step.launch()
        np.testing.assert_array_equal(step.read("y", 1), [9])
    assert len(device._plans) == len(device._launches) == 2


# ---- memory ----


def test_allocations_are_aligned_and_found_by_address() -> None:
    memory = Memory()

    def zeros(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    found = [(memory.allocate(size, zeros), size) for size in (1, 256, 1000, 0, 77)]
    for number, (address, size) in enumerate(found):
        assert address % ALIGNMENT == 0
        memory.bytes(address, size).fill_(number)
    for number, (address, size) in enumerate(found):
        assert (memory.bytes(address, size) == number).all()
    with pytest.raises(BackendError, match="device's memory"):
        memory.bytes(found[0][0], 257)
    with pytest.raises(BackendError, match="device's memory"):
        memory.bytes(16, 1)


@pytest.mark.parametrize("unit", [1, 2, 4, 8, 24])
def test_rows_are_copied_as_numpy_copies_them(unit: int) -> None:
    device = TorchDevice(CPU, {})
    rng = random.Random(unit)
    for _ in range(20):
        height, width = rng.randint(1, 5), unit * rng.randint(1, 9)
        pitches = [width + unit * rng.randint(0, 3) for _ in range(2)]
        offsets = [unit * rng.randint(0, 5) for _ in range(2)]
        size = 4096
        target, source = (device.allocate(size) for _ in range(2))
        content = np.random.default_rng(1).integers(0, 256, size).astype(np.uint8)
        pinned = device.pin(size)
        ctypes.memmove(pinned, content.ctypes.data, size)
        device.copy_in(source, pinned, size)
        device.fill(target, 0xFF, size)
        device.copy(target + offsets[0], source + offsets[1], width, height, *pitches)
        device.copy_out(pinned, target, size)
        expected = np.full(size, 0xFF, dtype=np.uint8)
        for row in range(height):
            to, of = (offsets[i] + row * pitches[i] for i in range(2))
            expected[to : to + width] = content[of : of + width]
        assert ctypes.string_at(pinned, size) == expected.tobytes()


# ---- the calls of a GPU; scripts/gpu_check.sh makes those of torch.cuda on one ----


@pytest.fixture
def pinned_here(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make pinned memory plain memory, and return whether each allocation asked for it."""
    asked: list[bool] = []
    empty: Callable[..., torch.Tensor] = torch.empty

    def fake(size: int, *, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", fake)
    return asked


class HostAs(TorchDevice):
    """A device of a kind of GPU whose memory is on the host."""

    def __init__(self, kind: str, programs: dict[str, Program], module: FakeAccelerator) -> None:
        super().__init__(torch.device(kind, 1), programs, module)

    def _allocate(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_calls_of_a_gpu(kind: str, program: Program, pinned_here: list[bool]) -> None:
    module = FakeAccelerator(kind)
    step = Step(HostAs(kind, {"step": program}, module))
    assert module.calls == [("set_device", f"{kind}:1"), ("Stream", f"{kind}:1")]
    step.prepare()
    step.launch()
    np.testing.assert_array_equal(step.read("y", 3), [9, 10, 11])
    event = {"blocking": True} if kind == "cuda" else {}
    assert module.calls[2:] == [("Event", event), ("record",), ("synchronize",)]
    assert set(pinned_here) == {True}
    del module.calls[:]
    replays = []
    for _ in range(2):
        step.device.begin_capture()
        step.launch()
        replays.append(step.device.end_capture())
    begun = {"capture_error_mode": "thread_local"} if kind == "cuda" else {}
    handle = [("current_blas_handle",)] if kind == "cuda" else []
    one = [*handle, ("capture_begin", begun), ("capture_end",), ("instantiate",)]
    assert module.calls == [("graph_pool_handle",), *one, *one]
    for replay in replays:
        replay()
    assert module.names()[-2:] == ["replay", "replay"]
    del step, replays, replay
    assert module.names()[-1] == "synchronize stream"


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("call", ["capture_begin", "capture_end", "instantiate"])
def test_a_capture_that_fails_leaves_the_device_usable(
    call: str,
    kind: str,
    program: Program,
    pinned_here: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeAccelerator(kind)
    for name, fake in (
        ("endAllocateToPool", module.end_allocate_to_pool),
        ("releasePool", module.release_pool),
    ):
        monkeypatch.setattr(torch._C, f"_{kind}_{name}", fake, raising=False)
    step = Step(HostAs(kind, {"step": program}, module))
    step.prepare()
    step.launch()

    def capture() -> Callable[[], None]:
        step.device.begin_capture()
        step.launch()
        return step.device.end_capture()

    first = capture()
    (pool,) = module.uses
    module.failing[call] = "operation failed due to a previous error during capture"
    for _ in range(2):
        with pytest.raises(BackendError, match="capture does"):
            capture()
        assert module.recording == []  # or all later allocations would ask the failed graph
    module.failing.clear()
    step.launch()
    second = capture()
    for replay in (first, second):
        replay()
        assert module.names()[-1] == "replay"
    del capture
    gc.collect()  # tracebacks hold failed graphs
    assert module.uses[pool] == 1  # the first graph replays from its memory
    assert sum(module.uses.values()) == 2


def test_one_capture_at_a_time(program: Program, pinned_here: list[bool]) -> None:
    """PyTorch does not support two captures at once in a process."""
    module = FakeAccelerator("cuda")
    first, second = (HostAs("cuda", {"step": program}, module) for _ in range(2))
    first.begin_capture()
    begun = threading.Event()

    def capture() -> None:
        second.begin_capture()
        begun.set()
        second.end_capture()

    thread = threading.Thread(target=capture)
    thread.start()
    assert not begun.wait(0.05)
    first.end_capture()
    thread.join(10)
    assert begun.is_set()


def test_out_of_memory_names_the_remedy() -> None:
    class Full(TorchDevice):
        def _allocate(self, size: int) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with pytest.raises(BackendError, match="GPU"):
        Full(CPU, {}).allocate(1)


def test_switches_of_the_process_are_restored() -> None:
    matmul = torch.backends.cuda.matmul

    def state() -> tuple[Any, ...]:
        return (
            matmul.fp32_precision,
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
            torch.backends.cuda.cudnn_sdp_enabled(),
        )

    def fail() -> None:
        with exact_math():
            assert state() == ("ieee", False, False, False)
            raise ValueError("anything")

    before = state()
    with pytest.raises(ValueError, match="anything"):
        fail()
    assert state() == before

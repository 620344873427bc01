"""The check of TopK's order among equal values, on a device of NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from translate_trt.runtime.backends.device import Launch


class NumpyDevice:
    """Device in host memory that runs TopK when it is launched."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._memory: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        buffer = ctypes.create_string_buffer(size)
        self._memory[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    pin = allocate

    def copy_in(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    copy_out = copy_in

    def launch(self, work: Launch) -> None:
        from topk_ties import SHAPES

        for name, (rows, columns) in work.shapes.items():
            buffer = self._memory[work.addresses[name]]
            values = np.frombuffer(buffer, np.float32).reshape(rows, columns)
            if self._kind == "last first":
                order = columns - 1 - np.argsort(-values[:, ::-1], axis=1, kind="stable")
            else:
                order = np.argsort(-values, axis=1, kind="stable")
            found = np.ascontiguousarray(order[:, : SHAPES[name][2]])
            if self._kind == "smallest":
                found = np.ascontiguousarray(order[:, -SHAPES[name][2] :])
            address = work.addresses[f"indices_{name}"]
            ctypes.memmove(address, found.ctypes.data, found.nbytes)

    def record(self) -> NumpyDevice:
        return self

    def wait(self) -> None:
        pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    import topk_ties

    shapes = {name: (4, 60, count) for name, (_, _, count) in topk_ties.SHAPES.items()}
    monkeypatch.setattr(topk_ties, "SHAPES", shapes)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("first first", None),
        ("last first", "wrong order of equal values in"),
        ("smallest", "wrong values in"),
    ],
)
def test_the_order_of_equal_values_is_checked(kind: str, message: str | None) -> None:
    from topk_ties import SHAPES, indices, report, values

    given = {name: values(name) for name in SHAPES}
    lines = report(given, indices(NumpyDevice(kind), given))  # type: ignore[arg-type]
    assert len(lines) == (0 if message is None else len(SHAPES))
    assert message is None or all(message in line for line in lines)


def test_the_graph_builds() -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    from topk_ties import SHAPES, graph

    from translate_trt.export.engines.builder import build_engine
    from translate_trt.export.engines.network import load_builder
    from translate_trt.export.engines.options import EngineOptions
    from translate_trt.runtime.backends.engines import Profile

    options = EngineOptions(cache=None, compute_capabilities=("8.9",))
    engine = build_engine(load_builder("tensorrt_rtx"), graph(), (Profile(1, 1),), options)
    assert engine.record.layers["TOPK"] == len(SHAPES)

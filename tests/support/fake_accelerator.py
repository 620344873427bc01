"""Fakes of `torch.cuda` and `torch.xpu` that record calls and run on the host."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeAccelerator:
    """Fake module of PyTorch for a kind of GPU.

    Attributes:
        calls: names of the calls with their arguments, in order.
        current: the stream that work goes to, if one is set.
        failing: by name of a call, the message of its error.
        capturing: a graph is in capture.
        recording: pools that captures allocate from.
        uses: by pool, the number of captures and graphs that hold it.
    """

    def __init__(self, kind: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.current: Any = None
        self.failing: dict[str, str] = {}
        self.capturing = False
        self.recording: list[tuple[int, int]] = []
        self.uses: Counter[tuple[int, int]] = Counter()
        self._pools = itertools.count(1)
        graph = type("Graph", (_Graph,), {"module": self})
        setattr(self, {"cuda": "CUDAGraph", "xpu": "XPUGraph"}[kind], graph)

    def tell(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise RuntimeError(self.failing[name])

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]

    def set_device(self, device: Any) -> None:
        self.tell("set_device", str(device))

    def Stream(self, device: Any) -> _Stream:  # noqa: N802
        self.tell("Stream", str(device))
        return _Stream(self)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def Event(self, **options: Any) -> _Event:  # noqa: N802
        self.tell("Event", options)
        return _Event(self)

    def graph_pool_handle(self) -> tuple[int, int]:
        self.tell("graph_pool_handle")
        return 0, next(self._pools)

    def begin_allocate_to_pool(self, pool: tuple[int, int]) -> None:
        if pool in self.uses and not self.uses[pool]:
            raise RuntimeError(f"use_count > 0 INTERNAL ASSERT FAILED for {pool}")
        self.uses[pool] += 1
        if pool in self.recording:
            raise RuntimeError(f"beginAllocateToPool: already recording to mempool_id {pool}")
        self.recording.append(pool)

    def end_allocate_to_pool(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError(f"endAllocatePool: not currently recording to mempool_id {pool}")
        self.recording.remove(pool)

    def release_pool(self, device: int, pool: tuple[int, int]) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0

    def current_blas_handle(self) -> int:
        assert not self.capturing
        assert self.current is not None
        self.tell("current_blas_handle")
        return 1


class _Stream:
    def __init__(self, module: FakeAccelerator) -> None:
        self._module = module

    def synchronize(self) -> None:
        self._module.tell("synchronize stream")


class _Event:
    def __init__(self, module: FakeAccelerator) -> None:
        self._module = module

    def record(self, stream: Any) -> None:
        assert not self._module.capturing
        assert isinstance(stream, _Stream)
        self._module.tell("record")

    def synchronize(self) -> None:
        assert not self._module.capturing
        self._module.tell("synchronize")


class _Graph:
    """Fake graph; a real one would neither run work in capture nor accept another stream.

    Begins and ends allocations in the order of PyTorch's CUDAGraph.cpp: a capture that does not
    begin, or that CUDA has invalidated, leaves its pool in recording.
    """

    module: FakeAccelerator
    ended = False

    def __del__(self) -> None:
        if self.ended:
            self.module.release_pool(1, self.pool)

    def capture_begin(self, pool: tuple[int, int], **options: Any) -> None:
        assert self.module.current is not None
        self.module.begin_allocate_to_pool(pool)
        self.pool = pool
        self.module.tell("capture_begin", options)
        self.module.capturing = True

    def capture_end(self) -> None:
        assert self.module.current is not None
        self.module.capturing = False
        self.module.tell("capture_end")
        self.module.end_allocate_to_pool(1, self.pool)
        self.ended = True
        self.module.tell("instantiate")

    def replay(self) -> None:
        assert self.module.current is not None
        self.module.tell("replay")

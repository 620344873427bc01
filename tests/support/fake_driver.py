"""The fake CUDA driver of the C++ tests (runtime/cpp/tests/fake_cuda_driver) in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.cpp_library import Library
from translate_trt.runtime import native

#: Errors of the driver.
NO_DEVICE, ILLEGAL_ADDRESS, CAPTURE_UNSUPPORTED = 100, 700, 900

_WORK = ctypes.CFUNCTYPE(None)
_KERNEL = ctypes.CFUNCTYPE(
    None, c_char_p, c_char_p, ctypes.POINTER(c_uint * 3), c_uint, c_uint, c_void_p, c_size_t
)

# Argument types of the functions of c_interface.cc.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "reset": (),
    "run_kernels": (_KERNEL,),
    "set_memory": (c_size_t,),
    "set_eager": (c_int,),
    "fail": (c_char_p, c_int),
    "enqueue": (c_void_p, _WORK, c_void_p),
    "has_memory": (c_void_p, c_size_t),
    "is_capturing": (c_void_p,),
    "is_in_a_graph": (c_void_p,),
    "current_gpu": (),
    "has_set_context": (),
    "history": (),
    "alive": (c_char_p,),
    "violations": (),
}


class FakeDriver:
    """Control of the fake driver.

    Attributes:
        c: functions of c_interface.cc.
        failures: exceptions of work and kernels in Python, and violations.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.c = SimpleNamespace()
        for name, types in _FUNCTIONS.items():
            function = getattr(library, f"fake_driver_{name}")
            function.argtypes = types
            setattr(self.c, name, function)
        self.c.history.restype = c_char_p
        self._callbacks: list[object] = []  # graphs may run them again
        self.failures: list[BaseException] = []
        self.c.reset()

    def run_kernels(self, run: Callable[[bytes, list[int], bytes], None]) -> None:
        """Run kernels by a function of the module's image, the grid and the parameters."""

        def kernel(image: bytes, _: bytes, grid: Any, *rest: int) -> None:
            *_, parameters, size = rest
            content = ctypes.string_at(parameters, size)
            self._guarded(lambda: run(image, list(grid.contents), content))()

        self._callbacks.append(_KERNEL(kernel))
        self.c.run_kernels(self._callbacks[-1])

    def enqueue(self, stream: int, work: Callable[[], None], owner: int) -> None:
        """Enqueue work that uses an object."""
        self._callbacks.append(_WORK(self._guarded(work)))
        assert self.c.enqueue(stream, self._callbacks[-1], owner) == 0

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        return call

    def violation(self, message: str) -> AssertionError:
        """Return the error of a misuse of a GPU; the library that meets it may try again."""
        self.failures.append(AssertionError(message))
        return AssertionError(message)

    def calls(self, function: str) -> list[list[str]]:
        """Return the arguments of the calls of a function of the driver."""
        calls = (line.partition("(") for line in self.c.history().decode().splitlines())
        return [rest[:-1].split(", ") for name, _, rest in calls if name == function]

    @property
    def allocated(self) -> int:
        """Bytes of device memory that were allocated so far."""
        return sum(int(size) for (size,) in self.calls("cuMemAlloc"))

    def check(self) -> None:
        """Fail if a rule was violated, or anything is left but contexts of GPUs."""
        assert not self.failures, self.failures[0]
        assert self.c.violations() == 0
        for kind in ("stream", "event", "graph", "executable", "module", "memory", "pinned"):
            assert self.c.alive(kind.encode()) == 0, kind
        self.c.reset()


@pytest.fixture
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Let the library load the fake driver."""
    if native.library() is None:
        pytest.skip(native.status())
    library: Library = request.getfixturevalue("library")  # built only now
    path = library.folder / "tests/libfake_cuda_driver.so"
    for name in ("TRANSLATE_TRT_CUDA_DRIVER", "TRANSLATE_TRT_CUBLASLT"):
        monkeypatch.setenv(name, str(path))
    fake = FakeDriver(path)
    yield fake
    fake.check()

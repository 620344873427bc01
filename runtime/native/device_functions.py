"""Engines and devices in Python as callbacks of libtranslate_trt (device.h, cuda.h)."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar

from translate_trt.runtime.backends.device import CudaContexts, Engines, Event, Launch
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.native import abi, required_library
from translate_trt.runtime.native.collector_pause import COLLECTOR
from translate_trt.runtime.native.values import check

Result = TypeVar("Result")

_ROLES = ("encoder", "step")  # indexed by TT_ENGINE_...

# Values of `tt_status`.
_BACKEND_ERROR, _MEMORY_ERROR = 4, 5


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p), ("shape", POINTER(c_int64)), ("rank", c_size_t), ("address", c_uint64)
    )  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = (
        ("engine", c_int32), ("profile", c_int32),
        ("tensor_count", c_size_t), ("tensors", POINTER(_Tensor)),
    )  # fmt: skip


class _Profile(ctypes.Structure):
    _fields_ = (("batch", c_int32), ("source_length", c_int32), ("slots", c_int32))


class _ChangeSizes(ctypes.Structure):
    _fields_ = (
        ("marked_tokens", c_int32), ("sampled_ranks", c_int32),
        ("tail_tokens", c_int32), ("constraint_tokens", c_int32),
    )  # fmt: skip


# Arguments of each function after the context or device; all functions except `close` return a
# status.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "open": (POINTER(c_void_p),),
    "close": (),
    "activate": (),
    "allocate": (c_size_t, POINTER(c_uint64)),
    "pin": (c_size_t, POINTER(c_void_p)),
    "copy_in": (c_uint64, c_void_p, c_size_t),
    "copy_out": (c_void_p, c_uint64, c_size_t),
    "copy": (c_uint64, c_uint64, c_size_t, c_size_t, c_size_t, c_size_t),
    "fill": (c_uint64, c_int32, c_size_t),
    "launch": (POINTER(_Launch),),
    "record": (POINTER(c_void_p),),
    "wait": (c_void_p,),
    "begin_capture": (),
    "end_capture": (POINTER(c_void_p),),
    "replay": (c_void_p,),
    "memory": (POINTER(c_uint64), POINTER(c_uint64)),
}
_TYPES = {
    name: CFUNCTYPE(None if name == "close" else c_int32, c_void_p, *arguments)
    for name, arguments in _ARGUMENTS.items()
}


class _Functions(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), ("context", c_void_p), *_TYPES.items())


_OPEN_CONTEXTS = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64, POINTER(c_void_p))


class _CudaEngines(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("gpu", c_int32),
        ("scratch_bytes", c_uint64),
        ("open", _OPEN_CONTEXTS),
        ("close", _TYPES["close"]),
        ("launch", _TYPES["launch"]),
    )


class _Engines(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("functions", POINTER(_Functions)),
        ("encoder_profiles", POINTER(_Profile)),
        ("encoder_profile_count", c_size_t),
        ("step_profiles", POINTER(_Profile)),
        ("step_profile_count", c_size_t),
        ("poll_every", c_int32),
        ("cuda_graphs", c_int32),
        ("scratch_bytes", c_uint64),
        ("changes", _ChangeSizes),
    )


def _profiles(profiles: Sequence[Profile]) -> ctypes.Array[_Profile]:
    array = (_Profile * len(profiles))()
    for index, one in enumerate(profiles):
        array[index] = _Profile(one.batch, one.source_length, one.slots or 0)
    return array


def on_gpu(gpu: int, work: Callable[[], Result]) -> Result:
    """Return the result of work in a temporary thread of the library, in which a GPU is current.

    Raises:
        BackendError: There is no such GPU, or no library.
    """
    calls, future = required_library("engines of TensorRT"), Future[Result]()

    def run(_: int | None) -> int:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        return 0

    calls.tt_cuda_call(gpu, abi.GpuWork(run), None)
    return future.result()


@dataclass
class _Opened:
    """A device with the events and graphs that the library refers to by number, or contexts."""

    device: Any  # Device or Contexts
    events: dict[int, Event] = field(default_factory=dict)
    graphs: dict[int, Callable[[], None]] = field(default_factory=dict)


class DeviceFunctions:
    """Callbacks with which libtranslate_trt runs engines; they must outlive the translator.

    Args:
        engines: The loaded engines.
        calls: Functions of the library.

    Attributes:
        engines: The structure `tt_engines`.
    """

    def __init__(self, engines: Engines, calls: ctypes.CDLL) -> None:
        self._engines, self._calls = engines, calls
        self._numbers = itertools.count(1)  # 0 would be NULL
        self._opened: dict[int, _Opened] = {}
        self._capturing: set[int] = set()  # threads, one of which begins, fills and ends a capture
        is_cuda = isinstance(engines.device, CudaContexts)
        self._functions = self._cuda_functions() if is_cuda else self._python_functions()
        functions = _Functions.from_buffer_copy(self._functions)
        for name in ("begin_capture", "end_capture"):
            hook = self._guarded(getattr(self, f"_hooked_{name}"))
            setattr(functions, name, _TYPES[name](hook))
        changes = engines.step_profiles[-1].changes
        self.engines = _Engines(
            ctypes.sizeof(_Engines),
            ctypes.pointer(functions),
            _profiles(engines.encoder_profiles),
            len(engines.encoder_profiles),
            _profiles(engines.step_profiles),
            len(engines.step_profiles),
            engines.poll_every,
            engines.cuda_graphs,
            engines.scratch_bytes,
            _ChangeSizes() if changes is None else _ChangeSizes(*astuple(changes)),
        )

    def release(self) -> None:
        """Free the engines, whose weights take memory, once nothing calls the functions any more.

        The callbacks and this object refer to each other: without this, the engines would stay
        until the next cyclic garbage collection.
        """
        del self.engines, self._engines
        self._opened.clear()

    def _python_functions(self) -> _Functions:
        """Return the functions of a device in Python."""
        functions = _Functions(ctypes.sizeof(_Functions), None)
        for name, kind in _TYPES.items():
            if name == "memory" and self._engines.memory is None:
                continue
            call = getattr(self, f"_{name}", None) or functools.partial(self._forward, name)
            setattr(functions, name, kind(self._guarded(call)))
        return functions

    def _cuda_functions(self) -> _Functions:
        """Return the library's functions, for execution contexts in Python.

        Raises:
            BackendError: The GPU cannot be used.
        """
        functions, device = _Functions(), self._engines.device
        assert isinstance(device, CudaContexts)
        self._cuda = _CudaEngines(
            ctypes.sizeof(_CudaEngines),
            None,
            device.gpu,
            self._engines.scratch_bytes,
            _OPEN_CONTEXTS(self._guarded(self._open_contexts)),
            _TYPES["close"](self._guarded(self._close)),
            _TYPES["launch"](self._guarded(self._launch)),
        )
        address = ctypes.addressof
        self._calls.tt_cuda_functions(address(self._cuda), address(functions))
        return functions

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        """Convert exceptions, which must not leave a callback, to a status and its message."""

        def call(*arguments: Any) -> int:
            try:
                function(*arguments)
            except BackendError as error:
                status, text = _BACKEND_ERROR, str(error)
            except MemoryError as error:
                status, text = _MEMORY_ERROR, str(error)
            except BaseException as error:
                status, text = _BACKEND_ERROR, f"{type(error).__name__}: {error}"
            else:
                return 0
            return int(self._calls.tt_device_fail(status, text.encode(errors="replace")))

        return call

    # ---- captures ----

    def _hooked_begin_capture(self, device: int) -> None:
        COLLECTOR.begin()
        try:
            check(self._calls, self._functions.begin_capture(device))
        except BaseException:
            COLLECTOR.end()
            raise
        self._capturing.add(threading.get_ident())

    def _hooked_end_capture(self, device: int, graph: Any) -> None:
        self._capturing.discard(threading.get_ident())
        try:
            check(self._calls, self._functions.end_capture(device, graph))
        finally:
            COLLECTOR.end()
        # Here, too, for processes that are killed: all kernels of the profile are compiled by now.
        self._engines.store()

    # ---- callbacks, described in device.h and cuda.h ----

    def _open_contexts(self, _: int | None, stream: int, scratch: int, contexts: Any) -> None:
        number = next(self._numbers)
        assert isinstance(self._engines.device, CudaContexts)
        self._opened[number] = _Opened(self._engines.device.open(stream, scratch))
        contexts[0] = number

    def _open(self, _: int | None, device: Any) -> None:
        number = next(self._numbers)
        assert not isinstance(self._engines.device, CudaContexts)
        self._opened[number] = _Opened(self._engines.device())
        device[0] = number

    def _close(self, device: int) -> None:
        del self._opened[device]
        self._engines.store()

    def _forward(self, name: str, device: int, *arguments: int) -> None:
        """Call a method of `Device` that has the arguments of the function of its name."""
        getattr(self._opened[device].device, name)(*arguments)

    def _allocate(self, device: int, size: int, address: Any) -> None:
        address[0] = self._opened[device].device.allocate(size)

    def _pin(self, device: int, size: int, address: Any) -> None:
        address[0] = self._opened[device].device.pin(size)

    def _launch(self, device: int, work: Any) -> None:
        launch = work[0]
        tensors = launch.tensors[: launch.tensor_count]
        self._opened[device].device.launch(
            Launch(
                _ROLES[launch.engine],
                launch.profile,
                {one.name.decode(): tuple(one.shape[: one.rank]) for one in tensors if one.rank},
                {one.name.decode(): one.address for one in tensors},
                threading.get_ident() in self._capturing,
            )
        )

    def _record(self, device: int, event: Any) -> None:
        opened, number = self._opened[device], next(self._numbers)
        opened.events[number] = opened.device.record()
        event[0] = number

    def _wait(self, device: int, event: int) -> None:
        self._opened[device].events.pop(event).wait()

    def _end_capture(self, device: int, graph: Any) -> None:
        opened, number = self._opened[device], next(self._numbers)
        captured = opened.device.end_capture()
        if graph:
            opened.graphs[number] = captured
            graph[0] = number

    def _replay(self, device: int, graph: int) -> None:
        self._opened[device].graphs[graph]()

    def _memory(self, _: int | None, free_bytes: Any, total_bytes: Any) -> None:
        assert self._engines.memory is not None
        free_bytes[0], total_bytes[0] = self._engines.memory()

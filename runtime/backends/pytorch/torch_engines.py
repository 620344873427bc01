"""Loading of `torch` targets: their graphs, and the GPU that runs them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from translate_trt.runtime.backends import Records, Settings
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.pytorch.fused_operators import have_kernels, why_no_kernels
from translate_trt.runtime.backends.pytorch.memory_bound import scratch_bytes
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.backends.pytorch.torch_device import OUT_OF_MEMORY, TorchDevice
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import BackendError

log = logging.getLogger("translate_trt")

# Kinds of GPUs that the backend knows, with their module of PyTorch. AMD's GPUs are "cuda", too.
_MODULES = {"cuda": "CUDA or ROCm", "xpu": "XPU"}

_INSTALL = "https://pytorch.org/get-started/locally/ has the command that installs PyTorch for it"


def load(
    files: Mapping[str, Path], contract: Contract, settings: Settings, records: Records
) -> Engines:
    """Load both graphs of a target; see `backends.load_engines`."""
    device, module = choose_device(settings.device)
    kernels = have_kernels(device)
    if module is None:
        _check_threads(settings.workers)
    elif not kernels:
        log.warning("steps run without fused kernels, which is slower: %s", why_no_kernels())
    try:
        programs = {
            role: Program(files[role], *specs, device, kernels)
            for role, specs in contract.graphs.items()
        }
        if module is not None:
            module.synchronize(device)  # weights are used on other streams
    except torch.OutOfMemoryError as error:
        raise BackendError(OUT_OF_MEMORY) from error
    programs["step"].check_aliases([spec.name for spec in contract.caches])
    make_device = functools.partial(TorchDevice, device, programs, module)
    captures = settings.cuda_graphs and can_capture(device)
    return Engines(
        make_device,
        records["encoder"].profiles,
        records["step"].profiles,
        settings.poll_every,
        captures,
        memory=None if module is None else functools.partial(module.mem_get_info, device),
        scratch_bytes=0 if module is None else scratch_bytes(files, contract, records, captures),
    )


def choose_device(name: str | None) -> tuple[torch.device, Any]:
    """Find a device.

    Args:
        name: "cpu", "cuda", "cuda:1", "xpu" or "xpu:1"; None chooses the first GPU.

    Returns:
        The device, and its module: `torch.cuda` or `torch.xpu`, or None for the CPU.

    Raises:
        BackendError: PyTorch does not find the device.
    """
    if name is None:
        name = next((kind for kind in _MODULES if _count(kind)), None)
        if name is None:
            raise BackendError(
                f"PyTorch {torch.__version__} finds no GPU. {_INSTALL}. To run on the CPU, which "
                "is slow, set device to cpu, or choose an onnx target."
            )
    if name == "cpu":
        return torch.device("cpu"), None
    device = torch.device(name if ":" in name else f"{name}:0")
    found = _count(device.type)
    if device.index >= found:
        seen = f"{found} of them" if found else "none"
        raise BackendError(
            f"device is {name}, but PyTorch {torch.__version__} finds {seen} "
            f"({_MODULES[device.type]}). {_INSTALL}."
        )
    return device, getattr(torch, device.type)


def _check_threads(workers: int) -> None:
    """Warn if workers have more threads than there are cores.

    The number of PyTorch's threads belongs to the process, so it is not changed here.
    """
    threads, cores = torch.get_num_threads(), available_cores()
    if workers * threads > cores:
        log.warning(
            "%d workers of %d PyTorch threads each share %d cores, which is slow: set "
            "OMP_NUM_THREADS to %d, or use fewer workers",
            workers, threads, cores, max(1, cores // workers),
        )  # fmt: skip


def finds_gpu() -> bool:
    """Whether PyTorch finds a GPU that the backend knows."""
    return any(map(_count, _MODULES))


def _count(kind: str) -> int:
    module = getattr(torch, kind)
    return int(module.device_count()) if module.is_available() else 0


def can_capture(device: torch.device) -> bool:
    """Whether PyTorch captures graphs on a device; on the CPU a capture is a list of requests."""
    if device.type != "xpu" or hasattr(torch.xpu, "XPUGraph"):
        return True
    log.warning(
        "PyTorch %s has no graphs for Intel GPUs: every step is launched operator by operator, "
        "which is slower; torch.xpu.XPUGraph is in later versions",
        torch.__version__,
    )
    return False

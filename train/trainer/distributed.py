"""Process group of distributed training (torchrun), devices, and CPU threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from translate_trt.runtime.cores import within_cores
from translate_trt.runtime.errors import OptionError

#: Longest work that the leader does alone; by default, gloo gives up after 30 minutes.
_LONGEST_WAIT = timedelta(days=2)


@dataclass(frozen=True)
class Group:
    """Processes that train one model together; a single one by default.

    Attributes:
        device: Device of this process.
        rank: Rank of this process. Rank 0 leads: only it writes files and messages.
        size: Number of processes.
        control: Process group of `largest`, `smallest` and `wait`; None for the default one.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum values over all processes (collective)."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """Return the maximum of a value over all processes (collective)."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.int64)  # on the CPU: no GPU synchronization
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self.control)
        return int(shared)

    def smallest(self, value: int) -> int:
        """Return the minimum of a value over all processes (collective)."""
        return -self.largest(-value)

    def wait(self) -> None:
        """Block until every process has reached this call (collective)."""
        self.largest(0)


def choose_device(name: str) -> torch.device:
    """Resolve --device; under torchrun each process takes a GPU of its own.

    Args:
        name: "cpu", "cuda", or "auto" for the GPU if there is one.

    Raises:
        OptionError: "cuda" without a CUDA GPU for this process.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise OptionError("--device cuda: torch finds no CUDA GPU here; use --device cpu.")
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise OptionError(
                f"process {local} of this machine has no GPU of its own: torch finds "
                f"{torch.cuda.device_count()}. Give torchrun that number as --nproc-per-node."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


def use_threads(count: int | None) -> None:
    """Limit torch to `count` CPU threads; None leaves all cores to it."""
    if count is not None:
        torch.set_num_threads(within_cores("threads", count))


def torchrun_session() -> str | None:
    """Name of the torchrun that started this process, the same after a restart; None without one.

    It is the --rdzv-id, which --standalone chooses at random. Without either, "none", the processes
    of the leading machine have the same parent after a restart.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{socket.gethostname()}:{os.getppid()}" if name == "none" else name


@contextmanager
def open_group(device: torch.device) -> Iterator[Group]:
    """Join the process group of torchrun; without torchrun, a group of one process.

    Gradients of GPUs are exchanged by NCCL, and CPU tensors by gloo.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group(device)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # torchrun may keep its store across restarts (seen with torch 2.13). A prefix per restart
        # hides the addresses of dead processes in the store. Machines count restarts differently:
        # only that of the dead process counts one.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"round {restarts}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        # The others wait while the leader prepares data or validates. A dead process is noticed at
        # once, by its closed connection.
        control = dist.new_group(backend="gloo", timeout=_LONGEST_WAIT)
        yield Group(device, rank, size, control)
    finally:
        dist.destroy_process_group()

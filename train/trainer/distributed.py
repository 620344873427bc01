"""The processes that train one model together, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from translate_trt.runtime.cores import within_cores
from translate_trt.runtime.errors import OptionError


@dataclass(frozen=True)
class Group:
    """One process's place among those that train the model; by default it is alone.

    Attributes:
        device: what this process computes on.
        rank: its number, from 0; number 0 leads: it alone writes files and messages.
        size: how many there are.
    """

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for the one process that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes; every one must ask."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def largest(self, value: int) -> int:
        """The largest of all processes' values; waits until every one has asked."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.int64)  # on the CPU: gloo, no GPU is waited for
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return int(shared)

    def wait(self) -> None:
        """Return when every process has come here."""
        self.largest(0)


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one; under torchrun each process takes its own.

    Raises:
        OptionError: cuda is asked for and there is none.
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
                f"{torch.cuda.device_count()}. Start torchrun with that --nproc-per-node."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


def use_threads(count: int | None) -> None:
    """Limit torch to `count` CPU threads; None leaves all cores to it."""
    if count is not None:
        torch.set_num_threads(within_cores("threads", count))


def started_again() -> bool:
    """True in processes that torchrun has started anew because one of them had died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def open_group(device: torch.device) -> Iterator[Group]:
    """Join the processes that torchrun started; without torchrun, a group of one.

    GPUs exchange gradients by NCCL, and what the processes tell each other goes by gloo.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group(device)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    # torchrun may keep its store when it starts the processes again after one has died (seen with
    # torch 2.13); under a name of the round's own, they do not read the dead ones' addresses in it.
    store, rank, size = next(rendezvous("env://"))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"round {restarts}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield Group(device, rank, size)
    finally:
        dist.destroy_process_group()

"""Options of a Triton model repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import check_least


@dataclass(frozen=True)
class ServerOptions:
    """Options of a model repository, which do not affect translations.

    Raises:
        OptionError: A value is out of range.
    """

    name: str = "translation"  # name of the model in the server's URLs

    # ---- batching in the server ----
    max_batch_size: int = 64  # maximum sentences per batch
    preferred_batch_sizes: tuple[int, ...] = ()  # sizes sent without delay; empty: any size
    queue_delay: int = 0  # maximum delay in microseconds to form a larger batch
    capacity: int = 1024  # maximum requests in an instance

    # ---- instances ----
    instances: int = 1  # processes, each with its own weights; on GPUs, per GPU
    workers: int | None = None  # batches at once in an instance; None: one per core, 2 on a GPU
    threads: int | None = None  # CPU threads per worker; None: 1
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    cache_mib: int = 0  # memory of an instance for results of earlier sentences
    device: str | None = None  # "cpu" or "cuda"; None: GPUs if the target needs them
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains

    # ---- limits of a request ----
    max_beam_size: int = 16  # memory grows with the beam size: one request could exhaust it
    max_characters: int = 10_000  # per text; longer texts are no sentences, and hours of work
    max_cost: int = 1_000_000  # sum of characters times beams, which takes seconds

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", self.name):
            raise OptionError(
                f"name is {self.name!r}; it must consist of letters, digits, '.', '_' and '-', and "
                "must not begin with a '.'."
            )
        for name, value in vars(self).items():
            if type(value) is int:
                least = 0 if name in ("queue_delay", "cache_mib") else 1
                check_least(least, **{name: value})
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise OptionError(
                    f"preferred_batch_sizes has {size}; each must be between 1 and max_batch_size "
                    f"({self.max_batch_size})."
                )
        if self.device not in (None, "cpu", "cuda"):
            raise OptionError(
                f"device is {self.device!r}; write cpu or cuda. The server assigns GPUs to "
                "instances."
            )

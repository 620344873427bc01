"""Options of a Triton model repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import check_least
from translate_trt.runtime.settings import check_settings, setting


@dataclass(frozen=True)
class ServerOptions:
    """Options of a model repository, which do not affect translations.

    Raises:
        OptionError: A value is out of range.
    """

    name: str = setting("translation", "Name of the model in the server's URLs.")

    # ---- batching in the server ----
    max_batch_size: int = setting(
        64, "Maximum number of sentences per batch of the server.", least=1
    )
    preferred_batch_sizes: tuple[int, ...] = setting(
        (), "Batch size that the server sends without delay; may be repeated. [any size]",
        flag="--preferred-batch-size",
    )  # fmt: skip
    queue_delay: int = setting(0, "Maximum delay in microseconds to form a larger batch.", least=0)
    capacity: int = setting(
        1024, "Maximum number of requests in an instance; further requests are refused as "
        "unavailable.", least=1,
    )  # fmt: skip

    # ---- instances ----
    instances: int = setting(
        1, "Number of processes, each with its own weights; on GPUs, per GPU.", least=1
    )
    workers: int | None = setting(
        None, "Batches translated at once in an instance. [one per core, or 2 on a GPU]", least=1
    )
    threads: int | None = setting(None, "CPU threads per worker. [1]", least=1)
    batch_tokens: int | None = None  # source tokens per batch; None: the translator's default
    cache_mib: int = 0  # memory of an instance for results of earlier sentences
    device: str | None = setting(None, "cpu or cuda. [GPUs if the target is made for them]")
    trust_code: bool = False  # allow a version-compatible engine to run the code it contains

    # ---- limits of a request: longer texts are no sentences, and memory grows with the beams ----
    max_beam_size: int = setting(
        16, "Maximum beam size; requests with a larger one are refused.", least=1
    )
    max_characters: int = setting(
        10_000, "Maximum length of a text; requests with longer texts are refused.", least=1
    )
    max_cost: int = setting(
        1_000_000, "Maximum cost of a request: sum of characters times beam size over its "
        "sentences.", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", self.name):
            raise OptionError(
                f"name is {self.name!r}; it must consist of letters, digits, '.', '_' and '-', and "
                "must not begin with a '.'."
            )
        check_settings(self)
        check_least(1, batch_tokens=self.batch_tokens)
        check_least(0, cache_mib=self.cache_mib)
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

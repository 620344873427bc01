"""How a bundle is served."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from translate_trt.runtime.errors import OptionError


@dataclass(frozen=True)
class ServerOptions:
    """What a model repository is made with. None of it changes a translation.

    Raises:
        OptionError: a value is out of range.
    """

    name: str = "translation"  # of the model, in the server's URLs

    # ---- requests that are handed over together ----
    max_batch_size: int = 64  # sentences at most
    preferred_batch_sizes: tuple[int, ...] = ()  # sent on at once; none: whatever waits is taken
    queue_delay: int = 0  # microseconds that a sentence may wait for others
    capacity: int = 1024  # requests in an instance; with so many, others are refused

    # ---- who translates ----
    instances: int = 1  # processes, each with weights of its own; on GPUs: for each GPU
    workers: int | None = None  # batches at once in an instance; None: all cores are shared out
    threads: int | None = None  # of each worker; None: one
    batch_tokens: int = 512  # source tokens in a batch, padding included
    device: str | None = None  # "cpu" or "cuda"; None: GPUs where the target needs them
    trust_code: bool = False  # run the machine code that a version-compatible engine brings

    # ---- what a request may ask for ----
    max_beam_size: int = 16  # memory grows with the beam: without a limit, one request takes it all
    max_characters: int = 10_000  # of a text: a longer one is hardly a sentence, and hours of work
    max_cost: int = 1_000_000  # of a request: characters times beam, added up; seconds of work

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", self.name):
            raise OptionError(
                f"name is {self.name!r}; a model's name is made of letters, digits, '.', '_' and "
                "'-', and does not begin with a '.'."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "queue_delay" else 1
            if type(value) is int and value < least:
                raise OptionError(f"{field.name} is {value}; it must be at least {least}.")
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise OptionError(
                    f"preferred_batch_sizes has {size}; each must be between 1 and max_batch_size "
                    f"({self.max_batch_size})."
                )
        if self.device not in (None, "cpu", "cuda"):
            raise OptionError(
                f"device is {self.device!r}; write cpu or cuda. Which GPU an instance gets is the "
                "server's to say."
            )

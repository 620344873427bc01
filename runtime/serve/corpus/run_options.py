"""What decides the translations of a corpus, and what decides only how they are made."""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.runtime.errors import OptionError


@dataclass(frozen=True)
class CorpusOptions:
    """How inputs are read and cut. Changing one of them is another run.

    Raises:
        OptionError: a number is out of range.
    """

    shard_lines: int = 10_000  # about so many lines of a text, so many rows of a Parquet file
    column: str = "text"  # of Parquet files: what is translated
    max_characters: int = 10_000  # a longer record is bad: hardly a sentence, and hours of work

    def __post_init__(self) -> None:
        for name in ("shard_lines", "max_characters"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True)
class WorkerOptions:
    """Who translates. None of it changes a translation.

    Raises:
        OptionError: a number is out of range.
    """

    workers: int | None = None  # None: as many as the cluster has room for
    cores: int = 1  # of each worker, which share one copy of the weights
    attempts: int = 3  # to translate a shard, before the run goes on without it
    batch_tokens: int = 512  # source tokens translated together, padding included
    device: str | None = None  # "cpu", "cuda"; None: a GPU where the target needs one
    trust_code: bool = False  # run the machine code that a version-compatible engine brings

    def __post_init__(self) -> None:
        for name in ("workers", "cores", "attempts", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1.")

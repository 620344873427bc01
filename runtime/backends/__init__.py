"""What runs the two graphs: a backend by the manifest's name, or engines for libtranslate_trt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.contract import FREE, GraphShape
from translate_trt.runtime.engines import PACKAGES, EngineRecord
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.options import SearchOptions


@dataclass(frozen=True)
class Sources:
    """Sentences to start.

    Attributes:
        tokens: of each, the end symbol included; none is empty.
        max_lengths: of each translation, in generated tokens, the end symbol included.
        options: of each; empty: those of the batch. They have its beam size.
    """

    tokens: Sequence[Sequence[int]]
    max_lengths: Sequence[int]
    options: Sequence[SearchOptions] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Sources:
        return Sources(self.tokens[part], self.max_lengths[part], self.options[part])

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token ids [N, S] and their counts [N]; any valid id fills up a row."""
        lengths = np.array([len(row) for row in self.tokens], dtype=np.int64)
        ids = np.full((len(lengths), int(lengths.max())), self.tokens[0][-1], dtype=np.int64)
        for row, tokens in zip(ids, self.tokens, strict=True):
            row[: len(tokens)] = tokens
        return ids, lengths


@dataclass(frozen=True)
class StepResult:
    """What a step leaves with the host; arrays of its own.

    Attributes:
        tokens: [N, K] token that each live beam was continued with.
        parents: [N, K] beam of the step before that it continues.
        log_probs: [N, K] cumulative log-probability of the live beams.
        done: [N].
        attention: [N, K, S] of the beams before selection, if asked for.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    done: NDArray[np.bool_]
    attention: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Pool:
    """The finished hypotheses of one sentence, best first; empty places score minus infinity.

    Attributes:
        scores: [K].
        lengths: [K] tokens, the end symbol included.
        parents: [K] live beam that ended.
    """

    scores: NDArray[np.float32]
    lengths: NDArray[np.int64]
    parents: NDArray[np.int64]


class Batch(Protocol):
    """Sentences that are translated together, a row each, where the backend keeps its tensors."""

    @property
    def rows(self) -> int:
        """N, idle rows included."""
        ...

    def room(self, longest: int) -> int | None:
        """How many sentences there is room for, if the longest has so many tokens; None: any."""
        ...

    def drain(self) -> list[StepResult]:
        """The steps that were taken ahead, if any; to be asked for before `update`."""
        ...

    def update(self, keep: Sequence[int], new: Sources | None) -> tuple[list[int], list[int]]:
        """Between two steps, let sentences go and others in.

        Args:
            keep: rows to go on with, in ascending order; the others are forgotten.
            new: sentences to encode and start.

        Returns:
            The rows that the kept sentences have now, and those of the new ones. A row that is in
            neither is idle, and done.
        """
        ...

    def step(self, forced: NDArray[np.int64] | None) -> list[StepResult]:
        """Take a step, or several: those that a backend takes before it looks at `done`.

        Args:
            forced: [N] what each sentence must continue with (`forced_tokens` in the contract);
                then it is one step.
                None: all are free.
        """
        ...

    def pool(self, row: int) -> Pool:
        """What a sentence has finished with."""
        ...

    def cancel(self) -> None:
        """Let what runs now end early, with an error or without; from any thread.

        Of use where a call can take longer than somebody who wants to stop will wait. The batch is
        of no use afterwards.
        """
        ...


class Backend(Protocol):
    """The encoder and the step graph of one target, loaded; several threads may use it."""

    def batch(self, options: SearchOptions, start_token: int) -> Batch:
        """An empty batch.

        Args:
            options: of sentences that come without any; beam size and attention are those of all.
            start_token: the decoder's start symbol.
        """
        ...


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        threads: within one operation of a batch.
        workers: batches that run at once.
        device: "cpu", "cuda" or "cuda:1", for a backend that has the choice; None: the CPU, or
            the first GPU where it needs one.
        poll_every: steps between two looks at `done`, where they run on a GPU.
        cuda_graphs: capture steps and replay them; False: ask for each operation, to compare.
        trust_code: run the machine code that a version-compatible engine brings.
    """

    threads: int = 1
    workers: int = 1
    device: str | None = None
    poll_every: int = 4
    cuda_graphs: bool = True
    trust_code: bool = False

    def __post_init__(self) -> None:
        device: object = "cpu" if self.device is None else self.device
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
            raise OptionError(f"device is {self.device!r}; write cpu, cuda or cuda:1.")
        if not 1 <= self.poll_every <= 64:
            raise OptionError(f"poll_every is {self.poll_every}; it must be from 1 to 64.")

    @property
    def gpu(self) -> int | None:
        """Index of the GPU that was asked for; None: none was."""
        if self.device is None or self.device == "cpu":
            return None
        return int(self.device.partition(":")[2] or 0)


#: By role, what the manifest says of each engine of a target; empty: it has none.
Records = Mapping[str, EngineRecord]
Loader = Callable[[Mapping[str, Path], GraphShape, Settings], Backend]


NO_ONNXRUNTIME = (
    "ONNX Runtime is not installed. For CPUs: pip install 'translate-trt[cpu]'; "
    "for NVIDIA GPUs: pip install 'translate-trt[gpu]'."
)


def _onnxruntime(files: Mapping[str, Path], shape: GraphShape, settings: Settings) -> Backend:
    try:
        module = import_module("translate_trt.runtime.backends.onnxruntime")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise BackendError(NO_ONNXRUNTIME) from error
    backend: Backend = module.OnnxRuntimeBackend(files, shape, settings)
    return backend


#: By the name in the manifest. Imported when chosen, so that no installation needs the packages of
#: a backend it does not use.
BACKENDS: dict[str, Loader] = {
    "onnxruntime": _onnxruntime,
}


def load_backend(
    name: str, files: Mapping[str, Path], shape: GraphShape, settings: Settings = Settings()
) -> Backend:
    """Load a target's graphs.

    Args:
        name: of the backend, from the manifest.
        files: graph files by role, such as "encoder" and "step".
        shape: of the graphs' inputs and outputs.
        settings: how to run.

    Raises:
        BundleError: this version has no such backend, or a graph does not load.
        BackendError: there is no GPU, or what it takes to use one is not installed.
    """
    if name not in BACKENDS:
        known: Sequence[str] = (*BACKENDS, *PACKAGES)
        raise BundleError(
            f"the target runs on the backend {name!r}, which this version does not have "
            f"(it has {', '.join(known)}). Upgrade with: pip install -U translate-trt"
        )
    return BACKENDS[name](files, shape, settings)


def load_engines(
    files: Mapping[str, Path], shape: GraphShape, settings: Settings, records: Records
) -> Engines:
    """Load a target's engines, which libtranslate_trt runs.

    Args:
        files: by role "encoder" and "step"; with the graphs, if the engines have no weights.
        shape: of the graphs' inputs and outputs.
        settings: how to run.
        records: what the manifest says of each engine.

    Raises:
        BundleError: an engine is missing, does not load, or is not what the contract declares.
        BackendError: there is no GPU, or what it takes to use one is not installed.
    """
    module = import_module("translate_trt.runtime.backends.tensorrt")
    loaded: Engines = module.load(files, shape, settings, records)
    return loaded


def request_values(
    options: SearchOptions | Sequence[SearchOptions], max_lengths: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The inputs of `GraphShape.request` for sentences that are free.

    Args:
        options: of each, or of all.
        max_lengths: [N].
    """
    count = len(max_lengths)
    each = [options] * count if isinstance(options, SearchOptions) else options
    return {
        "forced_tokens": np.full(count, FREE, dtype=np.int64),
        "min_lengths": np.array([one.min_length for one in each], dtype=np.int64),
        "max_lengths": max_lengths,
        "length_penalty_alpha": np.array([one.length_penalty for one in each], dtype=np.float32),
        "length_penalty_beta": np.array(
            [one.length_penalty_beta for one in each], dtype=np.float32
        ),
        "early_stopping": np.array([one.early_stopping for one in each], dtype=np.bool_),
    }

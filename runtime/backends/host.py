"""A batch in the host's memory, for backends that compute there.

All tensors of a step are numpy arrays that the graph reads and writes where they are. Caches are
written in place. The small rest of the state exists twice: a step reads one and writes the other,
the next one the other way round, so that the bindings of arrays to graph are made once for many
steps.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends import Pool, Sources, StepResult, request_values
from translate_trt.runtime.contract import EMPTY, FREE, MASKED, NEXT, GraphShape, TensorSpec
from translate_trt.runtime.options import SearchOptions

Arrays = dict[str, NDArray[Any]]

# Caches have a multiple of so many slots, which suits the matrix products.
_SLOT_STEP = 16
# Source positions are filled up to a multiple, so that sentences of like length can follow each
# other into the same arrays.
_SOURCE_STEP = 8
# Source tokens, padding included, that the encoder takes at a time. What it computes for them is
# the most memory that a batch ever needs, and more of them at once are hardly faster.
_ENCODER_TOKENS = 256
# New sentences go into rows that others leave. If they are fewer, this share of the rows stays idle
# at most; else the batch is copied, which costs as much as some steps.
_IDLE = 0.25

# From so many bytes on an array has pages of its own.
_LARGE = 2**20


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of zeros; a large one goes back to the system as soon as nobody has it any more.

    Caches change their sizes all the time. On a heap they leave holes that the next ones do not fit
    into, and a process grows to several times what it has in use.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows has neither
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


def sized(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The axes of a tensor, with numbers for letters."""
    return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes)


class Graphs(Protocol):
    """Both graphs of a target on arrays of the host."""

    def encode(self, inputs: Mapping[str, NDArray[Any]], outputs: Arrays) -> None:
        """Run the encoder; its outputs are written into the given arrays."""
        ...

    def bind(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """A call that runs the step from these arrays into those, as often as it is called."""
        ...


class HostBatch:
    """`Batch` over `Graphs`.

    Args:
        graphs: of the target.
        shape: of their inputs and outputs.
        options: of sentences that come without any; beam size and attention are those of all.
        start_token: the decoder's start symbol.
        cancel: ends what the graphs run for this batch, now and later.
        spare_slots: that caches get beyond what their rows need at once. More of them are less to
            copy, since growing copies all caches. They take hardly any memory before they are
            written, but attention that reads all slots there are takes longer.
    """

    def __init__(
        self,
        graphs: Graphs,
        shape: GraphShape,
        options: SearchOptions,
        start_token: int,
        cancel: Callable[[], None] = lambda: None,
        spare_slots: int = 0,
    ) -> None:
        self._graphs, self._shape, self._cancel = graphs, shape, cancel
        self._spare_slots = spare_slots
        self._options, self._start_token = options, start_token
        self._crossing = {spec.name: spec for spec in shape.encoder_outputs()}
        self._cache_names = [spec.name for spec in shape.caches()]
        self._state_names = [s.name for s in shape.state() if s.name not in self._cache_names]
        self._sizes: dict[str, int] = {"N": 0, "K": options.beam_size, "S": 0, "P": 0, "W": 0}
        self._now: Arrays = {}  # every input of the next step
        self._other: Arrays = {}  # what it does not write in place is written here
        self._results: Arrays = {}  # outputs that are no state
        self._runs: list[Callable[[], None]] = []

    # ---- the protocol ----

    @property
    def rows(self) -> int:
        """See `Batch`."""
        return self._sizes["N"]

    def room(self, longest: int) -> int | None:
        """See `Batch`."""
        return None

    def drain(self) -> list[StepResult]:
        """See `Batch`; none are taken ahead."""
        return []

    def update(self, keep: Sequence[int], new: Sources | None) -> tuple[list[int], list[int]]:
        """See `Batch`."""
        rows = self._sizes["N"]
        needed = self._source_size(keep, new)
        leaving = sorted(set(range(rows)) - set(keep))
        arriving = len(new) if new is not None else 0
        fits = needed <= self._sizes["S"] <= needed + _SOURCE_STEP
        if new is not None and fits and 0 <= len(leaving) - arriving <= rows * _IDLE:
            self._start(leaving[:arriving], new)
            self._now["done"][leaving[arriving:]] = True
            return list(keep), leaving[:arriving]
        self._move(keep, len(keep) + arriving, needed)
        placed = list(range(len(keep), len(keep) + arriving))
        if new is not None:
            self._start(placed, new)
        return list(range(len(keep))), placed

    def step(self, forced: NDArray[np.int64] | None) -> list[StepResult]:
        """See `Batch`; one step."""
        self._now["forced_tokens"][:] = FREE if forced is None else forced
        if not self._runs:
            self._bind()
        self._runs[0]()
        self._runs.reverse()
        for name in self._state_names:
            self._now[name], self._other[name] = self._other[name], self._now[name]
        state = self._now
        attention = self._results["attention"].copy() if self._options.return_attention else None
        result = StepResult(
            state["tokens"].copy(),
            self._results["parents"].copy(),
            state["log_probs"].copy(),
            state["done"].copy(),
            attention,
        )
        if "full" in self._results:
            full = self._results["full"] & ~result.done
            if full.any():
                self._grow(full)
        return [result]

    def pool(self, row: int) -> Pool:
        """See `Batch`."""
        names = ("finished_scores", "finished_lengths", "finished_parents")
        return Pool(*(self._now[name][row].copy() for name in names))

    def cancel(self) -> None:
        """See `Batch`."""
        self._cancel()

    # ---- arrays ----

    def _bind(self) -> None:
        """Both directions of a step between the two copies of the state."""
        self._runs = []
        for now, other in ((self._now, self._other), (self._other, self._now)):
            outputs = dict(self._results)
            outputs |= {NEXT + name: other[name] for name in self._state_names}
            outputs |= {NEXT + name: self._now[name] for name in self._cache_names}
            inputs = self._now | {name: now[name] for name in self._state_names}
            self._runs.append(self._graphs.bind(inputs, outputs))

    def _allocate(self, rows: int, source_size: int, slots: int) -> None:
        """Arrays for that many rows, all of them idle."""
        self._runs = []
        self._sizes |= {"N": rows, "P": slots, **self._shape.form.source_sizes(source_size)}
        shape, beams = self._shape, self._sizes["K"]
        self._now = {spec.name: self._zeros(spec) for spec in shape.encoder_outputs()}
        self._now["source_bias"][:] = MASKED
        self._now |= request_values(self._options, np.ones(rows, dtype=np.int64))
        self._now |= shape.initial_state(rows, beams, self._start_token, slots, zeros)
        self._now["done"][:] = True
        self._other = {name: np.empty_like(self._now[name]) for name in self._state_names}
        written = {NEXT + spec.name for spec in shape.state()}
        self._results = {
            spec.name: self._zeros(spec)
            for spec in shape.step_outputs()
            if spec.name not in written
        }

    def _zeros(self, spec: TensorSpec) -> NDArray[Any]:
        """Zeros, since what is hidden must still be finite."""
        dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
        return zeros(sized(spec, self._sizes), np.dtype(dtype))

    def _by_sentence(self) -> list[str]:
        """Names of the inputs that have a row for each sentence."""
        return [spec.name for spec in self._shape.step_inputs() if spec.axes[:1] == ("N",)]

    def _move(self, keep: Sequence[int], rows: int, source_size: int) -> None:
        """Arrays for that many rows, the first of them those kept, with what they need of slots."""
        past, width = self._now, min(self._sizes["S"], source_size)
        fixed = self._shape.form.slots
        used = [self._used(row) if fixed is None else fixed for row in keep]
        self._allocate(rows, source_size, fixed or self._room(max(used, default=self._sizes["K"])))
        for name in self._by_sentence():
            # One after the other is let go: new arrays take up memory only once they are written.
            old = past.pop(name, None)
            if old is None or not keep:
                continue
            if name in self._cache_names or name == "ancestry":
                self._copy_slots(name, old, keep, used)
            else:
                self._copy_rows(name, old, keep, width)

    def _copy_rows(self, name: str, old: NDArray[Any], keep: Sequence[int], width: int) -> None:
        """The kept rows of an array into the first of the new one, `width` source positions."""
        here, spec = self._now[name], self._crossing.get(name)
        if spec is None:
            here[: len(keep)] = old[list(keep)]
            return
        part = self._part(spec, width)
        for row, source in enumerate(keep):
            here[row][part] = old[source][part]

    def _part(self, spec: TensorSpec, source_size: int) -> tuple[slice, ...]:
        """Of a row of an encoder's output, what a source of that many tokens fills."""
        sizes = self._shape.form.source_sizes(source_size)
        axis, letter = next((i, axis) for i, axis in enumerate(spec.axes) if axis in sizes)
        return (*(slice(None),) * (axis - 1), slice(sizes[str(letter)]))

    def _copy_slots(
        self, name: str, old: NDArray[Any], keep: Sequence[int], used: Sequence[int]
    ) -> None:
        """As `_copy_rows`, of each row the slots up to the last in use.

        Every slot keeps its place. Sums over slots are rounded in the order of the slots, so they
        are those of the sentence alone, whoever comes and goes.
        """
        for row, (source, slots) in enumerate(zip(keep, used, strict=True)):
            self._now[name][row][:, :slots] = old[source][:, :slots]

    def _used(self, row: int) -> int:
        """Slots of a row up to the last that is in a beam's past or is written next."""
        past = np.flatnonzero((self._now["ancestry"][row] == 0).any(0))
        return 1 + int(max(past.max(initial=-1), self._now["slots"][row].max()))

    def _room(self, slots: int) -> int:
        """Slots for so many that are needed, and the spare ones."""
        return -(-(slots + self._spare_slots) // _SLOT_STEP) * _SLOT_STEP

    def _source_size(self, keep: Sequence[int], new: Sources | None) -> int:
        """Source positions for the longest of the kept and the new sentences."""
        longest = max(map(len, new.tokens)) if new is not None else 0
        if keep:
            shown = self._now["source_bias"][list(keep), 0, 0] == 0
            longest = max(longest, int(shown.sum(1).max()))
        # One sentence alone never shares its arrays.
        if len(keep) + (len(new) if new is not None else 0) == 1:
            return longest
        return -(-longest // _SOURCE_STEP) * _SOURCE_STEP

    def _start(self, rows: Sequence[int], new: Sources) -> None:
        """Encode sentences into rows and put those before their first step."""
        first = 0
        for count in _encoder_groups(list(map(len, new.tokens))):
            group = slice(first, first + count)
            self._encode(rows[group], new[group])
            first += count
        fresh = self._shape.initial_state(
            len(rows), self._sizes["K"], self._start_token, self._sizes["P"]
        )
        for name in self._state_names:
            self._now[name][list(rows)] = fresh[name]
        most = np.array(new.max_lengths, dtype=np.int64)
        for name, values in request_values(new.options or self._options, most).items():
            self._now[name][list(rows)] = values

    def _encode(self, rows: Sequence[int], new: Sources) -> None:
        """What the encoder finds, into rows; straight there if they lie so."""
        ids, lengths = new.padded()
        inputs = {"source_ids": ids, "source_lengths": lengths}
        specs, count, width = self._shape.encoder_outputs(), len(rows), ids.shape[1]
        together = slice(rows[0], rows[-1] + 1)
        if width == self._sizes["S"] and together.stop - together.start == count:  # rows ascend
            self._graphs.encode(inputs, {s.name: self._now[s.name][together] for s in specs})
            return
        sizes = self._sizes | {"N": count, **self._shape.form.source_sizes(width)}
        encoded = {s.name: zeros(sized(s, sizes), self._now[s.name].dtype) for s in specs}
        self._graphs.encode(inputs, encoded)
        self._now["source_bias"][list(rows)] = MASKED
        if "shortlist" in self._now:
            self._now["shortlist"][list(rows)] = EMPTY
        for spec in specs:
            part = self._part(spec, width)
            for row, value in zip(rows, encoded[spec.name], strict=True):
                self._now[spec.name][row][part] = value

    def _grow(self, full: NDArray[np.bool_]) -> None:
        """More slots; rows [N] that are full go on in the lowest that are free.

        Those are what a step would have chosen, had there been as many before.
        """
        old, beams = self._sizes["P"], self._sizes["K"]
        self._sizes["P"] = self._room(old + beams)
        self._runs = []
        for name in self._cache_names:
            past = self._now[name]
            grown = zeros((*past.shape[:2], self._sizes["P"], past.shape[3]), past.dtype)
            grown[:, :, :old] = past
            self._now[name] = grown
        more = np.full((*full.shape, beams, self._sizes["P"] - old), MASKED, dtype=np.float32)
        self._now["ancestry"] = np.concatenate((self._now["ancestry"], more), axis=2)
        self._other["ancestry"] = np.empty_like(self._now["ancestry"])
        for row in np.flatnonzero(full):
            free = np.flatnonzero((self._now["ancestry"][row] < 0).all(0))
            self._now["slots"][row] = free[:beams]


def _encoder_groups(lengths: Sequence[int]) -> list[int]:
    """How many of these sentences, in order, are encoded together at a time."""
    counts: list[int] = []
    widest = 0
    for length in lengths:
        widest = max(widest, length)
        if not counts or widest * (counts[-1] + 1) > _ENCODER_TOKENS:
            counts.append(0)
            widest = length
        counts[-1] += 1
    return counts

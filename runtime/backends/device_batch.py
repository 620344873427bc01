"""A batch that lives on a device: the host sends sentences, and fetches tokens and `done`.

Steps go to the device in rounds of `poll_every`, each captured once per bucket and replayed. While
the host reads the results of one round the device is at work on the next. Caches and
cross-attention never leave the device; rows are moved there.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends import Pool, Sources, StepResult, request_values
from translate_trt.runtime.backends.buffers import row_bytes
from translate_trt.runtime.backends.device import ITEM_SIZES, Bytes, Device, Event, Launch
from translate_trt.runtime.backends.host import sized
from translate_trt.runtime.backends.lane import Lane
from translate_trt.runtime.contract import GraphShape, TensorSpec
from translate_trt.runtime.engines import Profile
from translate_trt.runtime.options import SearchOptions

# Sources are filled up to a multiple, so that the encoder sees few shapes: TensorRT-RTX compiles
# kernels for each.
_SOURCE_STEP = 8


@dataclass(frozen=True)
class _Flight:
    """Steps on their way.

    Attributes:
        count: how many.
        arrived: when the copies have been made.
        results: copy of all places of the ring.
        attention: the same, if asked for.
    """

    count: int
    arrived: Event
    results: Bytes
    attention: Bytes | None


@dataclass
class _Row:
    """A sentence in a row.

    Attributes:
        length: source tokens, the end symbol included.
        most: tokens of its translation, at most.
        left: steps that it may still need.
        options: its own.
    """

    length: int
    most: int
    left: int
    options: SearchOptions


class DeviceBatch:
    """`Batch` over a lane.

    Args:
        lane: nobody else's as long as this lives.
        options: of sentences that come without any; beam size and attention are those of all.
        start_token: the decoder's start symbol.
    """

    def __init__(self, lane: Lane, options: SearchOptions, start_token: int) -> None:
        self._lane, self._buffers, self._device = lane, lane.buffers, lane.device
        self._options = options
        self._bucket: int | None = None
        self._rows: dict[int, _Row] = {}
        self._flights: list[_Flight] = []
        self._turn = 0  # of the two places that results are copied to
        self._pool: dict[str, NDArray[np.generic]] = {}
        self._forced = False  # the device has forced tokens
        self._by_row = [
            spec
            for spec in (*lane.shape.encoder_outputs(), *lane.shape.caches(), *self._buffers.state)
            if spec.axes[:1] == ("N",)
        ]
        with self._failing():
            self._begin(start_token)

    # ---- the protocol ----

    @property
    def rows(self) -> int:
        """See `Batch`."""
        return 0 if self._bucket is None else self._lane.profiles[self._bucket].batch

    def room(self, longest: int) -> int | None:
        """See `Batch`."""
        return max(
            (one.batch for one in self._lane.profiles if one.source_length >= longest), default=0
        )

    def update(self, keep: Sequence[int], new: Sources | None) -> tuple[list[int], list[int]]:
        """See `Batch`."""
        self._check_landed("update")
        arriving = list(map(len, new.tokens)) if new is not None else []
        longest = max([*(self._rows[row].length for row in keep), *arriving], default=1)
        bucket = self._lane.bucket(max(1, len(keep) + len(arriving)), longest)
        with self._failing():
            kept = self._rearrange(keep, bucket)
            free = [row for row in range(self.rows) if row not in set(kept)]
            placed, idle = free[: len(arriving)], free[len(arriving) :]
            if new is not None:
                self._start(placed, new)
            for first, count in _runs(idle):
                self._device.fill(self._state("done", first), 1, count)
            self._send_request()
        return kept, placed

    def step(self, forced: NDArray[np.int64] | None) -> list[StepResult]:
        """See `Batch`; free steps come `poll_every` at a time."""
        with self._failing():
            if forced is not None:
                return self._forced_step(forced)
            if self._forced:
                size = 8 * self._buffers.rows
                self._device.fill(self._buffers.request["forced_tokens"], 0xFF, size)  # FREE is -1
                self._forced = False
            if not self._flights:
                self._take_off(self._lane.poll_every)
            if any(row.left > 0 for row in self._rows.values()):
                self._take_off(self._lane.poll_every)
            return self._land()

    def drain(self) -> list[StepResult]:
        """See `Batch`."""
        with self._failing():
            return [result for _ in range(len(self._flights)) for result in self._land()]

    def pool(self, row: int) -> Pool:
        """See `Batch`; a sentence that is done has the pool it had then."""
        names = ("finished_scores", "finished_lengths", "finished_parents")
        return Pool(*(self._pool[name][row].copy() for name in names))

    def cancel(self) -> None:
        """See `Batch`; what a GPU was asked for is done within milliseconds."""

    # ---- steps ----

    def _forced_step(self, forced: NDArray[np.int64]) -> list[StepResult]:
        """A single one, not captured: it is rare."""
        self._check_landed("force tokens")
        self._buffers.send_request("forced_tokens", forced)
        self._forced = True
        self._take_off(1)
        return self._land()

    def _take_off(self, count: int) -> None:
        """Ask for steps and for copies of what they find."""
        assert self._bucket is not None
        if count == self._lane.poll_every:
            self._lane.round(self._bucket)
        else:
            self._lane.steps(self._bucket, count)
        for row in self._rows.values():
            row.left -= count
        results = self._lane.results[self._turn]
        self._device.copy_out(results, self._buffers.results)
        attention = None
        if self._options.return_attention:
            attention = self._lane.attention[self._turn]
            self._copy_attention(attention)
        self._flights.append(_Flight(count, self._device.record(), results, attention))
        self._turn = 1 - self._turn

    def _copy_attention(self, target: Bytes) -> None:
        size = self._buffers.attention_bytes
        for slot in range(self._buffers.slots):
            place = target[slot * size : (slot + 1) * size]
            self._device.copy_out(place, self._buffers.attention(slot))

    def _land(self) -> list[StepResult]:
        """Wait for the steps that are longest on their way."""
        flight = self._flights.pop(0)
        flight.arrived.wait()
        results = [self._result(flight, index) for index in range(flight.count)]
        for row, running in self._rows.items():
            if results[-1].done[row]:
                running.left = 0
        return results

    def _check_landed(self, what: str) -> None:
        if self._flights:
            raise RuntimeError(f"cannot {what}: steps were taken ahead, which drain() fetches.")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Nobody uses the lane again if something goes wrong in here."""
        try:
            yield
        except BaseException:
            self._lane.failed = True
            raise

    def _result(self, flight: _Flight, index: int) -> StepResult:
        slot = (index + 1) % self._buffers.slots
        found = self._buffers.read_results(flight.results, slot, self.rows)
        self._pool = found
        attention = None
        if flight.attention is not None:
            assert self._bucket is not None
            sizes = self._lane.sizes(self._bucket)
            shape = (sizes["N"], sizes["K"], sizes["S"])
            begin = slot * self._buffers.attention_bytes
            content = flight.attention[begin : begin + 4 * int(np.prod(shape))]
            attention = content.view(np.float32).reshape(shape).copy()
        return StepResult(
            found["tokens"], found["parents"], found["log_probs"], found["done"], attention
        )

    # ---- rows ----

    def _begin(self, start_token: int) -> None:
        """Everything that is the same for all sentences; all rows are idle."""
        buffers, rows = self._buffers, self._buffers.rows
        self._device.activate()
        self._sent = request_values(self._options, np.ones(rows, dtype=np.int64))
        for name, value in self._sent.items():
            buffers.send_request(name, value)
        buffers.send_fresh(start_token)
        self._reset(range(rows))
        self._device.fill(self._state("done", 0), 1, rows)

    def _rearrange(self, keep: Sequence[int], bucket: int) -> list[int]:
        """Into a bucket's rows, each as far as it can where it is; returns their rows there."""
        rows = self._lane.profiles[bucket].batch
        free = iter(row for row in range(rows) if row not in set(keep))
        kept = [row if row < rows else next(free) for row in keep]
        moves = [(old, new) for old, new in zip(keep, kept, strict=True) if old != new]
        before, self._bucket = self._bucket, bucket
        sources = {spec.name: spec for spec in self._lane.shape.encoder_outputs()}
        if before is not None and keep:
            now, past = self._lane.sizes(bucket), self._lane.sizes(before)
            if now["S"] != past["S"]:
                for spec in sources.values():
                    self._repack(spec, keep, kept, past, now)
                moving = [spec for spec in self._by_row if spec.name not in sources]
            else:
                moving = self._by_row
            for spec in moving:
                self._move(spec, moves, now)
        self._rows = {new: self._rows[old] for old, new in zip(keep, kept, strict=True)}
        return kept

    def _move(
        self, spec: TensorSpec, moves: Iterable[tuple[int, int]], sizes: dict[str, int]
    ) -> None:
        """Copy rows of a tensor to others, none of which is copied itself."""
        size, start = row_bytes(spec, sizes), self._address(spec)
        for old, new in moves:
            self._device.copy(start + new * size, start + old * size, size)

    def _repack(
        self,
        spec: TensorSpec,
        keep: Sequence[int],
        kept: Sequence[int],
        past: dict[str, int],
        now: dict[str, int],
    ) -> None:
        """Rows of an encoder's output for another S, by way of the memory for new sentences."""
        start, room = self._buffers.cross[spec.name], self._buffers.encoded[spec.name]
        size = row_bytes(spec, now)
        for old, new in zip(keep, kept, strict=True):
            self._blank(spec, room + new * size, 1, now)
            self._copy_rows(
                spec, room + new * size, start + old * row_bytes(spec, past), 1, (now, past)
            )
        for first, count in _runs(sorted(kept)):
            place = first * size
            self._device.copy(start + place, room + place, count * size)

    def _copy_rows(
        self,
        spec: TensorSpec,
        target: int,
        source: int,
        rows: int,
        sizes: tuple[dict[str, int], dict[str, int]],
    ) -> None:
        """Copy rows of an encoder's output between tensors of different S.

        Args:
            spec: of the tensor.
            target: address.
            source: address.
            rows: how many.
            sizes: of the target and of the source.
        """
        axis = spec.axes.index("S")
        item = ITEM_SIZES[spec.dtype]
        inner = item * int(np.prod(sized(spec, sizes[0])[axis + 1 :]))
        outer = rows * int(np.prod(sized(spec, sizes[0])[1:axis]))
        to, of = (inner * each["S"] for each in sizes)
        self._device.copy(target, source, min(to, of), outer, to, of)

    def _blank(self, spec: TensorSpec, target: int, rows: int, sizes: dict[str, int]) -> None:
        """Hide all positions of rows; keys and values that are hidden may be what they are."""
        if spec.name == "source_bias":
            size = rows * row_bytes(spec, sizes)
            self._device.copy(target, self._buffers.blank_bias, size)

    def _start(self, rows: Sequence[int], new: Sources) -> None:
        """Encode sentences into rows and put those before their first step."""
        assert self._bucket is not None
        now = self._lane.sizes(self._bucket)
        ids, lengths = new.padded()
        width = min(now["S"], -(-ids.shape[1] // _SOURCE_STEP) * _SOURCE_STEP)
        ids = np.pad(ids, ((0, 0), (0, width - ids.shape[1])), mode="edge")
        self._encode(ids, lengths)
        encoded = {**now, "N": len(rows), "S": width}
        for spec in self._lane.shape.encoder_outputs():
            start, room = self._buffers.cross[spec.name], self._buffers.encoded[spec.name]
            first = 0
            for row, count in _runs(rows):
                target = start + row * row_bytes(spec, now)
                self._blank(spec, target, count, now)
                source = room + first * row_bytes(spec, encoded)
                self._copy_rows(spec, target, source, count, (now, encoded))
                first += count
        self._reset(rows)
        options = new.options or [self._options] * len(new)
        for row, length, most, own in zip(
            rows, lengths.tolist(), new.max_lengths, options, strict=True
        ):
            self._rows[row] = _Row(length, most, most, own)

    def _encode(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        inputs = {"source_ids": ids, "source_lengths": lengths}
        uploads = {
            "source_ids": self._buffers.source_ids,
            "source_lengths": self._buffers.source_lengths,
        }
        addresses = dict(self._buffers.encoded)
        for name, (address, upload) in uploads.items():
            upload.send(inputs[name])
            addresses[name] = address
        profile = self._lane.bucket(*ids.shape)
        shapes = {name: value.shape for name, value in inputs.items()}
        self._device.launch(Launch("encoder", profile, shapes, addresses))

    def _reset(self, rows: Sequence[int]) -> None:
        """The state before the first step."""
        for spec in self._buffers.state:
            size = row_bytes(spec, self._buffers.sizes)
            fresh = self._buffers.fresh + self._buffers.state_block.offsets[spec.name]
            for first, count in _runs(rows):
                place = first * size
                self._device.copy(self._state(spec.name, 0) + place, fresh, count * size)

    def _send_request(self) -> None:
        """Of each row its limits and options, where the device has not got them yet."""
        rows = range(self._buffers.rows)
        options = [self._rows[row].options if row in self._rows else self._options for row in rows]
        most = [self._rows[row].most if row in self._rows else 1 for row in rows]
        values = request_values(options, np.array(most, dtype=np.int64))
        del values["forced_tokens"]  # which `step` sends
        for name, value in values.items():
            if not np.array_equal(value, self._sent[name]):
                self._buffers.send_request(name, value)
        self._sent |= values

    def _address(self, spec: TensorSpec) -> int:
        """Of a tensor with a row for each sentence, between steps."""
        for group in (self._buffers.cross, self._buffers.caches):
            if spec.name in group:
                return group[spec.name]
        return self._state(spec.name, 0)

    def _state(self, name: str, row: int) -> int:
        """Address of a row of the state between steps."""
        spec = next(one for one in self._buffers.state if one.name == name)
        return self._buffers.place(name, 0) + row * row_bytes(spec, self._buffers.sizes)


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending rows as (first, count) of neighbours."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((row, 1))
    return runs


class DeviceBackend:
    """`Backend` over devices, each with the same two engines.

    A batch takes a lane that is free, or a new one, and gives it back when nobody holds the batch
    any more: memory and captured graphs serve one call after another.

    Args:
        make_device: gives a lane its device.
        shape: of the graphs; with a number of beams and of slots.
        profiles: of both engines.
        poll_every: steps between two looks at `done`.
        cuda_graphs: capture rounds of steps and replay them.
    """

    def __init__(
        self,
        make_device: Callable[[], Device],
        shape: GraphShape,
        profiles: Sequence[Profile],
        poll_every: int,
        cuda_graphs: bool = True,
    ) -> None:
        self._make_device, self._shape = make_device, shape
        self._profiles, self._poll_every = tuple(profiles), poll_every
        self._cuda_graphs = cuda_graphs
        self._free: deque[Lane] = deque()

    def batch(self, options: SearchOptions, start_token: int) -> DeviceBatch:
        """See `Backend`."""
        try:
            lane = self._free.pop()
        except IndexError:
            lane = Lane(
                self._make_device(),
                self._shape,
                self._profiles,
                self._poll_every,
                self._cuda_graphs,
            )
        batch = DeviceBatch(lane, options, start_token)
        weakref.finalize(batch, _give_back, self._free, lane).atexit = False
        return batch


def _give_back(free: deque[Lane], lane: Lane) -> None:
    """Not a method: the finalizer would keep its object alive."""
    if not lane.failed:
        free.append(lane)

"""Where the tensors of a batch lie in a device's memory.

Everything is allocated once, for the largest of the engine's profiles. A tensor of N rows is dense
for whatever N and S a step has, so that a smaller bucket uses the beginning of each.

What a step hands to the next one, caches apart, has a ring of places: a step reads one and writes
the one after it, and the last of a round writes the first. So the steps of a round can be captured
as one CUDA graph, whose addresses never change, and the results of all of them are fetched by one
copy at its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.backends.device import ALIGNMENT, ITEM_SIZES, Bytes, Device, Upload
from translate_trt.runtime.backends.host import sized
from translate_trt.runtime.contract import MASKED, NEXT, GraphShape, TensorSpec
from translate_trt.runtime.engines import Profile

#: What the host reads after a step.
RESULTS = (
    "parents",
    "tokens",
    "log_probs",
    "done",
    "finished_scores",
    "finished_lengths",
    "finished_parents",
)


def row_bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    """Bytes of one sentence's part of a tensor whose first axis is N."""
    return math.prod(sized(spec, {**sizes, "N": 1})) * ITEM_SIZES[spec.dtype]


def tensor_bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    """Bytes of a tensor."""
    return math.prod(sized(spec, sizes)) * ITEM_SIZES[spec.dtype]


@dataclass(frozen=True)
class Block:
    """Tensors of some number of rows, one after another, each at a multiple of ALIGNMENT.

    Attributes:
        offsets: of each tensor, by name.
        size: bytes of all.
    """

    offsets: dict[str, int]
    size: int

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> Block:
        """Lay tensors out."""
        offsets, end = {}, 0
        for spec in specs:
            offsets[spec.name] = end
            end += -(-tensor_bytes(spec, sizes) // ALIGNMENT) * ALIGNMENT
        return cls(offsets, end)


class Buffers:
    """The memory of one batch.

    Args:
        device: where it is.
        shape: of the graphs.
        profiles: of the engines.
        slots: places of the ring, at least 2.

    Attributes:
        cross: by name, addresses of what the encoder found, [N, ...] of the rows of a batch.
        encoded: the same of sentences on their way into rows, and room for moving rows.
        blank_bias: a source bias that hides everything, as long as the longest.
        caches: by name, addresses.
        request: by name, addresses.
        fresh: the state of a sentence before its first step, as many as there can be rows; a state
            block.
        state_block: how a state is laid out in a place of the ring.
        rows: N of the largest profile.
    """

    def __init__(
        self, device: Device, shape: GraphShape, profiles: Sequence[Profile], slots: int
    ) -> None:
        beams = shape.form.beams
        assert beams is not None  # a static form, which the backend has checked
        self._device, self._shape = device, shape
        self.slots = slots
        self.rows = max(profile.batch for profile in profiles)
        self.longest = max(profile.source_length for profile in profiles)
        self.sizes = {"N": self.rows, "K": beams, "S": self.longest}
        self._largest = max(profile.batch * profile.source_length for profile in profiles)
        caches = {spec.name for spec in shape.caches()}
        self.state = [spec for spec in shape.state() if spec.name not in caches]
        parents = shape.step_outputs()[0]
        self._named = {spec.name: spec for spec in (parents, *self.state)}

        encoded = shape.encoder_outputs()
        self.cross = {spec.name: self._zeros(self._most(spec)) for spec in encoded}
        self.encoded = {spec.name: self._zeros(self._most(spec)) for spec in encoded}
        self.caches = {s.name: self._zeros(tensor_bytes(s, self.sizes)) for s in shape.caches()}
        self.source_ids = self._upload(8 * self._largest)
        self.source_lengths = self._upload(8 * self.rows)
        self._requests = {
            spec.name: self._upload(tensor_bytes(spec, self.sizes)) for spec in shape.request()
        }
        self.request = {name: address for name, (address, _) in self._requests.items()}
        self._lay_out_state()
        attention = [s for s in shape.step_outputs() if s.name == "attention"]
        self.attention_bytes = 4 * beams * self._largest if attention else 0
        self._attention = [device.allocate(self.attention_bytes) for _ in range(slots)
                           if attention]  # fmt: skip
        self.blank_bias, blank = self._upload(4 * self._largest)
        blank.send(np.full(self._largest, MASKED, dtype=np.float32))
        self.fresh, self._fresh = self._upload(self.state_block.size)

    # ---- addresses ----

    def place(self, name: str, slot: int) -> int:
        """Address of a tensor of the state, or of the parents, in a place of the ring."""
        if name in self.result_block.offsets:
            start = self.results + slot * self.result_block.size
            return start + self.result_block.offsets[name]
        return self._rest + slot * self._rest_block.size + self._rest_block.offsets[name]

    def step_addresses(self, slot: int) -> dict[str, int]:
        """Of every input and output of the step that reads that place of the ring."""
        following = (slot + 1) % self.slots
        addresses = {**self.cross, **self.request, **self.caches}
        addresses |= {NEXT + name: address for name, address in self.caches.items()}
        for spec in self.state:
            addresses[spec.name] = self.place(spec.name, slot)
            addresses[NEXT + spec.name] = self.place(spec.name, following)
        addresses["parents"] = self.place("parents", following)
        if self._attention:
            addresses["attention"] = self._attention[following]
        return addresses

    def attention(self, slot: int) -> int:
        """Address of the attention of the step that wrote that place of the ring."""
        return self._attention[slot]

    # ---- content ----

    def send_request(self, name: str, values: NDArray[Any]) -> None:
        """Set one of the inputs of `GraphShape.request`."""
        self._requests[name][1].send(values)

    def send_fresh(self, start_token: int) -> None:
        """Set `fresh`."""
        initial = self._shape.initial_state(self.rows, self.sizes["K"], start_token)
        content = np.zeros(self.state_block.size, dtype=np.uint8)
        for spec in self.state:
            begin = self.state_block.offsets[spec.name]
            value = np.ascontiguousarray(initial[spec.name]).reshape(-1).view(np.uint8)
            content[begin : begin + value.size] = value
        self._fresh.send(content)

    def wrap_round(self, slot: int) -> None:
        """Copy a place of the ring to the first one, where the next round begins."""
        for start, block in (
            (self.results, self.result_block),
            (self._rest, self._rest_block),
        ):
            self._device.copy(start, start + slot * block.size, block.size)

    def read_results(self, fetched: Bytes, slot: int, rows: int) -> dict[str, NDArray[Any]]:
        """What a step left in that place of the ring, as arrays of their own.

        Args:
            fetched: a copy of `results_bytes` from `results`.
            slot: which the step wrote.
            rows: N of the batch.
        """
        found: dict[str, NDArray[Any]] = {}
        for name, offset in self.result_block.offsets.items():
            spec = self._named[name]
            shape = sized(spec, {**self.sizes, "N": rows})
            begin = slot * self.result_block.size + offset
            size = math.prod(shape) * ITEM_SIZES[spec.dtype]
            content = fetched[begin : begin + size]
            found[name] = content.view(np.dtype(spec.dtype)).reshape(shape).copy()
        return found

    @property
    def results_bytes(self) -> int:
        """Of the results in all places of the ring."""
        return self.slots * self.result_block.size

    # ---- allocation ----

    def _lay_out_state(self) -> None:
        rest = [spec for spec in self.state if spec.name not in RESULTS]
        self.state_block = Block.of(self.state, self.sizes)
        self.result_block = Block.of([self._named[name] for name in RESULTS], self.sizes)
        self._rest_block = Block.of(rest, self.sizes)
        self.results = self._zeros(self.slots * self.result_block.size)
        self._rest = self._zeros(self.slots * self._rest_block.size)

    def _most(self, spec: TensorSpec) -> int:
        """Bytes of a tensor with the axes N and S in the profile where it is largest."""
        return tensor_bytes(spec, {**self.sizes, "N": 1, "S": self._largest})

    def _zeros(self, size: int) -> int:
        """Zeros, since what is hidden must still be finite."""
        address = self._device.allocate(size)
        self._device.fill(address, 0, size)
        return address

    def _upload(self, size: int) -> tuple[int, Upload]:
        address = self._device.allocate(size)
        return address, Upload(self._device, address, size)

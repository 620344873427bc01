"""What batches on a device take turns with: its memory and its captured CUDA graphs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from translate_trt.runtime.backends.buffers import Buffers
from translate_trt.runtime.backends.device import CaptureError, Device, Launch
from translate_trt.runtime.backends.host import sized
from translate_trt.runtime.contract import GraphShape
from translate_trt.runtime.engines import Profile
from translate_trt.runtime.errors import BackendError

log = logging.getLogger("translate_trt")


class Lane:
    """What outlives a batch: a device's queue, its memory, and the captured rounds.

    Args:
        device: nobody else's.
        shape: of the graphs.
        profiles: of the engines.
        poll_every: steps in a round.
        cuda_graphs: capture rounds.

    Attributes:
        failed: the device raised an error; what is in its memory is anybody's guess.
    """

    def __init__(
        self,
        device: Device,
        shape: GraphShape,
        profiles: Sequence[Profile],
        poll_every: int,
        cuda_graphs: bool = True,
    ) -> None:
        self.device, self.shape, self.profiles = device, shape, tuple(profiles)
        self.poll_every, self._cuda_graphs = poll_every, cuda_graphs
        self.buffers = Buffers(device, shape, profiles, max(2, poll_every))
        self.results = [device.pinned(self.buffers.results_bytes) for _ in range(2)]
        places = self.buffers.attention_bytes * self.buffers.slots
        self.attention = [device.pinned(places) for _ in range(2)] if places else []
        self.failed = False
        self._rounds: dict[int, Callable[[], None]] = {}
        self._ran: set[int] = set()

    def bucket(self, sentences: int, longest: int) -> int:
        """Index of the smallest profile that takes so many sentences of up to that length.

        Raises:
            BackendError: there is none.
        """
        fitting = [
            index
            for index, one in enumerate(self.profiles)
            if one.batch >= sentences and one.source_length >= longest
        ]
        if not fitting:
            raise BackendError(
                f"no profile of the engines takes {sentences} sentences of {longest} tokens; they "
                f"have {', '.join(map(str, self.profiles))}. Lower batch_tokens, or export with "
                "other --profiles."
            )
        return min(fitting, key=lambda index: self._cost(self.profiles[index]))

    @staticmethod
    def _cost(profile: Profile) -> tuple[int, int]:
        return profile.batch, profile.source_length

    def sizes(self, bucket: int) -> dict[str, int]:
        """N, K and S of the steps of a bucket."""
        profile = self.profiles[bucket]
        return {**self.buffers.sizes, "N": profile.batch, "S": profile.source_length}

    def round(self, bucket: int) -> None:
        """Take `poll_every` steps.

        The first time they are asked for one by one: TensorRT must have run with the shapes before
        it is captured.
        """
        if self._cuda_graphs and bucket not in self._rounds and bucket in self._ran:
            self._rounds[bucket] = self._captured(bucket)
        self._rounds.get(bucket, lambda: self.steps(bucket, self.poll_every))()
        self._ran.add(bucket)

    def steps(self, bucket: int, count: int) -> None:
        """Take so many steps, beginning at the first place of the ring and ending there."""
        for index in range(count):
            self._step(bucket, index % self.buffers.slots)
        if end := count % self.buffers.slots:
            self.buffers.wrap_round(end)

    def _step(self, bucket: int, slot: int) -> None:
        sizes = self.sizes(bucket)
        shapes = {spec.name: sized(spec, sizes) for spec in self.shape.step_inputs()}
        self.device.launch(Launch("step", bucket, shapes, self.buffers.step_addresses(slot)))

    def _captured(self, bucket: int) -> Callable[[], None]:
        def steps() -> None:
            self.steps(bucket, self.poll_every)

        try:
            return self.device.capture(steps)
        except CaptureError as error:
            _warn_once(
                f"steps of {self.profiles[bucket]} run without a CUDA graph, which is slower: "
                f"{error}"
            )
            return steps


@functools.cache
def _warn_once(message: str) -> None:
    """Every worker meets the same failure."""
    log.warning("%s", message)

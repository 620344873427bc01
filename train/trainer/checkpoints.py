"""Checkpoints during training: written in the background, thinned out, and averaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from translate_trt.runtime.errors import CheckpointError, OutputError
from translate_trt.runtime.io.atomic_files import remove_directory
from translate_trt.runtime.io.outputs import stranger
from translate_trt.train.checkpoint import WRITTEN, numbered_checkpoints, read_weights

log = logging.getLogger("translate_trt")


def average_weights(checkpoints: list[Path]) -> dict[str, Tensor]:
    """The mean of each weight over those checkpoints (section 6.1), summed in float64.

    Damaged ones are left out with a warning: they must not cost the end of a long run.

    Raises:
        CheckpointError: all are damaged.
    """
    total: dict[str, Tensor] = {}
    used, damage = 0, None
    for path in checkpoints:
        try:
            weights = read_weights(path)
        except CheckpointError as error:
            log.warning("the average goes without one checkpoint: %s", error)
            damage = error
            continue
        used += 1
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    if damage is not None and not used:
        raise damage
    return {name: (tensor / used).float() for name, tensor in total.items()}


def remove_old_checkpoints(run: Path, keep: int) -> None:
    """Delete all but the last `keep` numbered checkpoints; one with a user's files in it stays."""
    for path in numbered_checkpoints(run)[:-keep]:
        if (other := stranger(path, WRITTEN)) is None:
            remove_directory(path)
        else:
            log.info("%s is kept, because no run has written its %s", path, other)


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time, while training goes on.

    A checkpoint that cannot be written (a full disk) is reported; those before it stand, and
    training goes on.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[OutputError | None] | None = None

    def start(self, path: Path, write: Callable[[], None]) -> None:
        """Have `write` called, which makes `path`; waits for the one before it."""
        self.finish()
        self._pending = self._executor.submit(self._attempt, path, write)

    def finish(self, required: bool = False) -> None:
        """Wait until the last one is written.

        Args:
            required: raise if it could not be.

        Raises:
            OutputError: it could not be written.
        """
        pending, self._pending = self._pending, None
        error = None if pending is None else pending.result()
        if error is not None and required:
            raise error

    @staticmethod
    def _attempt(path: Path, write: Callable[[], None]) -> OutputError | None:
        try:
            write()
        except OutputError as error:
            log.error("%s was not saved: %s The checkpoints before it stand.", path.name, error)
            return error
        return None

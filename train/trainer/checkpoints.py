"""Background writing, rotation and averaging of checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from translate_trt.runtime.errors import CheckpointError, OutputError
from translate_trt.runtime.io.atomic_files import output_error, remove_directory
from translate_trt.runtime.io.outputs import foreign_file
from translate_trt.train.checkpoint import CHECKPOINT_FILES, numbered_checkpoints, read_weights

log = logging.getLogger("translate_trt")


def average_weights(checkpoints: list[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints (section 6.1), in float64.

    A damaged checkpoint is left out with a warning, so a long run does not end in an error.

    Raises:
        CheckpointError: All checkpoints are damaged.
    """
    total: dict[str, Tensor] = {}
    used, damage = 0, None
    for path in checkpoints:
        try:
            weights = read_weights(path)
        except CheckpointError as error:
            log.warning("a checkpoint is left out of the average: %s", error)
            damage = error
            continue
        used += 1
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    if damage is not None and not used:
        raise damage
    return {name: (tensor / used).float() for name, tensor in total.items()}


def remove_old_checkpoints(run: Path, keep: int) -> None:
    """Delete all but the last `keep` numbered checkpoints, except those with a user's files."""
    for path in numbered_checkpoints(run)[:-keep]:
        remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, unless it has a user's files."""
    if (other := foreign_file(path, CHECKPOINT_FILES)) is not None:
        log.info("%s is kept because it contains %s, which no run has written", path, other)
        return
    try:
        remove_directory(path)
    except OSError as error:  # it is protected, or in use on another machine
        log.warning("%s cannot be deleted: %s", path, error.strerror or error)


class CheckpointWriter:
    """Writes checkpoints in a thread, one at a time.

    A failed write, such as on a full disk, is logged; training continues, and earlier checkpoints
    are kept.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[OutputError | None] | None = None

    def start(self, path: Path, write: Callable[[], None]) -> None:
        """Wait for the previous write, then run `write`, which makes `path`, in the thread."""
        self.finish()
        self._pending = self._executor.submit(self._attempt, path, write)

    def finish(self, required: bool = False) -> bool:
        """Wait for the write in progress, if any.

        Args:
            required: Raise if the write failed.

        Returns:
            Whether it succeeded.

        Raises:
            OutputError: The checkpoint could not be written.
        """
        pending, self._pending = self._pending, None
        error = None if pending is None else pending.result()
        if error is not None and required:
            raise error
        return error is None

    @staticmethod
    def _attempt(path: Path, write: Callable[[], None]) -> OutputError | None:
        try:
            write()
            return None
        except OutputError as error:
            failure = error
        except OSError as error:
            failure = output_error(path, error)
        log.error("%s was not saved: %s Earlier checkpoints are kept.", path.name, failure)
        return failure

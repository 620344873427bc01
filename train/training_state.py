"""Training state of a checkpoint, for resuming."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from translate_trt.runtime.errors import CheckpointError
from translate_trt.train.hashed_files import (
    file_hashes,
    read_json,
    read_tensors,
    recorded_hashes,
    write_tensors,
)
from translate_trt.train.selection import Selection

OPTIMIZER = "optimizer.safetensors"


@dataclass
class TrainingState:
    """Everything that exact resume needs besides the weights.

    Random generators have no state here: they are seeded by the seed, the step and the rank.
    """

    step: int
    epoch: int
    epoch_step: int  # completed steps of this epoch
    fingerprint: int  # checksum of the training data
    skipped: int  # steps skipped because of a non-finite gradient
    scaler: dict[str, float]  # state of the loss scaler; empty unless precision is fp16
    optimizer: dict[str, Tensor]
    selection: Selection = field(default_factory=Selection)  # best validation so far

    def save(self, directory: Path) -> None:
        """Write `optimizer.safetensors` and `state.json`."""
        directory.mkdir()
        write_tensors(directory / OPTIMIZER, self.optimizer)
        values = {key: value for key, value in vars(self).items() if key != "optimizer"}
        values["selection"] = self.selection.to_json()
        values["sha256"] = file_hashes(directory / OPTIMIZER)
        (directory / "state.json").write_text(json.dumps(values, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> TrainingState:
        """Read a state written by `save`.

        Raises:
            CheckpointError: The state is missing or damaged.
        """
        file = directory / "state.json"
        values = read_json(file)
        hashes = recorded_hashes(file, values, OPTIMIZER)
        tensors = read_tensors(directory / OPTIMIZER, hashes[OPTIMIZER])
        del values["sha256"]
        try:
            selection = Selection.from_json(values.pop("selection"))
            return cls(**values, optimizer=tensors, selection=selection)
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{directory} lacks part of the training state ({error}); use another checkpoint."
            ) from error

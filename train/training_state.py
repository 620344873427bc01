"""State that a checkpoint keeps for resuming."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from translate_trt.runtime.errors import CheckpointError
from translate_trt.train.hashed_files import file_hashes, read_json, read_tensors, recorded_hashes

OPTIMIZER = "optimizer.safetensors"


@dataclass
class TrainingState:
    """Everything beside the weights that a resumed run needs to go on as if never stopped.

    No random states: those of a step are a function of the seed, the step and the process.
    """

    step: int
    epoch: int
    epoch_step: int  # steps of this epoch that are done
    fingerprint: int  # of the training data
    skipped: int  # steps left out because a gradient was not finite
    scaler: dict[str, float]  # of losses in float16; empty in other precisions
    optimizer: dict[str, Tensor]

    def save(self, directory: Path) -> None:
        """Write `optimizer.safetensors` and `state.json`."""
        directory.mkdir()
        save_file(self.optimizer, directory / OPTIMIZER)
        values = {key: value for key, value in vars(self).items() if key != "optimizer"}
        values["sha256"] = file_hashes(directory / OPTIMIZER)
        (directory / "state.json").write_text(json.dumps(values, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> TrainingState:
        """Read what `save` wrote.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        file = directory / "state.json"
        values = read_json(file)
        tensors = read_tensors(directory / OPTIMIZER, recorded_hashes(file, values).get(OPTIMIZER))
        values.pop("sha256", None)
        try:
            return cls(**values, optimizer=tensors)
        except TypeError as error:
            raise CheckpointError(
                f"{directory} does not hold what resuming needs ({error}); use another checkpoint."
            ) from error

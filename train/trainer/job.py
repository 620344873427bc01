"""A training run's directory, settings and data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from translate_trt.train.checkpoint import save_checkpoint
from translate_trt.train.trainer.load_data import LoadedData
from translate_trt.train.trainer.settings import Settings
from translate_trt.train.training_state import TrainingState


@dataclass(frozen=True)
class Job:
    """Inputs of a training run.

    Attributes:
        out: Directory of the run.
        settings: Content of its run.json.
        data: Training and validation data, and the tokenizers in `out`.
    """

    out: Path
    settings: Settings
    data: LoadedData

    @functools.cached_property
    def fingerprint(self) -> int:
        """Checksum of the training data, used to verify the data on resume."""
        return self.data.train.fingerprint()

    def save_checkpoint(
        self,
        path: Path,
        weights: dict[str, Tensor],
        state: TrainingState | None = None,
        selected: dict[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint of the run.

        Args:
            path: Directory of the checkpoint.
            weights: Weights by name.
            state: Training state for resuming; None for the averaged and the best checkpoint.
            selected: Step and validation scores of the best checkpoint.

        Raises:
            OutputError: The disk is full or not writable.
        """
        settings = self.settings
        save_checkpoint(
            path, weights, settings.model, settings.train, self.data.tokenizers,
            settings.decoding, state, settings.origin, selected,
        )  # fmt: skip

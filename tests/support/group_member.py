"""Process of a torchrun group in tests: `translate-trt train` with a log of its rows.

Environment: ROWS_DIRECTORY, where each process writes the sentences of each step it has done;
DIE_AT_STEP, at which process 1 is killed, the first time round.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from translate_trt.runtime.cli import main
from translate_trt.train.trainer import loop as trainer
from translate_trt.train.trainer import steps

RANK, ROUND = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
taken: dict[tuple[int, int], list[int]] = {}

make_step = steps.StepLoader._step
take_step = trainer.Trainer._optimizer_step


def note_rows(self: steps.StepLoader, batches: Any, following: tuple[int, int]) -> steps.Step:
    own = steps.share(batches, self._rank, self._size)
    taken[following] = [int(row) for rows in own for row in rows]
    return make_step(self, batches, following)


def write_rows(self: trainer.Trainer, step: steps.Step) -> None:
    if (RANK, ROUND, str(self.step)) == ("1", "0", os.environ.get("DIE_AT_STEP")):
        os.kill(os.getpid(), signal.SIGKILL)
    take_step(self, step)
    entry = {"step": self.step, "epoch": step.next_position, "rows": taken[step.next_position]}
    with (Path(os.environ["ROWS_DIRECTORY"]) / f"{ROUND}-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    steps.StepLoader._step = note_rows  # type: ignore[method-assign]
    trainer.Trainer._optimizer_step = write_rows  # type: ignore[method-assign]
    main()

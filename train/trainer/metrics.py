"""Training metrics: metrics.jsonl, TensorBoard, and progress on the console."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import os
import reprlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.atomic_files import output_error, write_bytes_atomically

log = logging.getLogger("translate_trt")

METRICS = "metrics.jsonl"
DAMAGED = "metrics.damaged"
TENSORBOARD = "tensorboard"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the entries of a run's metrics.jsonl, without a last line cut off by a crash.

    Raises:
        InputError: The file cannot be read, or a line is damaged.
    """
    entries, damaged = _read(run / METRICS)
    if damaged:
        number, line = next(iter(damaged.items()))
        text = line.decode("utf-8", errors="backslashreplace")
        raise InputError(
            f"{run / METRICS}, line {number} is damaged ({reprlib.repr(text)}): each line must be "
            "a JSON object of numbers, as `translate-trt train` writes it. Delete the line."
        )
    return entries


def _read(path: Path) -> tuple[list[dict[str, Any]], dict[int, bytes]]:
    """Return the entries of all complete lines, and the damaged lines by number."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    entries: list[dict[str, Any]] = []
    damaged: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(_entry(line))
        except (ValueError, TypeError):
            damaged[number] = line
    return entries, damaged


def _entry(line: bytes) -> dict[str, Any]:
    """Parse a line; raise a ValueError or TypeError if `Metrics` would not write it."""
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        raise ValueError("no object with a step")
    for _ in scalars(entry):  # raises unless each value is a number
        pass
    return entry


def _set_aside(run: Path, damaged: dict[int, bytes]) -> None:
    """Append damaged lines to a separate file."""
    path = run / DAMAGED
    try:
        with path.open("ab") as file:
            file.writelines(line + b"\n" for line in damaged.values())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise output_error(path, error) from error
    numbers = ", ".join(map(str, itertools.islice(damaged, 5)))
    log.warning(
        "%s: damaged lines (%s%s) were moved to %s; the run continues without them",
        run / METRICS, numbers, ", ..." if len(damaged) > 5 else "", DAMAGED,
    )  # fmt: skip


class Metrics:
    """Writer of a run's metrics, in the leading process.

    A resumed run moves damaged lines to `metrics.damaged` with a warning. A failed write, such as
    on a full disk, is reported once and does not end the training.

    Args of the constructor:
        run: Directory of the run.
        step: Step to continue from. Entries of later steps, which a crash has undone, are dropped.
        total: Steps of the whole run.
        finished: Whether no step is left: such a run averages its checkpoints again.

    Raises:
        InputError: The existing metrics cannot be read.
        OutputError: The metrics cannot be written.
    """

    def __init__(self, run: Path, step: int, total: int, finished: bool = False) -> None:
        entries, damaged = _read(run / METRICS)
        if damaged:
            _set_aside(run, damaged)
        kept = [entry for entry in entries if entry["step"] <= step] if step else []
        if finished:
            kept = [entry for entry in kept if entry["step"] < step or "averaged" not in entry]
        text = "".join(json.dumps(entry) + "\n" for entry in kept)
        write_bytes_atomically(run / METRICS, text.encode())
        self._file = (run / METRICS).open("a", encoding="utf-8", buffering=1)
        self._board = _tensorboard(run / TENSORBOARD, step)
        self._run = run
        self._failed: set[str] = set()
        self._total = total
        terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=step, unit="step", disable=not terminal)

    def advance(self) -> None:
        """Advance the progress bar by a step."""
        self._bar.update()

    def progress(self, entry: dict[str, Any], perplexity: float, seconds_left: float) -> None:
        """Record an entry, and show it on the console."""
        self.write(entry)
        speed = entry["target_tokens_per_second"]
        if not self._bar.disable:
            self._bar.set_postfix(
                epoch=entry["epoch"], loss=f"{entry['loss']:.3f}", tokens_per_second=round(speed)
            )
            return
        log.info(
            "step %d/%d epoch %d loss %.3f perplexity %.2f, %.0f target tokens/s, %s left",
            entry["step"], self._total, entry["epoch"], entry["loss"], perplexity, speed,
            datetime.timedelta(seconds=int(seconds_left)),
        )  # fmt: skip

    def write(self, entry: dict[str, Any]) -> None:
        """Record an entry, which must have `step`."""
        with self._surviving(METRICS):
            self._file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            with self._surviving(TENSORBOARD):
                for name, value in scalars(entry):
                    self._board.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        """Flush and close all outputs."""
        self._bar.close()
        with self._surviving(METRICS):
            self._file.close()
        if self._board is not None:
            with self._surviving(TENSORBOARD):
                self._board.close()

    @contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        """Log the first failed write to a file, and continue."""
        try:
            yield
        except OSError as error:
            if name not in self._failed:
                log.warning("%s Training continues.", output_error(self._run / name, error))
            self._failed.add(name)


def scalars(entry: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Iterate over an entry's numbers by TensorBoard name: `train/loss`, `validation/bleu`."""
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif name not in ("step", "epoch"):
            yield (prefix or "train/") + name, float(value)


def _tensorboard(directory: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no TensorBoard files are written; to get them: pip install tensorboard")
        return None
    return SummaryWriter(directory, purge_step=step + 1)


class Meter:
    """Throughput meter: tokens, steps and seconds since the last report."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset all counters."""
        self.tokens = self.steps = 0
        self._begin = time.perf_counter()

    def add(self, tokens: int) -> None:
        """Count a step of `tokens` target tokens."""
        self.tokens += tokens
        self.steps += 1

    def skip(self, seconds: float) -> None:
        """Exclude time that was not spent on steps."""
        self._begin += seconds

    @property
    def seconds(self) -> float:
        """Seconds since the last restart, without excluded time."""
        return max(time.perf_counter() - self._begin, 1e-9)

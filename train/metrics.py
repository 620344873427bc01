"""What a run tells of itself: metrics.jsonl, TensorBoard, and a line on the console."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from translate_trt.runtime.files import write_text_atomically

log = logging.getLogger("translate_trt")

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The entries of a run's metrics.jsonl; a last line cut off by a crash is left out."""
    path = run / METRICS
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Metrics:
    """Writes the numbers of a run as they come; only the leading process has one.

    Args of the constructor:
        run: directory of the run.
        step: entries after it, of steps that a crash has undone, are dropped.
        total: steps of the whole run.
    """

    def __init__(self, run: Path, step: int, total: int) -> None:
        kept = [entry for entry in read_metrics(run) if entry["step"] <= step]
        text = "".join(json.dumps(entry) + "\n" for entry in kept)
        write_text_atomically(run / METRICS, text)
        self._file = (run / METRICS).open("a", encoding="utf-8", buffering=1)
        self._board = _tensorboard(run / TENSORBOARD, step)
        self._total = total
        terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=step, unit="step", disable=not terminal)

    def advance(self) -> None:
        """One more step is done."""
        self._bar.update()

    def progress(self, entry: dict[str, Any], perplexity: float, seconds_left: float) -> None:
        """Record the numbers of the last steps, and show them."""
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
            _clock(seconds_left),
        )  # fmt: skip

    def write(self, entry: dict[str, Any]) -> None:
        """Record an entry; it must have `step`."""
        self._file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in scalars(entry):
                self._board.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        """Write out what is left."""
        self._bar.close()
        self._file.close()
        if self._board is not None:
            self._board.close()


def scalars(entry: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of an entry under their TensorBoard names: `train/loss`, `validation/bleu`."""
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{prefix}{name}/")
        elif name not in ("step", "epoch"):
            yield (prefix or "train/") + name, float(value)


def _tensorboard(directory: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no TensorBoard files: pip install tensorboard makes them")
        return None
    return SummaryWriter(directory, purge_step=step + 1)


def _clock(seconds: float) -> str:
    minutes = int(seconds) // 60
    days = f"{minutes // 1440} d " if minutes >= 1440 else ""
    return f"{days}{minutes // 60 % 24:02}:{minutes % 60:02}:{int(seconds) % 60:02}"


class Meter:
    """Tokens and seconds since the last report; waiting times are taken out."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self.tokens = self.steps = 0
        self._begin = time.perf_counter()

    def add(self, tokens: int) -> None:
        """One step of so many target tokens is done."""
        self.tokens += tokens
        self.steps += 1

    def skip(self, seconds: float) -> None:
        """Leave out time that was not spent on steps."""
        self._begin += seconds

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return max(time.perf_counter() - self._begin, 1e-9)

"""Progress of a translation of many shards."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.verbosity import progress_bar

if TYPE_CHECKING:
    from translate_trt.runtime.serve.corpus.job import ShardRecord

log = logging.getLogger("translate_trt")

_SECONDS_BETWEEN_LINES = 30.0


class ShardProgress:
    """Progress of a run over shards: a bar on a terminal, a line on stderr every 30 s elsewhere.

    Args of the constructor:
        hidden: Show nothing.
        clock: Seconds since any moment.
    """

    def __init__(self, hidden: bool, clock: Callable[[], float] = time.monotonic) -> None:
        terminal = sys.stderr.isatty()
        self._hidden = hidden
        self._lines_hidden = hidden or terminal or not log.isEnabledFor(logging.WARNING)
        self._bar: Any = None
        self._shards = self._before = self._now = 0
        self._records = self._tokens = 0
        self._clock = clock
        self._begun = clock()
        self._ended = threading.Event()
        self._writer: threading.Thread | None = None

    def planned(self, shards: int, finished: int) -> None:
        """Begin, with the numbers of all shards and of those that earlier runs have finished."""
        self._shards, self._before = shards, finished
        if finished:
            log.info("%d of %d shards are already finished", finished, shards)
        self._bar = progress_bar(shards, " shards", finished, self._hidden)
        if not self._lines_hidden:
            self._writer = threading.Thread(target=self._write_lines, daemon=True)
            self._writer.start()

    def finished(self, record: ShardRecord) -> None:
        """Count a finished shard."""
        self._now += 1
        self._records += record.records
        self._tokens += record.target_tokens
        self._bar.set_postfix_str(self._speed())
        self._bar.update()

    def _write_lines(self) -> None:
        # At fixed intervals: a log should also show a run that finishes no shards.
        while not self._ended.wait(_SECONDS_BETWEEN_LINES):
            click.echo(f"translate-trt: {self.line()}", err=True)

    def line(self) -> str:
        """Return finished shards, speed and remaining time."""
        if not self._now:
            return f"{self.state()}, none in the {self._clock() - self._begun:.0f} s so far"
        left = (self._shards - self._before - self._now) * self._seconds() / self._now
        return f"{self.state()}, {self._speed()}, {timedelta(seconds=round(left))} left"

    def _seconds(self) -> float:
        return max(self._clock() - self._begun, 1e-9)

    def _speed(self) -> str:
        seconds = self._seconds()
        return (
            f"{self._records / seconds:,.1f} lines/s, {self._tokens / seconds:,.0f} target tokens/s"
        )

    def state(self) -> str:
        """Return the number of finished shards."""
        if not self._shards:
            return "no shard was planned yet"
        return f"{self._before + self._now} of {self._shards} shards are finished"

    def summary(self) -> str:
        """Return what this run has translated, and how fast."""
        made = f"{self._records:,} lines translated in {self._seconds():.1f} s: {self._speed()}"
        return made if self._now else "all shards were already finished"

    def close(self) -> None:
        """End the bar and the lines; may be called twice."""
        self._ended.set()
        if self._writer is not None:
            self._writer.join()  # no line may follow the end of the command's output
        if self._bar is not None:
            self._bar.close()

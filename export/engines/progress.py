"""Progress bar of an engine build, and its cancellation by signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class Progress:
    """Progress of nested phases as a fraction between 0 and 1.

    The builder reports from several threads. Setting `stopped` ends the build at the next report.
    An exception of the bar does the same, and must not propagate through the builder's code.
    """

    def __init__(self, bar: tqdm[Any]) -> None:
        self.stopped = 0  # number of the signal
        self.failure: Exception | None = None
        self._bar = bar
        self._phases: dict[str, _Phase] = {}
        self._lock = threading.Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Start a phase, nested in `parent` unless that is None."""
        with self._lock:
            self._phases[name] = _Phase(parent, max(1, steps))
            self._show(name)

    def step(self, name: str, index: int) -> bool:
        """Record that a step is done; return False to stop the build."""
        with self._lock:
            if name in self._phases:
                self._phases[name].done = index + 1
                self._show(name)
            return not self.stopped and self.failure is None

    def finish(self, name: str) -> None:
        """End a phase."""
        with self._lock:
            self._phases.pop(name, None)

    def fraction(self) -> float:
        """Return the finished fraction of the outermost phase, including nested phases."""
        total, weight = 0.0, 1.0
        name = next((n for n, phase in self._phases.items() if phase.parent is None), None)
        while name is not None:
            phase = self._phases[name]
            total += weight * min(1.0, phase.done / phase.steps)
            weight /= phase.steps
            name = next((n for n, inner in self._phases.items() if inner.parent == name), None)
        return min(1.0, total)

    def _show(self, name: str) -> None:
        try:
            self._bar.set_postfix_str(name, refresh=False)
            # A phase may start in a parent whose last step is already counted: never move back.
            self._bar.update(max(0.0, round(100 * self.fraction(), 1) - self._bar.n))
        except Exception as error:
            self.failure = error


def monitor(module: Any, progress: Progress) -> Any:
    """Return an IProgressMonitor of the package that forwards to `progress`."""

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return progress.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            progress.finish(phase_name)

    return Monitor()


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """Show a progress bar on stderr if it is a terminal, and defer the handlers of signals.

    A handler, such as that of Ctrl-C, runs at the end of the block: an exception within the
    builder's code would end the process. The builder stops at its next step.
    """
    layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    with tqdm(total=100, desc=description, disable=None, leave=False, bar_format=layout) as bar:
        progress = Progress(bar)
        previous = {}
        if threading.current_thread() is threading.main_thread():  # which runs the handlers
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                if number is not None and callable(handler := signal.getsignal(number)):
                    signal.signal(number, lambda number, _: setattr(progress, "stopped", number))
                    previous[number] = handler
        try:
            yield progress
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if progress.stopped:
                signal.raise_signal(progress.stopped)
    if progress.failure is not None:
        raise progress.failure

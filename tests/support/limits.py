"""Bounds on the time of each test and of a whole run, and failures printed when they happen.

A test that waits for something that never comes would otherwise hold its process of pytest-xdist,
and the run, until both are killed, with no word about which test it was or which others had
failed. pytest-timeout bounds tests, but neither the end of a process nor code that holds the GIL,
and reports nothing before the end of a run.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Generator

import pytest

#: Seconds that a test which exceeds its limit has to end itself.
GRACE = 60.0

#: Seconds from the end of the last test to the end of the process.
FINISH_LIMIT = 300.0

#: Seconds that a run beyond its limit has for its summary, before it is ended without one.
SUMMARY_LIMIT = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("limits", "bounds on time")
    group.addoption(
        "--test-limit",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="fail a test of which setup, call or teardown take longer, and print all stacks "
        "(default: 600; 0: no limit)",
    )
    group.addoption(
        "--run-limit",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="stop and report if all tests together take longer (default: 0: no limit)",
    )


def pytest_configure(config: pytest.Config) -> None:
    worker = hasattr(config, "workerinput")  # of pytest-xdist
    config.pluginmanager.register(TestLimit(config.getoption("--test-limit"), worker))
    if not worker:
        config.pluginmanager.register(Reporter(config, 60 * config.getoption("--run-limit")))


class TestLimit:
    """Fail a test of which a phase exceeds its limit, with the stacks of all threads.

    A signal interrupts what waits in Python. What waits in C for another `GRACE` seconds ends with
    its process, by the watchdog of faulthandler: a thread of C, which also runs while a library
    holds the GIL. pytest-xdist then reports the test and starts another process.

    Args:
        seconds: Limit of a phase; zero for none.
        worker: Whether this process belongs to pytest-xdist, which ends it itself after the tests.
    """

    __test__ = False

    def __init__(self, seconds: float, worker: bool) -> None:
        self._seconds = seconds
        self._worker = worker
        self._stderr = os.dup(sys.__stderr__.fileno())  # before pytest captures it

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._limited())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._limited())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        return (yield from self._limited())

    def _limited(self) -> Generator[None, object, object]:
        if not self._seconds:
            return (yield)
        self._watch(self._seconds + GRACE)
        handler = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            faulthandler.cancel_dump_traceback_later()

    def _interrupt(self, _signal: int, _frame: object) -> None:
        faulthandler.dump_traceback(self._stderr)
        pytest.fail(f"took longer than {self._seconds:g} s (--test-limit)")

    def _watch(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._stderr, exit=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Bound the time until the process has ended, threads that Python waits for included."""
        if self._seconds and not self._worker:
            self._watch(FINISH_LIMIT)


class Reporter:
    """Print failures when they happen, and stop a run beyond its limit.

    Args:
        config: of the process that prints.
        seconds: of the whole run; zero sets no limit.
    """

    def __init__(self, config: pytest.Config, seconds: float) -> None:
        self._config = config
        self._seconds = seconds
        self._running: dict[str, float] = {}
        self._finished = threading.Event()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)  # after the letter of the progress line
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)")
            terminal.write_line(report.longreprtext)
            terminal.flush()

    def pytest_sessionstart(self) -> None:
        if self._seconds:
            threading.Thread(target=self._watch, daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._finished.set()

    def _watch(self) -> None:
        if self._finished.wait(self._seconds):
            return
        now = time.monotonic()
        lines = [
            f"The tests took longer than {self._seconds / 60:g} minutes (--run-limit). Running:"
        ]
        lines += [f"  {name} (for {now - start:.0f} s)" for name, start in self._running.items()]
        print("", *lines, sep="\n", file=sys.__stderr__, flush=True)
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does: pytest prints its summary
        if not self._finished.wait(SUMMARY_LIMIT):
            faulthandler.dump_traceback(sys.__stderr__)
            os._exit(1)

"""Processor time of test files, to find the expensive ones.

Processor time is what tests cost on a busy machine as well, where durations also measure the wait
for a processor. The first test that needs a shared fixture pays for it, so the order matters.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

PROPERTY = "processor_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("limits", "bounds on time").addoption(
        "--processor-times",
        type=int,
        default=0,
        metavar="FILES",
        help="print the processor seconds of so many test files, the most expensive ones "
        "(children that ended are counted; default: 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    count = config.getoption("--processor-times")
    if count:
        config.pluginmanager.register(ProcessorTimes(count))


def processor_seconds() -> float:
    """Return the processor seconds of this process, all its threads and its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class ProcessorTimes:
    """Measure each test, fixtures included, and sum up by file.

    Args:
        count: Files to print.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._measured(item))

    def _measured(self, item: pytest.Item) -> Generator[None, object, object]:
        before = processor_seconds()
        try:
            return (yield)
        finally:  # pytest-xdist passes properties of a report on
            item.user_properties.append((PROPERTY, processor_seconds() - before))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # its report has the properties of all phases
            file, _, _ = report.nodeid.partition("::")
            self._seconds[file] += sum(
                float(str(value)) for name, value in report.user_properties if name == PROPERTY
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("processor seconds")
        for file, seconds in self._seconds.most_common(self._count):
            terminalreporter.write_line(f"{seconds:8.1f}  {file}")
        terminalreporter.write_line(f"{sum(self._seconds.values()):8.1f}  all files")

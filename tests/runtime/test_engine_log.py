"""The logger of engines, on a fake of the package's class."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from translate_trt.runtime.backends import engine_log


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    package = types.ModuleType("tensorrt")
    package.__dict__["ILogger"] = type("ILogger", (), {})
    monkeypatch.setitem(sys.modules, "tensorrt", package)
    return engine_log.logger.__wrapped__("tensorrt")


def say(log: Any, severity: str, *messages: str) -> None:
    for message in messages:
        log.log(types.SimpleNamespace(name=severity), message)


def in_thread(*arguments: Any) -> None:
    thread = threading.Thread(target=say, args=arguments)
    thread.start()
    thread.join()


def held(log: Any) -> int:
    """Return the number of messages that the logger holds."""
    return sum(len(value) for value in vars(log).values() if hasattr(value, "__len__"))


def test_the_last_errors_are_told_once(log: Any) -> None:
    say(log, "ERROR", "one", "two ", "two", "catchCudaError: none", "three")
    say(log, "WARNING", "never mind")
    assert log.reasons() == "two | three"
    assert log.reasons() == "(no reason given)"
    say(log, "INTERNAL_ERROR", "of an earlier call")
    log.start()
    assert log.reasons() == "(no reason given)"


def test_errors_of_this_thread_come_first(log: Any) -> None:
    in_thread(log, "ERROR", "of a background thread")
    say(log, "ERROR", "of this thread")
    assert log.reasons() == "of this thread"
    log.start()  # concerns this thread alone
    assert log.reasons() == "of a background thread"


def test_nothing_grows_without_end(log: Any) -> None:
    for number in range(20_000):
        say(log, "VERBOSE", f"kernel {number}")
        say(log, "INFO", f"compiled {number}")
        say(log, "ERROR", f"error {number}")
    assert held(log) <= 32
    assert log.reasons() == "error 19997 | error 19998 | error 19999"


def test_the_log_of_a_build(log: Any) -> None:
    with log.recording() as lines:
        say(log, "VERBOSE", "a tactic", "Engine Layer Information: all layers")
        say(log, "INFO", "a phase")
        in_thread(log, "WARNING", "of a thread of the builder")
        say(log, "ERROR", "an error")
    say(log, "INFO", "after the build")
    assert list(lines) == [
        "Engine Layer Information: all layers",
        "a phase",
        "of a thread of the builder",
        "an error",
    ]
    assert log.reasons() == "an error"
    with log.recording() as lines:
        for number in range(5000):
            say(log, "INFO", str(number))
        assert len(lines) < 5000
        assert lines[-1] == "4999"


def test_an_object_that_is_freed_within_the_logger_may_log(log: Any) -> None:
    # The garbage collector may free TensorRT objects while the logger holds its lock.
    with log._lock:
        say(log, "ERROR", "while it is held")
    assert log.reasons() == "while it is held"

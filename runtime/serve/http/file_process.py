"""Processes in which uploaded files are read and rendered (`runtime.files.worker`)."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import worker
from translate_trt.runtime.process import ctrl_c_blocked
from translate_trt.runtime.serve.http.http_error import HttpError

log = logging.getLogger("translate_trt")

_PROGRAM = f"import sys; sys.path[:] = sys.argv[1:]; from {worker.__name__} import main; main()"


class FileProcess:
    """Process of one file. Its calls wait; `kill` in another thread ends them.

    Args:
        task: The file to read, and limits of the process.
    """

    def __init__(self, task: worker.ReadTask) -> None:
        self._task, self._killed = task, False
        with ctrl_c_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def read(self, content: bytes) -> int:
        """Read the file; return the number of characters of its text.

        Raises:
            InputError: The file cannot be read.
            MemoryError: It needs more memory than its limit.
            HttpError: The process has ended.
        """
        try:
            worker.send_task(self._input, self._task, content)
            characters: int = self._success()["characters"]
        except (EOFError, BrokenPipeError):
            raise self._ended() from None
        return characters

    def texts(self) -> dict[str, dict[str, str]]:
        """Return the texts to translate, as those of a `SegmentPlan`."""
        found: dict[str, dict[str, str]] = json.loads(worker.receive(self._output))
        return found

    def render(self, translations: Mapping[str, Sequence[str]]) -> bytes:
        """Return the file with translations of its texts, by kind.

        Raises:
            InputError: A translation does not fit the format.
            MemoryError: The file needs more memory than its limit.
            HttpError: The process has ended.
        """
        try:
            worker.send(self._input, translations)
            self._success()
            return worker.receive(self._output)
        except (EOFError, BrokenPipeError):
            raise self._ended() from None

    def kill(self) -> None:
        """End the process; `close` must follow."""
        self._killed = True
        self._process.kill()

    def close(self) -> None:
        """Wait for the end of the process, and close its streams."""
        self._process.wait()
        self._output.close()
        with suppress(BrokenPipeError):
            self._input.close()

    def _success(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(worker.receive(self._output))
        if "error" in answer:
            raise InputError(answer["error"])
        if "too_large" in answer:
            raise MemoryError
        return answer

    def _ended(self) -> HttpError:
        status = self._process.wait()
        if -status == getattr(signal, "SIGXCPU", None):
            return HttpError(504, f"the file took longer than {self._task.max_seconds} s")
        if not self._killed:
            log.error("the process of a file ended with status %d", status)
        return HttpError(500, "the file cannot be read; the server's log says why")

"""Warm processes, one per system, driven by the process that measures.

A process runs only while it handles a request and is stopped (SIGSTOP) in between, because threads
that spin for more work would take time from the next system's turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import Any

import psutil
from systems import Models, Setting, System, open_system

from translate_trt.runtime.text.tokenizer import Tokenizer

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Served:
    """Requests that a process answers, each with JSON."""

    def __init__(self, system: System, tokenizer: Tokenizer) -> None:
        self._system, self._tokenizer = system, tokenizer
        self._texts: list[str] | None = None
        self._sources: list[list[int]] = []
        self._last: list[list[int]] = []

    def texts(self, texts: list[str]) -> list[int]:
        """Set the lines and return the number of tokens of each."""
        self._texts, self._sources = texts, self._tokenizer.encode_source_batch(texts)
        return [len(source) for source in self._sources]

    def tokens(self) -> list[list[int]]:
        """Return the token ids of the lines."""
        return self._sources

    def sources(self, sources: list[list[int]]) -> None:
        """Set token ids instead of lines."""
        self._texts, self._sources = None, sources

    def translate(self, rows: list[int]) -> dict[str, Any]:
        """Translate those rows; return seconds of each part and numbers of target tokens.

        "processor" is the processor time of the search, on all threads of this process.
        """
        sources = [self._sources[row] for row in rows]
        times = [perf_counter()]
        if self._texts is not None:
            sources = self._tokenizer.encode_source_batch([self._texts[row] for row in rows])
        begin = process_time()
        times.append(perf_counter())
        self._last = self._system.translate(sources)
        times.append(perf_counter())
        processor = process_time() - begin
        if self._texts is not None:
            self._tokenizer.decode_batch(self._last)
        times.append(perf_counter())
        encode, translate, decode = (b - a for a, b in pairwise(times))
        tokens = [len(tokens) for tokens in self._last]
        seconds = {"encode": encode, "translate": translate, "decode": decode}
        return {**seconds, "processor": processor, "tokens": tokens}

    def last(self) -> dict[str, Any]:
        """Return token ids and text of the last translations."""
        return {"ids": self._last, "texts": self._tokenizer.decode_batch(self._last)}


def serve() -> None:
    """Answer each JSON line of standard input with another until the input ends."""
    if sys.platform == "linux":  # a stopped process would outlive a killed parent
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is no answer

    def reply(value: object) -> None:
        print(json.dumps(value), file=replies, flush=True)

    start = json.loads(sys.stdin.readline())
    setting = Setting(**{**start["setting"], "environment": ()})
    models = Models(*map(Path, start["models"]))
    begin = perf_counter()
    system = open_system(setting, models)
    file = models.checkpoint / "tokenizer.spm"
    served = Served(system, Tokenizer(file, file))
    reply(perf_counter() - begin)
    for line in sys.stdin:
        request = json.loads(line)
        reply(getattr(served, request.pop("do"))(**request))


class Process:
    """Process that runs one system.

    Attributes:
        setting: Setting of the system.
        load_seconds: Seconds of opening it, imports included.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        self.setting = setting
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict(setting.environment)},
            start_new_session=True,  # to stop its child processes with it
        )
        paths = [str(path) for path in dataclasses.astuple(models)]
        start = {"setting": dataclasses.asdict(setting), "models": paths}
        self.load_seconds: float = self._exchange(start)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Resume the process until it has answered a request.

        Raises:
            RuntimeError: The process has ended.
        """
        return self._exchange({"do": do, **arguments})

    def translate(self, rows: Sequence[int]) -> dict[str, Any]:
        """Translate those rows, see `Served.translate`."""
        answer: dict[str, Any] = self.ask("translate", rows=list(rows))
        return answer

    def _exchange(self, request: dict[str, Any]) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.setting.label} ended with code {process.wait()}; see above.")
        self._signal(signal.SIGSTOP)
        return json.loads(line)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def memory(self) -> dict[str, int]:
        """Return the peak resident set and the current proportional set size, in bytes.

        Both are sums over the process and its children. Memory that they share, such as mapped
        weights, counts once per process in the peak and once in all in the proportional set size.
        """
        root = psutil.Process(self._process.pid)
        family = [root, *root.children(recursive=True)]
        return {
            "peak": sum(_status(member.pid, "status", "VmHWM") for member in family),
            "share": sum(_status(member.pid, "smaps_rollup", "Pss") for member in family),
            "processes": len(family),
        }

    def close(self) -> None:
        """Kill the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _status(pid: int, file: str, name: str) -> int:
    """Return bytes of an entry of /proc/PID/FILE, whose unit is kB."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid}/{file} has no {name}.")


@contextlib.contextmanager
def processes(settings: Sequence[Setting], models: Models) -> Iterator[dict[str, Process]]:
    """Start a warm process for each setting; yield them by label."""
    with contextlib.ExitStack() as stack:
        yield {setting.label: stack.enter_context(Process(setting, models)) for setting in settings}


if __name__ == "__main__":
    serve()

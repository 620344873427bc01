"""Each system in a warm process of its own, driven by the one that measures.

A process runs only while it is asked something; in between it is stopped (SIGSTOP), so that threads
that spin for more work take nothing from the next one's turn.
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
from time import perf_counter
from types import TracebackType
from typing import Any

import psutil
from systems import Models, Setting, System, open_system

from translate_trt.runtime.text.tokenizer import Tokenizer

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Served:
    """What a process can be asked; each answer is JSON."""

    def __init__(self, system: System, tokenizer: Tokenizer) -> None:
        self._system, self._tokenizer = system, tokenizer
        self._texts: list[str] | None = None
        self._sources: list[list[int]] = []
        self._last: list[list[int]] = []

    def texts(self, texts: list[str]) -> list[int]:
        """Take these lines; how many tokens each has."""
        self._texts, self._sources = texts, self._tokenizer.encode_source_batch(texts)
        return [len(source) for source in self._sources]

    def tokens(self) -> list[list[int]]:
        """Token ids of the lines."""
        return self._sources

    def sources(self, sources: list[list[int]]) -> None:
        """Take these token ids instead of lines."""
        self._texts, self._sources = None, sources

    def translate(self, rows: list[int]) -> dict[str, Any]:
        """Translate those; seconds of each part, and how many target tokens each has."""
        sources = [self._sources[row] for row in rows]
        times = [perf_counter()]
        if self._texts is not None:
            sources = self._tokenizer.encode_source_batch([self._texts[row] for row in rows])
        times.append(perf_counter())
        self._last = self._system.translate(sources)
        times.append(perf_counter())
        if self._texts is not None:
            self._tokenizer.decode_batch(self._last)
        times.append(perf_counter())
        encode, translate, decode = (b - a for a, b in pairwise(times))
        tokens = [len(tokens) for tokens in self._last]
        return {"encode": encode, "translate": translate, "decode": decode, "tokens": tokens}

    def last(self) -> dict[str, Any]:
        """Token ids and text of the last translations."""
        return {"ids": self._last, "texts": self._tokenizer.decode_batch(self._last)}


def serve() -> None:
    """Answer one JSON line with another until there are no more."""
    if sys.platform == "linux":  # a stopped process would outlive a parent that was killed
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print do not answer for us

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
    """A system in a process of its own.

    Attributes:
        setting: of the system.
        load_seconds: what opening it took, imports included.
    """

    def __init__(self, setting: Setting, models: Models) -> None:
        self.setting = setting
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict(setting.environment)},
            start_new_session=True,  # to stop it with the processes that it starts
        )
        paths = [str(path) for path in dataclasses.astuple(models)]
        start = {"setting": dataclasses.asdict(setting), "models": paths}
        self.load_seconds: float = self._exchange(start)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Let it run until it has answered.

        Raises:
            RuntimeError: it has ended.
        """
        return self._exchange({"do": do, **arguments})

    def translate(self, rows: Sequence[int]) -> dict[str, Any]:
        """`Served.translate`."""
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
        """Bytes: the peak of its resident set, and its share of memory now.

        Of all processes that it consists of: the sum of their peaks counts what they share (the
        weights, if they are mapped) once for each, the share (PSS) once in all.
        """
        root = psutil.Process(self._process.pid)
        family = [root, *root.children(recursive=True)]
        return {
            "peak": sum(_status(member.pid, "status", "VmHWM") for member in family),
            "share": sum(_status(member.pid, "smaps_rollup", "Pss") for member in family),
            "processes": len(family),
        }

    def close(self) -> None:
        """End it."""
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
    """Bytes of an entry of /proc/PID/FILE; its unit there is kB."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid}/{file} has no {name}.")


@contextlib.contextmanager
def processes(settings: Sequence[Setting], models: Models) -> Iterator[dict[str, Process]]:
    """A warm process for each setting, by its label."""
    with contextlib.ExitStack() as stack:
        yield {setting.label: stack.enter_context(Process(setting, models)) for setting in settings}


if __name__ == "__main__":
    serve()

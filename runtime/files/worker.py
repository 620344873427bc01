"""Process that reads one file and renders its translation: a parser cannot stall its caller.

Messages pass through its standard streams: it gets a task and a file, answers with the texts, gets
their translations, and answers with the translated file. A refusal, or an object without one,
precedes each answer. The process ends when its input does.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any, NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.formats import format_of
from translate_trt.runtime.files.segments import ReadOptions
from translate_trt.runtime.files.translation import SegmentPlan, named_segment

_SIZE = struct.Struct("!Q")


class ReadTask(NamedTuple):
    """A file to read.

    Attributes:
        name: Name in messages.
        suffix: Suffix of its format.
        options: Options of the format.
        max_memory: Bytes of memory that the process may have.
        max_seconds: Processor time that it may take.
    """

    name: str
    suffix: str
    options: ReadOptions
    max_memory: int
    max_seconds: int


def send(stream: IO[bytes], *messages: Any) -> None:
    """Write messages: bytes, or values as JSON."""
    encoded = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    for body in encoded:
        stream.write(_SIZE.pack(len(body)))
        stream.write(body)
    stream.flush()


def send_task(stream: IO[bytes], task: ReadTask, content: bytes) -> None:
    """Write the task of the process, and its file."""
    send(stream, task._asdict() | {"options": asdict(task.options)}, content)


def receive(stream: IO[bytes]) -> bytes:
    """Read a message.

    Raises:
        EOFError: The other side has ended.
    """
    (size,) = _SIZE.unpack(_read(stream, _SIZE.size))
    return _read(stream, size)


def main() -> None:
    """Read a file from standard input, and render it."""
    # A service manager may send it to all processes; the caller may have to finish, and ends this.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    output = sys.stdout.buffer
    sys.stdout = sys.stderr
    refusal: dict[str, Any] = {}
    with suppress(EOFError, BrokenPipeError):  # the caller has ended
        try:
            _run(sys.stdin.buffer, output)
        except InputError as error:
            refusal = {"error": str(error)}
        except MemoryError:  # until the end of this block, its frames keep what they have
            refusal = {"too_large": True}
        if refusal:
            send(output, refusal)


def _run(source: IO[bytes], output: IO[bytes]) -> None:
    fields = json.loads(receive(source))
    task = ReadTask(**fields | {"options": ReadOptions(**fields["options"])})
    _limit(task)
    text = format_of(task.name, task.suffix).read(receive(source), task.options)
    names = [named_segment(task.name, segment) for segment in text.segments]
    plan = SegmentPlan(text.segments, names)
    characters = sum(len(segment.text) for segment in text.segments)
    send(output, {"characters": characters}, plan.texts)
    translated = plan.finish(json.loads(receive(source)))
    send(output, {}, text.render([one.text for one in translated]))


def _limit(task: ReadTask) -> None:
    """Limit memory and processor time, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(OSError, ValueError):  # a lower limit of the user stays
        resource.setrlimit(resource.RLIMIT_CPU, (task.max_seconds, task.max_seconds))
        resource.setrlimit(resource.RLIMIT_AS, (task.max_memory, task.max_memory))


def _read(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found

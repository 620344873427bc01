"""Reading lines of text, whatever is in them.

Only a newline byte ends a line. Python's text files and str.splitlines know more line ends (VT,
FF, U+0085, U+2028 among them); with those, output lines would no longer match input lines.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import logging
import os
import queue
import re
import stat
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Generic, TypeVar, cast

from translate_trt.runtime.errors import InputError

log = logging.getLogger("translate_trt")

STDIN = "-"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"

# What other kinds of files begin with. UTF-32 goes before UTF-16, whose mark its own begins with.
_UTF_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_ARCHIVES = {
    re.compile(rb"BZh\d1AY&SY"): "bzip2",
    re.compile(rb"\xfd7zXZ\0"): "xz",
    re.compile(rb"\x28\xb5\x2f\xfd"): "zstd",
    re.compile(rb"PK\x03\x04"): "zip",
}
# Lines at the beginning of a text that are looked at for NUL bytes, and bytes of each.
_HEAD_LINES, _HEAD_BYTES = 100, 4096

T = TypeVar("T")


def display_name(path: str) -> str:
    """What messages call that input."""
    return "standard input" if path == STDIN else path


def check_input(path: str) -> None:
    """Find out early, without opening it, that an input cannot be read.

    (Opening and closing a named pipe would end its writer.)

    Raises:
        InputError: it is missing, a directory, or not readable.
    """
    if path == STDIN:
        return
    if not os.path.exists(path):
        raise InputError(f"there is no file {path}; check the path.")
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory; name the files in it.")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} may not be read; check its permissions.")


def open_input(path: str) -> BinaryIO:
    """That file, or for "-" standard input, open for reading bytes.

    Raises:
        InputError: it cannot be opened.
    """
    check_input(path)
    try:
        return _open_stdin() if path == STDIN else open(path, "rb")
    except OSError as error:
        raise InputError(f"cannot read {display_name(path)}: {error.strerror}.") from error


def _open_stdin() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed; name an input file.")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # replaced by something in memory
        return sys.stdin.buffer
    # An object of its own: a thread that waits in sys.stdin.buffer holds that object's lock, and
    # the interpreter, which takes the lock when it ends, would abort on Ctrl-C.
    return open(descriptor, "rb", closefd=False)


def is_regular(stream: BinaryIO) -> bool:
    """True for ordinary files and memory, False for pipes, terminals and other devices."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except io.UnsupportedOperation:
        return True


def is_stream(path: str) -> bool:
    """True for an input whose lines are waited for: a pipe, a terminal or another device.

    Standard input that a shell redirects from a file is a file.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path == STDIN else os.stat(path).st_mode
    except io.UnsupportedOperation:  # standard input was replaced by something in memory
        return True
    except (OSError, AttributeError):  # missing or closed; `check_input` and reading report it
        return False
    return not stat.S_ISREG(mode)


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    r"""The lines of a stream, each as soon as it is there, without their ends.

    A line ends with a newline, before which one carriage return is dropped; the last one needs no
    newline. A byte order mark at the very start is dropped. Bytes that are not UTF-8 become
    U+FFFD, with a warning at the first such line and their count at the end. What is compressed
    with gzip is decompressed, whatever its name.

    Args:
        stream: binary; never read further ahead than its own buffer.
        name: of the file, for messages.

    Raises:
        InputError: reading failed, a compressed stream is damaged, or it is not text in UTF-8 but
            in UTF-16, or mostly NUL bytes.
    """
    invalid = 0
    for number, raw in enumerate(_raw_lines(stream, name), start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            invalid += 1
            if invalid == 1:
                log.warning("%s, line %d: not valid UTF-8; bad bytes become U+FFFD", name, number)
            yield raw.decode("utf-8", errors="replace")
    if invalid > 1:
        log.warning("%s: %d lines were not valid UTF-8", name, invalid)


def _raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    with reading_gzip(name):
        try:
            lines = iter(text_lines(stream, name))
            # A file of a mark and nothing else has no line.
            first = next(lines, b"").removeprefix(_BYTE_ORDER_MARK)
            for raw in itertools.chain((first,) if first else (), lines):
                yield raw[:-1].removesuffix(b"\r") if raw.endswith(b"\n") else raw
        except gzip.BadGzipFile:
            raise
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror}.") from error


def text_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a stream with their ends, decompressed if they are compressed with gzip.

    Lines are read one at a time: those of a pipe that has more to come are not held back.

    Args:
        stream: binary, at its beginning.
        name: of it, for messages.

    Raises:
        InputError: it is no text in UTF-8.
    """
    # No more than is needed to know: the rest may come later.
    head = stream.read(1)
    if head == _GZIP[:1]:
        head += stream.read(1)
    if is_gzip(head):
        # GzipFile reads like a stream of bytes.
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=cast(BinaryIO, _Rejoined(head, stream))))
        first = stream.readline()
    elif name.endswith(".gz") and head:
        raise InputError(
            f"{name} is named like a gzip file and is none; it is damaged. Get it again, or rename "
            "it if it is plain text."
        )
    else:
        first = head if head.endswith(b"\n") or not head else head + stream.readline()
    if not first:  # a terminal would be asked for more
        return
    for number, line in enumerate(itertools.chain((first,), stream), start=1):
        check_text(line[:_HEAD_BYTES], name, number)
        yield line
        if number == _HEAD_LINES:
            break
    else:
        return
    yield from stream


def is_gzip(head: bytes) -> bool:
    """Whether a file that begins with these bytes is compressed with gzip."""
    return head.startswith(_GZIP)


@contextlib.contextmanager
def reading_gzip(name: str) -> Iterator[None]:
    """Turn what a damaged gzip stream raises in the block into an InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise InputError(f"{name} is damaged or incomplete ({reason}); get it again.") from error


class _Rejoined:
    """A stream whose first bytes were read already, for GzipFile."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head = head
        # At most what is there: else the first lines of a pipe would wait for many others.
        self._read = getattr(stream, "read1", stream.read)

    def read(self, size: int) -> bytes:
        """At most that many bytes; none at the end."""
        if not self._head:
            return bytes(self._read(size))
        found, self._head = self._head[:size], self._head[size:]
        return found


def check_text(head: bytes, name: str, line: int = 1) -> None:
    """Refuse what is surely not text in UTF-8, before it is translated or learned from.

    Args:
        head: the beginning of a line.
        name: of the file, for messages.
        line: its number, from 1.

    Raises:
        InputError: it begins like UTF-16 or UTF-32 or an archive, or is mostly NUL bytes.
    """
    if line == 1:
        for mark, encoding in _UTF_MARKS.items():
            if head.startswith(mark):
                raise InputError(_is_not_utf8(name, encoding, "it begins with a byte order mark"))
        for pattern, program in _ARCHIVES.items():
            if pattern.match(head):
                raise InputError(f"{name} is compressed with {program}; unpack it, or use gzip.")
    text = head.rstrip(b"\r\n")
    # Text that is mostly ASCII has a NUL in every other byte of UTF-16.
    if len(text) >= 4 and text.count(0) * 5 >= len(text) * 2:
        encoding = "UTF-16BE" if line == 1 and text.startswith(b"\0") else "UTF-16LE"
        raise InputError(_is_not_utf8(name, encoding, f"line {line} is mostly NUL bytes"))


def _is_not_utf8(name: str, encoding: str, reason: str) -> str:
    return (
        f"{name} is not text in UTF-8; {reason}, as {encoding} has. Convert it: "
        f"iconv -f {encoding} -t UTF-8 OLD > NEW"
    )


def count_lines(path: str) -> int | None:
    """How many lines `read_lines` will give, or None if only reading the input once can tell."""
    if not os.path.isfile(path):
        return None
    count, last = 0, b"\n"
    with open_input(path) as stream:
        if is_gzip(stream.read(len(_GZIP))):
            return None
        stream.seek(0)
        if stream.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
            stream.seek(0)
        for block in iter(lambda: stream.read(1 << 20), b""):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def chunks(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` lines, the last one shorter."""
    iterator = iter(lines)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def available_chunks(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of the lines that have come by the time one is asked for: at least 1, at most `size`.

    A thread reads ahead, by no more than two chunks, while the caller is busy; so the first
    lines of a pipe or a terminal are translated before the last are written. How lines fall into
    chunks does not change their translations.

    Raises:
        Exception: whatever reading the lines raised, in its place.
    """
    reader = _ReadAhead(lines, 2 * size)
    try:
        while chunk := reader.take(size):
            yield chunk
    finally:
        reader.stop()


class _ReadAhead(Generic[T]):
    """A thread that reads into a queue."""

    def __init__(self, lines: Iterable[T], room: int) -> None:
        self._lines = lines
        self._waiting: queue.Queue[_Line[T] | _End] = queue.Queue(maxsize=room)
        self._end: _End | None = None
        self._stopped = threading.Event()
        # A daemon: nothing can interrupt a read that waits for a terminal.
        threading.Thread(target=self._run, name="read-lines", daemon=True).start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for line in self._lines:
                self._waiting.put(_Line(line))
                if self._stopped.is_set():
                    return
        except BaseException as raised:  # raised again by take(), in the thread that can handle it
            error = raised
        self._waiting.put(_End(error))

    def take(self, size: int) -> list[T]:
        """Wait for one line, then take what else is there; an empty list is the end."""
        taken: list[T] = []
        while self._end is None and len(taken) < size:
            try:
                item = self._waiting.get(block=not taken)
            except queue.Empty:
                return taken
            if isinstance(item, _End):
                self._end = item
            else:
                taken.append(item.content)
        if not taken and self._end is not None and self._end.error is not None:
            raise self._end.error
        return taken

    def stop(self) -> None:
        """Let the thread end, even one that waits for room in the queue."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()


@dataclass(frozen=True)
class _Line(Generic[T]):
    content: T


@dataclass(frozen=True)
class _End:
    """What comes after the last line: nothing, or the exception that ended the reading."""

    error: BaseException | None


def read_chunks(path: str, size: int) -> Iterator[list[str]]:
    """The lines of an input in chunks: fixed ones of a file, available ones of a pipe or terminal.

    Args:
        path: "-" is standard input.
        size: most lines in a chunk.

    Raises:
        InputError: the input cannot be read.
    """
    stream = open_input(path)
    split = chunks if is_regular(stream) else available_chunks
    yield from split(_read_and_close(stream, display_name(path)), size)


def _read_and_close(stream: BinaryIO, name: str) -> Iterator[str]:
    # Closed by whoever reads: closing waits for a read under way, which on a terminal may never
    # end, so that the main thread would hang on Ctrl-C.
    with stream:
        yield from read_lines(stream, name)


def read_parallel(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of lines of two files, by the rules of `read_lines`.

    Raises:
        InputError: one cannot be read, or, once the shorter one has ended, their numbers of
            lines differ.
    """
    with open_input(str(source_path)) as source, open_input(str(target_path)) as target:
        sources = read_lines(source, str(source_path))
        targets = read_lines(target, str(target_path))
        for pairs, (source_line, target_line) in enumerate(itertools.zip_longest(sources, targets)):
            if source_line is None or target_line is None:
                source_count = pairs + (source_line is not None) + sum(1 for _ in sources)
                target_count = pairs + (target_line is not None) + sum(1 for _ in targets)
                raise InputError(
                    f"{source_path} has {source_count} lines and {target_path} has "
                    f"{target_count}; line for line, they must be translations of each other."
                )
            yield source_line, target_line

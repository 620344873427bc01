"""Reading of text lines.

Only a newline byte ends a line. Python's text files and str.splitlines recognize more line ends,
such as VT, FF, U+0085 and U+2028, with which output lines would not match input lines.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import queue
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Generic, TypeVar

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import compression_of, decompressed, reading_compressed

log = logging.getLogger("translate_trt")

STDIN = "-"

#: UTF-8 of U+FEFF, which may stand at the beginning of a file.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Magic bytes of unsupported files. UTF-32 precedes UTF-16, whose mark is a prefix of its own.
_UTF_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_ARCHIVES = {
    re.compile(rb"BZh\d1AY&SY"): "bzip2",
    re.compile(rb"\xfd7zXZ\0"): "xz",
    re.compile(rb"PK\x03\x04"): "zip",
}
# More than the magic bytes of any compression.
_MAGIC_BYTES = 16
# Number of lines at the start of a text that are checked for NUL bytes, and bytes of each.
_HEAD_LINES, _HEAD_BYTES = 100, 4096

#: Lines of the first chunk of an input, enough for a few batches.
FIRST_LINES = 64

T = TypeVar("T")


def display_name(path: str) -> str:
    """Return the name of an input in messages."""
    return "standard input" if path == STDIN else path


def check_input(path: str) -> None:
    """Check that an input is readable without opening it.

    Opening and closing a named pipe would terminate its writer.

    Raises:
        InputError: The input is missing, a directory, or not readable.
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
    """Open a file, or standard input for "-", in binary mode.

    Raises:
        InputError: The input cannot be opened.
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
    except io.UnsupportedOperation:  # sys.stdin is a stream in memory
        return sys.stdin.buffer
    # A separate file object: a thread blocked in sys.stdin.buffer would hold its lock, which the
    # interpreter takes at exit, and Ctrl-C would abort.
    return open(descriptor, "rb", closefd=False)


def is_regular(stream: BinaryIO) -> bool:
    """Return False for pipes, terminals and devices; True for files and streams in memory."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except io.UnsupportedOperation:
        return True


def is_stream(path: str) -> bool:
    """Return True for a pipe, a terminal or another device, where reading may block.

    Standard input redirected from a file counts as a file.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if path == STDIN else os.stat(path).st_mode
    except io.UnsupportedOperation:  # sys.stdin is a stream in memory
        return True
    except (OSError, AttributeError):  # missing or closed, which opening the input reports
        return False
    return not stat.S_ISREG(mode)


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    r"""Iterate over the lines of a stream without their line ends, each as soon as it arrives.

    A line ends with a newline, optionally after one carriage return; the last line needs none. A
    byte order mark at the start is dropped. Bytes that are not UTF-8 become U+FFFD, with a warning
    at the first such line and a count at the end. Compressed streams (gzip, zstd) are
    decompressed, whatever their name.

    Args:
        stream: Binary stream; only its own buffer reads ahead.
        name: Name of the input, for messages.

    Raises:
        InputError: Reading failed, a compressed stream is damaged, or the stream is in UTF-16 or
            UTF-32 or mostly NUL bytes.
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


def read_text(path: str) -> str:
    """Read a whole input with all its line ends; see `read_lines` for what it accepts.

    Args:
        path: Path of a file, or "-" for standard input.

    Raises:
        InputError: See `read_lines`.
    """
    name = display_name(path)
    with open_input(path) as stream, reading(name):
        content = b"".join(text_lines(stream, name)).removeprefix(BYTE_ORDER_MARK)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        log.warning("%s: not valid UTF-8; bad bytes become U+FFFD", name)
        return content.decode("utf-8", errors="replace")


def _raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    with reading(name):
        lines = text_lines(stream, name)
        # A file that contains only a byte order mark has no lines.
        first = next(lines, b"").removeprefix(BYTE_ORDER_MARK)
        for raw in itertools.chain((first,) if first else (), lines):
            yield without_line_end(raw)


def without_line_end(raw: bytes) -> bytes:
    """Return a line without its newline and one carriage return before it, if it has them."""
    return raw[:-1].removesuffix(b"\r") if raw.endswith(b"\n") else raw


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert errors of reading, and of a damaged compressed stream, to InputError."""
    try:
        with reading_compressed(name):
            yield
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}.") from error


def text_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Iterate over the lines of a stream with their line ends, decompressing it.

    Lines are read one at a time; lines of a pipe are returned as soon as they arrive.

    Args:
        stream: Binary stream, at its beginning.
        name: Name of the input, for messages.

    Raises:
        InputError: The stream is not text in UTF-8.
    """
    head, stream = decompressed(stream, name)
    first = head if head.endswith(b"\n") else head + stream.readline()
    if not first:  # reading on would prompt a terminal again
        return
    for number, line in enumerate(itertools.chain((first,), stream), start=1):
        check_text(line[:_HEAD_BYTES], name, number)
        yield line
        if number == _HEAD_LINES:
            break
    else:
        return
    yield from stream


def check_text(head: bytes, name: str, line: int = 1) -> None:
    """Refuse a file that is certainly not text in UTF-8.

    Args:
        head: Beginning of a line.
        name: Name of the input, for messages.
        line: Number of the line, from 1.

    Raises:
        InputError: The line begins like UTF-16, UTF-32 or an archive, or is mostly NUL bytes.
    """
    if line == 1:
        for mark, encoding in _UTF_MARKS.items():
            if head.startswith(mark):
                raise InputError(_is_not_utf8(name, encoding, "it begins with a byte order mark"))
        for pattern, program in _ARCHIVES.items():
            if pattern.match(head):
                raise InputError(
                    f"{name} is compressed with {program}; unpack it, or use gzip or zstd."
                )
    text = head.rstrip(b"\r\n")
    # In UTF-16, every second byte of mostly ASCII text is NUL.
    if len(text) >= 4 and text.count(0) * 5 >= len(text) * 2:
        encoding = "UTF-16BE" if line == 1 and text.startswith(b"\0") else "UTF-16LE"
        raise InputError(_is_not_utf8(name, encoding, f"line {line} is mostly NUL bytes"))


def _is_not_utf8(name: str, encoding: str, reason: str) -> str:
    return (
        f"{name} is not text in UTF-8; {reason}, like {encoding}. Convert it: "
        f"iconv -f {encoding} -t UTF-8 OLD > NEW"
    )


def count_lines(path: str) -> int | None:
    """Count the lines of an input as `read_lines` does; None if it can only be read once."""
    if not os.path.isfile(path):
        return None
    count, last = 0, b"\n"
    with open_input(path) as stream:
        if compression_of(stream.read(_MAGIC_BYTES)) is not None:
            return None
        stream.seek(0)
        if stream.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            stream.seek(0)
        for block in iter(lambda: stream.read(1 << 20), b""):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def chunks(lines: Iterable[T], size: int, first: int | None = None) -> Iterator[list[T]]:
    """Split lines into lists of `size`; the last may be shorter.

    With `first`, the first list has `first` lines, and each further list twice as many as the one
    before, up to `size`.
    """
    iterator = iter(lines)
    length = size if first is None else min(first, size)
    while chunk := list(itertools.islice(iterator, length)):
        yield chunk
        length = min(2 * length, size)


def available_chunks(lines: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split lines into lists of those already available: at least 1, at most those of `chunks`.

    A thread prefetches up to two chunks while the caller is busy. The first lines of a pipe or a
    terminal are therefore translated before the last are written. Chunk boundaries do not affect
    translations.

    Raises:
        Exception: Any exception of the line iterator.
    """
    reader = _ReadAhead(lines, 2 * size)
    length = min(FIRST_LINES, size)
    try:
        while chunk := reader.take(length):
            yield chunk
            length = min(2 * length, size)
    finally:
        reader.stop()


class _ReadAhead(Generic[T]):
    """Thread that reads lines into a bounded queue."""

    def __init__(self, lines: Iterable[T], capacity: int) -> None:
        self._lines = lines
        self._waiting: queue.Queue[T | _End] = queue.Queue(maxsize=capacity)
        self._end: _End | None = None
        self._stopped = threading.Event()
        # A daemon thread, because a blocking read from a terminal cannot be interrupted.
        threading.Thread(target=self._run, name="read-lines", daemon=True).start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for line in self._lines:
                self._waiting.put(line)
                if self._stopped.is_set():
                    return
        except BaseException as raised:  # `take` raises it again in the caller's thread
            error = raised
        self._waiting.put(_End(error))

    def take(self, size: int) -> list[T]:
        """Wait for one line and return it with others that are available; empty at the end."""
        taken: list[T] = []
        while self._end is None and len(taken) < size:
            try:
                item = self._waiting.get(block=not taken)
            except queue.Empty:
                return taken
            if isinstance(item, _End):
                self._end = item
            else:
                taken.append(item)
        if not taken and self._end is not None and self._end.error is not None:
            raise self._end.error
        return taken

    def stop(self) -> None:
        """Stop the thread, even while it is blocked on a full queue."""
        self._stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()


@dataclass(frozen=True)
class _End:
    """End of the input, with the exception that ended it, if any."""

    error: BaseException | None


def read_chunks(
    path: str, size: int, parse: Callable[[Iterator[str], str], Iterator[T]]
) -> Iterator[list[T]]:
    """Read an input in chunks of records: fixed chunks of files, available lines of pipes.

    The first chunks are smaller, so that the first results come soon.

    Args:
        path: Path of a file, or "-" for standard input.
        size: Maximum number of records per chunk.
        parse: Turns lines, and the name of their input, into as many records.

    Raises:
        InputError: The input cannot be read.
    """
    stream, name = open_input(path), display_name(path)
    records = parse(_read_and_close(stream, name), name)
    if is_regular(stream):
        yield from chunks(records, size, FIRST_LINES)
    else:
        yield from available_chunks(records, size)


def _read_and_close(stream: BinaryIO, name: str) -> Iterator[str]:
    # Closed by the reading thread: `close` waits for a read in progress, which may never end on a
    # terminal, and the main thread would hang on Ctrl-C.
    with stream:
        yield from read_lines(stream, name)


def read_parallel(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    """Iterate over pairs of lines of two files; see `read_lines`.

    Raises:
        InputError: A file cannot be read, or the files have different numbers of lines, which is
            raised at the end of the shorter file.
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
                    f"{target_count}; each line must be the translation of its counterpart."
                )
            yield source_line, target_line

"""Line output of commands to standard output or to an atomically created file."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.io.atomic_files import claimed_file, output_error
from translate_trt.runtime.io.compression import (
    Compressor,
    compressor_for,
    decompressed,
    reading_compressed,
)
from translate_trt.runtime.io.locks import abandoned, try_lock
from translate_trt.runtime.io.outputs import check_standard_output, is_text

log = logging.getLogger("translate_trt")

_BLOCK_BYTES = 1 << 16


class LineOutput:
    """Writer of lines in UTF-8, independent of the locale."""

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        compressor: Compressor | None = None,
        renamed: bool = False,
    ) -> None:
        self._stream = stream
        self._name = name
        self._compressor = compressor
        self._renamed = renamed  # the file gets another name at the end

    def write(self, lines: Sequence[str], end: str = "\n") -> None:
        """Write the lines, each with a newline or another end, and flush them.

        A compressor is not flushed: its blocks would depend on the timing of a pipe.

        Raises:
            OutputError: Writing failed, for example because the disk is full.
            BrokenPipeError: The reader of the pipe has exited.
        """
        content = "".join(f"{line}{end}" for line in lines).encode("utf-8", "surrogateescape")
        self._write(content if self._compressor is None else self._compressor.compress(content))

    def finish(self) -> None:
        """Write the end of a compressed stream; a second call does nothing.

        Raises:
            OutputError: Writing failed.
            BrokenPipeError: The reader of the pipe has exited.
        """
        compressor, self._compressor = self._compressor, None
        if compressor is not None:
            self._write(compressor.flush())

    def _write(self, content: bytes) -> None:
        try:
            self._stream.write(content)
            self._stream.flush()
            if self._renamed:
                self._check_is_there()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise output_error(self._name, error) from error

    def _check_is_there(self) -> None:
        """Raise as soon as the file has been removed, not hours later at the final rename."""
        if os.fstat(self._stream.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written")


@contextmanager
def open_output(
    path: Path | None, force: bool, inputs: Iterable[Path | str | None] = ()
) -> Iterator[LineOutput]:
    """Open standard output, or a file that appears under its name when the block has ended.

    During the block the lines go to `<path>.<random>.partial`, and no other process can write the
    same file. After an error or Ctrl-C, the partial file keeps the finished lines.

    Args:
        path: Path of the file, which is compressed if its suffix says so; None selects standard
            output.
        force: Replace an existing text file and the partial files of interrupted runs.
        inputs: Files that the lines are computed from.

    Raises:
        OutputError: The path exists and may not be replaced, overlaps an input, is being written by
            another process, or is not writable, or the library of its compression is missing.
    """
    compressor = None if path is None else compressor_for(str(path))
    if path is None:
        check_standard_output(inputs)
        with _standard_output() as output:
            yield output
    elif path.exists() and not path.is_file() and not path.is_dir():
        # Devices and pipes, such as /dev/null and >(command), are written directly.
        stream = _open_binary(path, "wb")
        try:
            output = LineOutput(stream, str(path), compressor)
            yield output
            output.finish()
        finally:
            _close_quietly(stream)
    else:
        path = path.resolve()
        with (
            claimed_file(path, force, is_text, "a text", inputs),
            _file_in_steps(path, force, compressor) as output,
        ):
            yield output


@contextmanager
def _standard_output() -> Iterator[LineOutput]:
    if sys.stdout is None:
        raise OutputError("standard output is closed; name a file with --output.")
    stream = _buffered_stdout()
    try:
        yield LineOutput(stream, "standard output")
    finally:
        if stream is not sys.stdout.buffer:
            _close_quietly(stream)


def _buffered_stdout() -> BinaryIO:
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # sys.stdout is a stream in memory
        return sys.stdout.buffer
    # A separate buffer, because sys.stdout.buffer has none under PYTHONUNBUFFERED=1 (usual in
    # containers), where a write that a full disk truncates goes unnoticed.
    return open(descriptor, "wb", closefd=False)


@contextmanager
def _file_in_steps(path: Path, force: bool, compressor: Compressor | None) -> Iterator[LineOutput]:
    for left in _left_partial(path):
        if not force:
            raise OutputError(
                f"{left} exists; an interrupted run left it. Move it away or add --force."
            )
        with abandoned(left) as ours:
            if ours:
                left.unlink(missing_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    stream = _open_binary(partial, "xb")
    output = LineOutput(stream, str(path), compressor, renamed=True)
    try:
        try_lock(stream.fileno())  # marks the file as in use for `abandoned`
        yield output
        output.finish()
        _finish(stream, partial, path)
    except BaseException:
        with contextlib.suppress(OutputError):
            output.finish()
        _close_quietly(stream)
        _keep_or_remove(partial)
        raise


def _left_partial(path: Path) -> list[Path]:
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.partial")
    return sorted(one for one in path.parent.iterdir() if pattern.fullmatch(one.name))


def _finish(stream: BinaryIO, partial: Path, path: Path) -> None:
    try:
        os.fsync(stream.fileno())
        stream.close()
        os.replace(partial, path)
    except OSError as error:
        raise output_error(path, error) from error


def _close_quietly(stream: BinaryIO) -> None:
    # On a full disk closing fails too, because it flushes the buffer.
    with contextlib.suppress(OSError):
        stream.close()


def _keep_or_remove(partial: Path) -> None:
    """Keep the complete lines of an unfinished file and report them, or remove an empty file."""
    try:
        lines, end = _whole_lines(partial)
        if lines:
            if end is not None:
                os.truncate(partial, end)  # drops a line that a full disk has cut
            log.warning("stopped early; the first %d lines are in %s", lines, partial)
        else:
            partial.unlink(missing_ok=True)
    except OSError as error:  # the directory or the disk is gone
        log.warning("the lines in %s are lost: %s", partial, error.strerror)


def _whole_lines(path: Path) -> tuple[int, int | None]:
    """Return the number of complete lines of a file, and where the last one ends.

    Counting in the file is exact even if Ctrl-C came right after a write. The end is None for a
    compressed file, which cannot be truncated there.
    """
    lines = size = end = 0
    with path.open("rb") as file:
        head, stream = decompressed(file, "")
        compressed = stream is not file
        # read1, because read would lose what precedes damage.
        read: Callable[[int], bytes] = stream.read1  # type: ignore[attr-defined]
        with contextlib.suppress(InputError), reading_compressed(""):
            for block in itertools.chain((head,), iter(lambda: read(_BLOCK_BYTES), b"")):
                if newlines := block.count(b"\n"):
                    lines += newlines
                    end = size + block.rindex(b"\n") + 1
                size += len(block)
    return lines, None if compressed else end


def _open_binary(path: Path, mode: Literal["wb", "xb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise output_error(path, error) from error


def abandon_stdout() -> None:
    """Redirect sys.stdout to /dev/null.

    Otherwise the interpreter would fail to flush its buffer at exit and print an error.
    """
    with contextlib.suppress(io.UnsupportedOperation):  # sys.stdout is a stream in memory
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

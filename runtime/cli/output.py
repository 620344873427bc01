"""Results of commands: standard output, or a file that appears when it is complete."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import claimed_file, output_error
from translate_trt.runtime.io.locks import abandoned, take
from translate_trt.runtime.io.outputs import check_standard_output, is_text

log = logging.getLogger("translate_trt")


class LineOutput:
    """Writes lines in UTF-8, whatever the locale says."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, lines: Sequence[str]) -> None:
        """Write the lines, each with a newline, and hand them to the system at once.

        Raises:
            OutputError: the disk is full, for example.
            BrokenPipeError: nobody reads any more.
        """
        try:
            self._stream.write("".join(f"{line}\n" for line in lines).encode("utf-8"))
            self._stream.flush()
            self._check_is_there()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise output_error(self._name, error) from error

    def _check_is_there(self) -> None:
        """Find out now, and not after hours, that the file was removed."""
        with contextlib.suppress(io.UnsupportedOperation):  # in memory
            if os.fstat(self._stream.fileno()).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written")


@contextmanager
def open_output(
    path: Path | None, force: bool, inputs: Iterable[Path | str | None] = ()
) -> Iterator[LineOutput]:
    """Standard output for None, else a file that is complete when the block has ended.

    Until then the lines are in `<path>.<random>.partial`. That file stays if the block ends
    early, by an error or by Ctrl-C, so that the lines which are done are not lost. Meanwhile no
    other process can write the same file.

    Args:
        path: of the file.
        force: replace a text that is there, and what earlier runs that ended early have left.
        inputs: what the lines are made of.

    Raises:
        OutputError: the path exists and may not be replaced, or is not apart from the inputs;
            another process is writing it; it cannot be written.
    """
    if path is None:
        check_standard_output(inputs)
        with _standard_output() as output:
            yield output
    elif path.exists() and not path.is_file() and not path.is_dir():
        # /dev/null, a named pipe, >(a process): nothing there to lose, and nothing to rename onto.
        stream = _open_binary(path, "wb")
        try:
            yield LineOutput(stream, str(path))
        finally:
            _close_quietly(stream)
    else:
        path = path.resolve()
        with (
            claimed_file(path, force, is_text, "a text", inputs),
            _file_in_steps(path, force) as output,
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
    except io.UnsupportedOperation:  # replaced by something in memory
        return sys.stdout.buffer
    # A buffer of its own: sys.stdout.buffer has none under PYTHONUNBUFFERED=1 (usual in
    # containers), and then a write that a full disk cuts short goes unnoticed.
    return open(descriptor, "wb", closefd=False)


@contextmanager
def _file_in_steps(path: Path, force: bool) -> Iterator[LineOutput]:
    for left in _left_partial(path):
        if not force:
            raise OutputError(
                f"{left} exists, left by a run that was interrupted; move it away or add --force."
            )
        with abandoned(left) as ours:
            if ours:
                left.unlink(missing_ok=True)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    stream = _open_binary(partial, "xb")
    try:
        take(stream.fileno())  # for `abandoned`; no other process knows the name yet
        yield LineOutput(stream, str(path))
        _finish(stream, partial, path)
    except BaseException:
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
    # On a full disk closing fails too: it tries to write what is left in the buffer.
    with contextlib.suppress(OSError):
        stream.close()


def _keep_or_remove(partial: Path) -> None:
    """Keep the whole lines of an unfinished file and tell of them; without any, remove it."""
    try:
        lines, end = _whole_lines(partial)
        if lines:
            os.truncate(partial, end)  # a full disk can cut a line
            log.warning("stopped early; the first %d lines are in %s", lines, partial)
        else:
            partial.unlink(missing_ok=True)
    except OSError as error:  # its directory was removed, or a disk is gone
        log.warning("the lines in %s are lost: %s", partial, error.strerror)


def _whole_lines(path: Path) -> tuple[int, int]:
    """How many lines of a file have their newline, and the bytes that they take.

    Counted in the file: Ctrl-C can come between a write and whatever counts it.
    """
    lines = size = end = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if newlines := block.count(b"\n"):
                lines += newlines
                end = size + block.rindex(b"\n") + 1
            size += len(block)
    return lines, end


def _open_binary(path: Path, mode: Literal["wb", "xb"]) -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise output_error(path, error) from error


def abandon_stdout() -> None:
    """Send what is still in the buffer of sys.stdout nowhere.

    Otherwise the interpreter tries to write it when it ends, and complains.
    """
    with contextlib.suppress(io.UnsupportedOperation):  # replaced by something in memory
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

"""Line output of commands to standard output or to an atomically created file."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import click

from translate_trt.runtime.cli.partial_files import PartialFile, Position
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import claimed_file, output_error, output_errors
from translate_trt.runtime.io.compression import Compressor, compressor_for
from translate_trt.runtime.io.locks import try_lock
from translate_trt.runtime.io.outputs import check_standard_output, is_text

log = logging.getLogger("translate_trt")


class LineOutput:
    """Writer of lines in UTF-8, independent of the locale.

    Attributes:
        done: Position of the interrupted run that is continued.
    """

    def __init__(
        self,
        stream: BinaryIO,
        name: str,
        compressor: Compressor | None = None,
        partial: PartialFile | None = None,
    ) -> None:
        self._stream = stream
        self._name = name
        self._compressor = compressor
        self._partial = partial  # the file, if it gets another name at the end
        self.done = Position() if partial is None else partial.position
        self._size = self.done.size
        self._is_whole = True  # no compressed bytes are lost

    def write(self, lines: Iterable[str], end: str = "\n") -> None:
        """Write the lines, each with a newline or another end, and flush them.

        A compressor is not flushed: its blocks would depend on the timing of a pipe.

        Raises:
            OutputError: Writing failed, for example because the disk is full.
            BrokenPipeError: The reader of the pipe has exited.
        """
        content = "".join(f"{line}{end}" for line in lines).encode("utf-8", "surrogateescape")
        self._size += len(content)
        self._is_whole = False  # a signal may come when the compressor has passed on its bytes
        self._write(content if self._compressor is None else self._compressor.compress(content))
        self._is_whole = True

    def note(self, records: int, digest: str) -> None:
        """Record that the lines of so many input records are written, for `--resume`.

        Raises:
            OutputError: Writing failed.
        """
        if self._partial is not None:
            self._partial.note(Position(records, self._size, digest))

    def finish(self) -> None:
        """Write the end of a compressed stream; a second call does nothing.

        After a failed write it does nothing either: readers would take the bytes after the gap for
        text.

        Raises:
            OutputError: Writing failed.
            BrokenPipeError: The reader of the pipe has exited.
        """
        compressor, self._compressor = self._compressor, None
        if compressor is not None and self._is_whole:
            self._write(compressor.flush())

    def _write(self, content: bytes) -> None:
        try:
            self._stream.write(content)
            self._stream.flush()
            # Noticed as soon as the file has been removed, not hours later at the final rename.
            if self._partial is not None and not os.fstat(self._stream.fileno()).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "the file was removed while it was written")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise output_error(self._name, error) from error


@contextmanager
def open_output(
    path: Path | None,
    force: bool,
    inputs: Iterable[Path | str | None] = (),
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Iterator[LineOutput]:
    """Open standard output, or a file that appears under its name when the block has ended.

    During the block the lines go to `<path>.<random>.partial`, and no other process can write the
    same file. After an error or a signal, the partial file keeps the finished lines.

    Args:
        path: Path of the file, which is compressed if its suffix says so; None selects standard
            output.
        force: Replace an existing text file and the partial files of interrupted runs.
        inputs: Files that the lines are computed from.
        settings: All that the lines depend on beside the inputs, as JSON; None for commands without
            --resume. The block notes its position (`LineOutput.note`).
        resume: Continue the partial file of an interrupted run, if there is one.

    Raises:
        OptionError: The interrupted run had other settings.
        OutputError: The path exists and may not be replaced, overlaps an input, is being written by
            another process, or is not writable, the library of its compression is missing, or an
            interrupted run has left lines that are neither continued nor discarded.
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
        try:
            path = path.resolve()
        except (OSError, RuntimeError) as error:  # links that lead to each other
            raise OutputError(f"cannot write {path}: {error}. Choose another path.") from error
        with (
            claimed_file(path, force, is_text, "a text", inputs),
            _file_in_steps(path, force, compressor, settings, resume) as output,
        ):
            yield output


def print_lines(lines: Sequence[str]) -> None:
    """Write lines to standard output.

    Raises:
        OutputError: Standard output is closed or not writable.
        BrokenPipeError: The reader of the pipe has exited.
    """
    with open_output(None, force=False) as output:
        output.write(lines)


def print_json(value: object) -> None:
    """Write a value as indented JSON to standard output; see `print_lines`."""
    print_lines([json.dumps(value, indent=2, ensure_ascii=False)])


def print_sections(sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write titles and the names and values below them to standard output; see `print_lines`."""
    formatter = click.HelpFormatter(width=100)
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl(rows)
    print_lines([formatter.getvalue().strip("\n")])


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
def _file_in_steps(
    path: Path,
    force: bool,
    compressor: Compressor | None,
    settings: Mapping[str, Any] | None,
    resume: bool,
) -> Iterator[LineOutput]:
    left = PartialFile.left(path)
    if resume and len(left) > 1:
        raise OutputError(
            f"several interrupted runs have left lines, and --resume continues one: "
            f"{', '.join(str(partial.path) for partial in left)}. Move all but one away."
        )
    resumed = left.pop() if resume and left else None
    _discard(left, force and resumed is None, settings is not None)
    if resumed is not None and settings is not None:
        resumed.reopen(settings)
        resumed.cut(compressor_for(str(path)))
        log.info("continuing %s after %d lines", resumed.path, resumed.position.records)
    partial = resumed or PartialFile.beside(path)
    stream = _open_binary(partial.path, "ab" if resumed else "xb")
    identity = os.fstat(stream.fileno())
    output = LineOutput(stream, str(path), compressor, partial)
    try:
        try_lock(stream.fileno())  # marks the file as in use for `abandoned`
        if settings is not None and resumed is None:
            partial.begin(settings)
        yield output
        output.finish()
        with output_errors(path):
            os.fsync(stream.fileno())
            stream.close()
            os.replace(partial.path, path)
        partial.forget()
    except BaseException:
        with contextlib.suppress(OutputError):
            output.finish()
        _close_quietly(stream)
        if _is_file(path, identity):  # a signal came after the renaming
            partial.forget()
        else:
            partial.keep_lines(compressor is not None)
        raise


def _discard(left: Sequence[PartialFile], force: bool, resumable: bool) -> None:
    """Remove the partial files of interrupted commands if forced."""
    for partial in left:
        lines = partial.extent().lines
        if not force:
            resume = "continue with --resume, " * resumable
            raise OutputError(
                f"{partial.path} has the first {lines:,} lines of an interrupted run; {resume}move "
                "it away, or discard it with --force."
            )
        log.warning("--force discards the %d lines in %s", lines, partial.path)
        partial.discard()


def _is_file(path: Path, identity: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), identity)
    except OSError:
        return False


def _close_quietly(stream: BinaryIO) -> None:
    # On a full disk closing fails too, because it flushes the buffer.
    with contextlib.suppress(OSError):
        stream.close()


def _open_binary(path: Path, mode: Literal["wb", "xb", "ab"]) -> BinaryIO:
    with output_errors(path):
        return path.open(mode)


def abandon_stdout() -> None:
    """Redirect sys.stdout to /dev/null.

    Otherwise the interpreter would fail to flush its buffer at exit and print an error.
    """
    with contextlib.suppress(io.UnsupportedOperation):  # sys.stdout is a stream in memory
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

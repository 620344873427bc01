"""Partial files: the lines of an interrupted command, and the record that `--resume` needs.

Beside `<output>.<random>.partial` lies `<output>.<random>.record`: a line of JSON with the
settings of the command, and one with its position after each chunk. The last lines of a killed
command may never reach the file: what a compressor holds back, or what the system has not yet
written. `--resume` therefore continues at the last position that the file reaches.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.io.atomic_files import new_file, output_errors
from translate_trt.runtime.io.compression import Compressor, decompressed, reading_compressed
from translate_trt.runtime.io.locks import abandoned

log = logging.getLogger("translate_trt")

_BLOCK_BYTES = 1 << 16
START_OVER = "add --force instead of --resume to start over"


class Position(NamedTuple):
    """Position of an output in its inputs.

    Attributes:
        records: Number of input records whose lines are written.
        size: Size of these lines in bytes, before compression.
        digest: Hash of all that was read for these records.
    """

    records: int = 0
    size: int = 0
    digest: str = ""


class _Extent(NamedTuple):
    """Complete lines of a file, where the last one ends, and the size, in bytes of text."""

    lines: int
    end: int
    size: int


class PartialFile:
    """A partial file and its record.

    Attributes:
        path: Path of the partial file.
        position: Position that the record has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = Position()
        self._record = path.with_suffix(".record")  # not longer, as names have a longest length
        self._stream: IO[bytes] | None = None

    @classmethod
    def beside(cls, output: Path) -> Self:
        """Choose an unused name for a partial file."""
        return cls(output.with_name(f"{output.name}.{secrets.token_hex(4)}.partial"))

    @classmethod
    def left(cls, output: Path) -> list[Self]:
        """Find the partial files of interrupted commands, and remove those that are empty.

        Links, pipes and directories of such names are not ours and are left alone.

        Raises:
            OutputError: The directory or a partial file is not readable.
        """
        pattern = re.compile(rf"({re.escape(output.name)}\.[0-9a-f]{{8}})\.(partial|record)")
        with output_errors(output):
            beside = [path.name for path in output.parent.iterdir()]
        matches = filter(None, map(pattern.fullmatch, beside))
        found = []
        for name in sorted({match[1] for match in matches}):
            partial = cls(output.with_name(f"{name}.partial"))
            with output_errors(partial.path):
                if not os.path.lexists(partial.path):
                    partial.forget()
                elif _is_regular(partial.path):
                    if partial.extent().size:
                        found.append(partial)
                    else:
                        partial.discard_empty()
        return found

    # ---- the record ----

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Create the record of a new partial file.

        Raises:
            OutputError: Writing failed.
        """
        with output_errors(self._record):
            self._stream = self._record.open("xb", buffering=0)
            self._stream.write(json.dumps(settings).encode() + b"\n")

    def reopen(self, settings: Mapping[str, Any]) -> None:
        """Open the record of an interrupted command at the last position that the file reaches.

        Raises:
            OutputError: There is no record.
            OptionError: The command had other settings.
        """
        try:
            recorded, positions = self._read_record()
        except (OSError, ValueError, TypeError) as error:
            raise OutputError(
                f"{self.path} cannot be continued: {self._record}, the record of its settings, is "
                f"missing or damaged; {START_OVER}, or move {self.path} away to keep its lines."
            ) from error
        given = json.loads(json.dumps(settings))
        other = [name for name in given | recorded if given.get(name) != recorded.get(name)]
        if other:
            raise OptionError(
                f"{self.path} was written with another value of {', '.join(sorted(other))}; repeat "
                f"the command that was interrupted, or {START_OVER}."
            )
        size = self.extent().size
        reached = [position for position in positions if position.size <= size]
        with output_errors(self._record):
            self._stream = self._record.open("ab", buffering=0)
            self._stream.write(b"\n")  # SIGKILL or a full disk may have cut the last line
        self.note(reached[-1] if reached else Position())

    def _read_record(self) -> tuple[dict[str, Any], list[Position]]:
        """Read the settings and the positions, without those that a continued command went back."""
        if not _is_regular(self._record):
            raise FileNotFoundError
        first, *rest = self._record.read_bytes().splitlines()
        positions: list[Position] = []
        for line in rest:
            with contextlib.suppress(ValueError, TypeError):  # a line was cut
                position = Position(**json.loads(line))
                while positions and positions[-1].size > position.size:
                    positions.pop()
                positions.append(position)
        return dict(json.loads(first)), positions

    def note(self, position: Position) -> None:
        """Append the position, if there is a record.

        Raises:
            OutputError: Writing failed.
        """
        if self._stream is not None:
            with output_errors(self._record):
                self._stream.write(json.dumps(position._asdict()).encode() + b"\n")
            self.position = position

    def forget(self) -> None:
        """Remove the record."""
        if self._stream is not None:
            self._stream.close()
        self._record.unlink(missing_ok=True)

    # ---- the lines ----

    def extent(self) -> _Extent:
        """Measure the file; a compressed one up to where it is damaged.

        Counting in the file is exact even if Ctrl-C came right after a write.
        """
        lines = end = size = 0
        with contextlib.suppress(InputError):
            for block in self._blocks():
                if newlines := block.count(b"\n"):
                    lines += newlines
                    end = size + block.rindex(b"\n") + 1
                size += len(block)
        return _Extent(lines, end, size)

    def _blocks(self) -> Generator[bytes, None, None]:
        with self.path.open("rb") as file, reading_compressed(str(self.path)):
            head, stream = decompressed(file, "")
            # read1, because read would lose what precedes damage.
            read: Callable[[int], bytes] = stream.read1  # type: ignore[attr-defined]
            yield from itertools.chain((head,), iter(lambda: read(_BLOCK_BYTES), b""))

    def cut(self, compressor: Compressor | None) -> None:
        """Truncate the file to the recorded position; a compressed file is written anew."""
        rest = self.position.size
        if compressor is None:
            os.truncate(self.path, rest)
            return
        blocks = self._blocks()
        with new_file(self.path) as file, contextlib.closing(blocks):
            while rest:
                block = next(blocks)[:rest]
                file.write(compressor.compress(block))
                rest -= len(block)
            file.write(compressor.flush())

    def keep_lines(self, compressed: bool) -> None:
        """Keep the complete lines of an unfinished file and report them, or remove the file."""
        try:
            extent = self.extent()
            end = max(extent.end, min(self.position.size, extent.size))
            if not end:
                self.discard_empty()
                return
            if not compressed:
                os.truncate(self.path, end)  # drops a line that a full disk has cut
            hint = ""
            if self._stream is not None:
                self._stream.close()
                hint = "; --resume continues"
            log.warning(
                "stopped early; the first %d lines are in %s%s", extent.lines, self.path, hint
            )
        except OSError as error:  # the directory or the disk is gone
            log.warning("the lines in %s are lost: %s", self.path, error.strerror)

    def discard_empty(self) -> None:
        """Discard the file, and say so if the command had translated lines."""
        records = 0
        with contextlib.suppress(OSError, ValueError, TypeError):  # no record, or a damaged one
            records = max((position.records for position in self._read_record()[1]), default=0)
        if records:
            log.warning(
                "%s is removed: it holds none of the %d lines that the interrupted run translated",
                self.path,
                records,
            )
        self.discard()

    def discard(self) -> None:
        """Remove the file, unless another process uses it, and its record."""
        with abandoned(self.path) as ours:
            if ours:
                self.path.unlink(missing_ok=True)
        if not self.path.exists():
            self.forget()


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()

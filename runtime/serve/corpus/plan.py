"""Inputs and their division into shards: byte ranges of text, row ranges of Parquet files.

The plan depends only on the inputs, so a second run makes the same plan. Text files are not read as
a whole: the planner only looks for the next line start at each multiple of the shard length.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import (
    compression_for,
    compression_of,
    uncompressed_name,
)
from translate_trt.runtime.io.lines import check_input, check_text, open_input
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions

TEXT, COMPRESSED, PARQUET = "text", "compressed", "parquet"

#: Directory of the run's state within the output directory.
BOOKKEEPING = "_corpus"
#: The column of translations in Parquet output.
TRANSLATION = "translation"

# Bytes of a file name, less those that `new_file` adds until the file is complete.
_LONGEST_NAME = 255 - len(".01234567.partial")
_OTHER_ARCHIVES = (".bz2", ".xz", ".zip", ".tar", ".tgz", ".7z")
_SAMPLE_BYTES = 1 << 20
_HEAD_BYTES = 4096
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Input:
    """A file to translate.

    Attributes:
        path: Absolute path, the same on every machine.
        name: Name of the output file.
        kind: TEXT, COMPRESSED (not seekable) or PARQUET.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds since 1970.
    """

    path: str
    name: str
    kind: str
    size: int
    mtime_ns: int

    @property
    def suffix(self) -> str:
        """File name suffix of the input's parts."""
        return ".parquet" if self.kind == PARQUET else ".txt"

    @property
    def bad_name(self) -> str:
        """File name of the list of the input's bad records."""
        return f"{self.name}.bad.jsonl"

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since the run was planned."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read on this machine ({error.strerror}); every machine of "
                "a cluster must see the inputs under the same path."
            ) from error
        if (found.st_size, found.st_mtime_ns) != (self.size, self.mtime_ns):
            raise InputError(
                f"{self.path} has changed since the run began; run the command again to translate "
                "the new version."
            )


@dataclass(frozen=True)
class Shard:
    """Range of an input that one worker translates at a time.

    Attributes:
        source: The input.
        index: Index of the shard within the input, from 0.
        begin: First byte of a text, at the start of a line, or first row of a Parquet file.
        end: End of the range, exclusive. A COMPRESSED input is a single shard.
    """

    source: Input
    index: int
    begin: int
    end: int

    @property
    def name(self) -> str:
        """Name of the shard in messages."""
        return f"{self.source.name}, shard {self.index}"

    def to_json(self) -> str:
        """Convert the shard to one line of JSON, which identifies it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Shard:
        """Read a shard that `to_json` wrote."""
        value = json.loads(text)
        return cls(**{**value, "source": Input(**value["source"])})


def find_inputs(patterns: Sequence[str], column: str) -> list[Input]:
    """Find the inputs, sorted by name within each pattern.

    Args:
        patterns: Paths, or patterns with *, ?, [] and ** for any directories.
        column: Column that Parquet files must have.

    Raises:
        InputError: A pattern matches no file, a file cannot be read, two files would have the same
            output, or a Parquet file lacks the column.
    """
    found: dict[str, Input] = {}
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else _matches(pattern)
        for match in matches:
            one = _input(match)
            other = found.setdefault(one.name, one)
            if other.path != one.path:
                raise InputError(
                    f"{one.path} and {other.path} would both become {one.name}; rename one, or "
                    "translate them into two directories."
                )
    _check_names(found)
    for one in found.values():
        if one.kind == PARQUET:
            check_column(one, column)
    return list(found.values())


def _matches(pattern: str) -> list[str]:
    matches = sorted(path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path))
    if not matches:
        if not glob.has_magic(pattern):
            check_input(pattern)  # raises a more precise error
        raise InputError(f"no file matches {pattern}; check the path.")
    return matches


def _input(path: str) -> Input:
    check_input(path)
    kind, name = TEXT, os.path.basename(path)
    if compression_for(name) is not None or compression_of(_head(path)) is not None:
        kind, name = COMPRESSED, uncompressed_name(name)
    elif name.endswith(".parquet"):
        kind = PARQUET
    elif name.endswith(_OTHER_ARCHIVES):
        raise InputError(f"{path} has an unsupported compression; unpack it, or use gzip or zstd.")
    if not os.path.isfile(path):
        raise InputError(f"{path} is not a regular file, as corpora must be; save it as one first.")
    if kind == TEXT:
        check_text(_head(path).partition(b"\n")[0], path)
    stamp = os.stat(path)
    return Input(os.path.abspath(path), name, kind, stamp.st_size, stamp.st_mtime_ns)


def _head(path: str) -> bytes:
    """Return the first bytes of a regular file; empty for pipes, which are refused later."""
    if not os.path.isfile(path):
        return b""
    with open_input(path) as stream:
        return stream.read(_HEAD_BYTES)


def _check_names(found: dict[str, Input]) -> None:
    for one in found.values():
        if len(os.fsencode(one.bad_name)) > _LONGEST_NAME:
            raise InputError(
                f"{one.path}: its name is too long, since the names of results are longer still; "
                "rename the file."
            )
    taken = {one.bad_name for one in found.values()} | {BOOKKEEPING, ""}
    for name in taken & set(found):
        raise InputError(
            f"{found[name].path}: the name {name!r} is reserved for results; rename the file."
        )


def check_column(source: Input, column: str) -> None:
    """Check early that a Parquet file can be translated.

    Raises:
        InputError: The file is damaged, lacks a text column of that name, or already has a column
            of translations.
    """
    import pyarrow
    from pyarrow import types

    schema = open_parquet(source).schema_arrow
    if column not in schema.names:
        raise InputError(
            f"{source.path} has no column {column!r}; it has {', '.join(schema.names)}. "
            "Name one with --column."
        )
    if schema.names.count(column) > 1:
        raise InputError(f"{source.path} has several columns {column!r}; rename all but one.")
    kind: Any = schema.field(column).type
    if isinstance(kind, pyarrow.DictionaryType):
        kind = kind.value_type
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(is_text(kind) for is_text in texts):
        raise InputError(f"the column {column!r} of {source.path} is of {kind}, not of text.")
    if TRANSLATION in schema.names:
        raise InputError(
            f"{source.path} already has a column {TRANSLATION!r}; rename it, because the column of "
            "translations has this name."
        )


def open_parquet(source: Input) -> Any:
    """Open an input as a pyarrow.parquet.ParquetFile.

    Raises:
        InputError: The file is damaged or not a Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(source.path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"cannot read {source.path} as Parquet: {error}") from error


def plan(source: Input, options: CorpusOptions) -> list[Shard]:
    """Divide an input into shards, in order; an empty input has one empty shard.

    Raises:
        InputError: The input cannot be read.
    """
    if source.kind == COMPRESSED:
        boundaries = [0, source.size]
    elif source.kind == PARQUET:
        rows = open_parquet(source).metadata.num_rows
        boundaries = [*range(0, rows, options.shard_lines), rows]
    else:
        with open_input(source.path) as stream:
            boundaries = list(_line_starts(stream, source.size, options.shard_lines))
    if len(boundaries) == 1:
        boundaries.append(boundaries[0])
    return [
        Shard(source, index, begin, end)
        for index, (begin, end) in enumerate(itertools.pairwise(boundaries))
    ]


def _line_starts(stream: BinaryIO, size: int, lines: int) -> Iterator[int]:
    """Iterate over 0, line starts that are about `lines` lines apart, and `size`."""
    sample = stream.read(_SAMPLE_BYTES)
    step = max(1, lines * len(sample) // max(1, sample.count(b"\n")))
    start = 0
    while start < size:
        yield start
        start = _next_line(stream, start + step - 1, size)
    yield size


def _next_line(stream: BinaryIO, offset: int, size: int) -> int:
    """Return the offset of the first line start after a byte; `size` if there is no other line."""
    stream.seek(offset)
    while block := stream.read(_BLOCK_BYTES):
        newline = block.find(b"\n")
        if newline >= 0:
            return offset + newline + 1
        offset += len(block)
    return size

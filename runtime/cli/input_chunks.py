"""Chunks of the lines of inputs, for commands that handle many lines together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from translate_trt.runtime.io.lines import display_name, read_chunks
from translate_trt.runtime.record_formats import Record, RecordFormat
from translate_trt.runtime.results import Translation

T = TypeVar("T")


class Chunk(NamedTuple):
    """Lines that are translated together.

    Attributes:
        name: Name of their input.
        first_number: Number of the first line, from 1; None if the input is one record.
        records: One record per line.
        lines: The lines themselves, where a command needs them.
    """

    name: str
    first_number: int | None
    records: list[Record]
    lines: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        """The texts of all lines, in order."""
        return [text for record in self.records for text in record.texts]

    @property
    def given(self) -> list[str]:
        """The translations that the lines have, one per text, for formats that read them."""
        return [text for record in self.records for text in record.given]

    @property
    def constraints(self) -> list[Sequence[str]]:
        """The phrases that each translation must have, per text, for formats that read them."""
        return [phrases for record in self.records for phrases in record.constraints]

    @property
    def names(self) -> list[str]:
        """Names of the lines for messages, one per text."""
        if self.first_number is None:
            return [self.name for _ in self.texts]
        numbers = self.per_text(itertools.count(self.first_number))
        return [f"{self.name}, line {number}" for number in numbers]

    def per_text(self, values: Iterable[T]) -> list[T]:
        """Repeat the value of each line for each of its texts."""
        pairs = zip(self.records, values, strict=False)
        return [value for record, value in pairs for _ in record.texts]

    def split(self, count: int) -> list[Chunk]:
        """Split off the first `count` lines; return the chunks that have lines."""
        if not 0 < count < len(self.records):
            return [self]
        number = self.first_number and self.first_number + count
        return [
            self._replace(records=self.records[:count], lines=self.lines[:count]),
            Chunk(self.name, number, self.records[count:], self.lines[count:]),
        ]

    def render(self, translations: Sequence[Translation]) -> list[str]:
        """Return the output lines, given the translations of `texts`."""
        rest = iter(translations)
        lines = [
            record.render(list(itertools.islice(rest, len(record.texts))))
            for record in self.records
        ]
        return [line for line in lines if line is not None]


def read_inputs(inputs: Sequence[str], size: int, record_format: RecordFormat) -> Iterator[Chunk]:
    """Read inputs one after the other in chunks of lines.

    Args:
        inputs: Paths of files, or "-" for standard input.
        size: Maximum number of lines per chunk.
        record_format: Format of the lines.

    Raises:
        InputError: An input cannot be read, or a line is not of the format.
    """

    def read(lines: Iterator[str], name: str) -> Iterator[tuple[Record, str]]:
        lines, copies = itertools.tee(lines)
        return zip(record_format.read(lines, name), copies, strict=False)

    for path in inputs:
        number = 1
        for pairs in read_chunks(path, size, read):
            records, lines = map(list, zip(*pairs, strict=True))
            yield Chunk(display_name(path), number, records, lines)
            number += len(records)

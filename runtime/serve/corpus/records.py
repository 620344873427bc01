"""Reading of a shard's records.

A record is a line of text, JSON or TSV, or a row of a Parquet file. Lines end as in
`runtime.io.lines`: at a newline byte, optionally after one carriage return.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, ClassVar, NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import decompressed
from translate_trt.runtime.io.lines import (
    BYTE_ORDER_MARK,
    check_text,
    open_input,
    read_lines,
    reading,
    without_line_end,
)
from translate_trt.runtime.json_lines import WordsOf, json_hypotheses, json_line
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.record_formats import (
    JsonLinesFormat,
    TextFormat,
    TsvFormat,
    translation_columns,
)
from translate_trt.runtime.record_formats import Record as FormatRecord
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.serve.corpus.plan import (
    COMPRESSED,
    PARQUET,
    TRANSLATION,
    Input,
    Shard,
    open_parquet,
)
from translate_trt.runtime.serve.corpus.run_options import JSON_LINES, TEXT, TSV, CorpusOptions

INVALID_UTF8, TOO_LONG = "not valid UTF-8", "too long"
NULL, EMPTY = "null", "empty"
NOT_XML = "not well-formed XML"
NO_TEXT = "no JSON object with this text"
CONSTRAINED = "constraints that the model cannot meet"
OTHER_COLUMNS = "another number of columns"

_MOST_BYTES_OF_A_CHARACTER = 4
_MOST_BYTES_OF_FIELDS = 1 << 26  # of a line, most of which may be other fields or columns
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot be translated.

    Attributes:
        reason: One of the reasons above.
        line: Output line of a line of JSON, which stays as it is, or of TSV; None for texts, rows
            of Parquet, and lines that are too long.
    """

    texts: ClassVar[Sequence[str]] = ()
    constraints: ClassVar[Sequence[Sequence[str]]] = ()
    reason: str
    line: bytes | None = None


class LineRecord(NamedTuple):
    """A text, an object of JSON or a row of TSV.

    Attributes:
        texts: Texts to translate, in order.
        render: Returns the output line of the translations of `texts`.
        untranslated: Output line if a text turns out to be one that cannot be translated; see
            `BadRecord.line`.
        constraints: Phrases that each translation must have, as many lists as `texts`.
    """

    texts: Sequence[str]
    render: Callable[[Sequence[Translation]], str | None]
    untranslated: bytes | None = None
    constraints: Sequence[Sequence[str]] = ()


Record = LineRecord | BadRecord


class Chunk(NamedTuple):
    """Records that are translated together.

    Attributes:
        records: Records in the order of the input.
        table: Rows of a Parquet file as a pyarrow.RecordBatch; None for text.
    """

    records: list[Record]
    table: Any = None


def read_records(
    shard: Shard,
    options: CorpusOptions,
    size: int,
    words: WordsOf | None = None,
    count: int = 1,
) -> Iterator[Chunk]:
    """Iterate over the records of a shard in chunks of at most `size`.

    Args:
        shard: The shard.
        options: Options of the run.
        size: Maximum number of records in a chunk.
        words: Returns the words of a hypothesis, which JSON gets; None adds none.
        count: Maximum number of hypotheses per translation, for which TSV gets columns.

    Raises:
        InputError: The input cannot be read, is damaged, or has changed since planning.
    """
    shard.source.check_unchanged()
    if shard.source.kind == PARQUET:
        yield from _rows(shard, options, size, words)
    else:
        yield from _lines(shard, options, size, words, count)
    shard.source.check_unchanged()


def _lines(
    shard: Shard, options: CorpusOptions, size: int, words: WordsOf | None, count: int
) -> Iterator[Chunk]:
    most_bytes = options.max_characters * _MOST_BYTES_OF_A_CHARACTER
    if options.input_format != TEXT:
        most_bytes = _MOST_BYTES_OF_FIELDS
    with _open(shard) as stream:
        end = None if shard.source.kind == COMPRESSED else shard.end
        lines = _raw_lines(stream, shard.source.path, shard.begin == 0, end, most_bytes)
        readers = _readers(shard, options, words, count)
        records = (reader.record(line) for line, reader in zip(lines, readers, strict=False))
        while chunk := list(itertools.islice(records, size)):
            yield Chunk(chunk)


@dataclass(frozen=True)
class _Reader:
    """Reader of lines, as records or as bad records.

    Attributes:
        options: Options of the run.
        read: Returns the record of a line.
        refused: Reason of a line for which it raises an InputError.
        rest: End of a line that stays because it cannot be translated; None if lines do not stay.
    """

    options: CorpusOptions
    read: Callable[[str], FormatRecord]
    refused: str = ""
    rest: bytes | None = None

    def record(self, line: bytes | None) -> Record:
        """Return the record of a line; None is a line that is too long."""
        if line is None:
            return BadRecord(TOO_LONG)
        kept = None if self.rest is None else line + self.rest
        try:
            record = self.read(line.decode("utf-8"))
        except UnicodeDecodeError:
            return BadRecord(INVALID_UTF8, kept)
        except InputError:
            return BadRecord(self.refused, line)
        for text in record.texts:
            if (reason := _fault(text, self.options)) is not None:
                return BadRecord(reason, kept)
        return LineRecord(record.texts, record.render, kept, record.constraints)


def _readers(
    shard: Shard, options: CorpusOptions, words: WordsOf | None, count: int
) -> Iterator[_Reader]:
    """Iterate over the readers of the lines of a shard; the first line of TSV may be a header."""
    if options.input_format == JSON_LINES:
        form = json_lines_format(options, words)
        lines = _Reader(options, lambda line: next(form.read([line], "")), NO_TEXT, b"")
    elif options.input_format == TSV:
        rows, columns = tsv_format(shard.source, options, count), _tsv_columns(options, count)
        rest = b"\t" * len(columns)
        lines = _Reader(options, lambda line: rows.row_record(line, ""), OTHER_COLUMNS, rest)
        if options.header and shard.begin == 0:
            yield _Reader(
                options,
                lambda line: FormatRecord([], lambda _: "\t".join((line, *columns))),
                rest=rest,
            )
    else:
        lines = _text_reader(options, words)
    yield from itertools.repeat(lines)


@contextmanager
def _open(shard: Shard) -> Iterator[IO[bytes]]:
    path = shard.source.path
    with open_input(path) as file, reading(path):
        if shard.source.kind == COMPRESSED:
            yield decompressed(file, path)[1]
        else:
            file.seek(shard.begin)
            yield file


def _raw_lines(
    stream: IO[bytes], name: str, first: bool, end: int | None, limit: int
) -> Iterator[bytes | None]:
    """Iterate over lines without line ends up to the offset `end`; None for lines over `limit`.

    At most `limit` bytes are in memory. A byte order mark at the start of a file is dropped.
    """
    while end is None or stream.tell() < end:
        raw = stream.readline(limit + 2)  # including carriage return and newline
        if first:
            check_text(raw, name)
            raw, first = raw.removeprefix(BYTE_ORDER_MARK), False
        if not raw:
            return
        if not raw.endswith(b"\n") and len(raw) > limit:
            while (block := stream.readline(_BLOCK_BYTES)) and not block.endswith(b"\n"):
                pass
            yield None
        else:
            yield without_line_end(raw)


def _text_reader(options: CorpusOptions, words: WordsOf | None) -> _Reader:
    form = TextFormat(
        partial(json_line, words=words) if options.json else lambda _, translation: translation.text
    )
    return _Reader(options, lambda text: next(form.read([text], "")))


def _fault(text: str, options: CorpusOptions) -> str | None:
    """Return why a text cannot be translated; None if it can."""
    if len(text) > options.max_characters:
        return TOO_LONG
    if options.markup == "xml":
        try:
            plain_lines(text, options.markup)
        except InputError:
            return NOT_XML
    return None


def json_lines_format(options: CorpusOptions, words: WordsOf | None = None) -> JsonLinesFormat:
    """Create the format of JSON lines, to which translations are added; see `read_records`."""
    added: dict[str, Callable[[Translation], Any]] = {TRANSLATION: lambda found: found.text}
    if options.json:
        added[f"{TRANSLATION}_hypotheses"] = partial(json_hypotheses, words=words)
    remedy = "rename it, because the translation has this name"
    return JsonLinesFormat(
        options.field, added, remedy=remedy, constraints_field=options.constraints_field
    )


def check_first_line(source: Input, options: CorpusOptions) -> None:
    """Check early that JSON lines or TSV can be translated.

    Raises:
        InputError: The first line is damaged, lacks the text, or already has a translation; or the
            first row of TSV does.
    """
    if options.input_format == TSV:
        tsv_format(source, options)
    elif options.input_format == JSON_LINES:
        with open_input(source.path) as stream:
            first = itertools.islice(read_lines(stream, source.path), 1)
            list(json_lines_format(options).read(first, source.path))


def tsv_format(source: Input, options: CorpusOptions, count: int = 1) -> TsvFormat:
    """Create the format of the rows of an input, whose first row determines the columns.

    Args:
        source: The input.
        options: Options of the run.
        count: Maximum number of hypotheses per translation.

    Raises:
        InputError: The first row lacks the column, or already has one of translations.
    """
    column = int(options.column) if options.column.isdecimal() else options.column
    form = TsvFormat(
        column, options.header, _tsv_columns(options, count),
        remedy="rename it, because the column of translations has this name",
    )  # fmt: skip
    with open_input(source.path) as stream:
        for number, line in enumerate(read_lines(stream, source.path), start=1):
            where = f"{source.path}, line {number}"
            if options.header and not line:
                raise InputError(f"{where} is empty; the first line must be the header.")
            if line:
                (form.header_record if options.header else form.row_record)(line, where)
                break
    return form


def _tsv_columns(options: CorpusOptions, count: int) -> dict[str, Callable[[Translation], str]]:
    return translation_columns(TRANSLATION, count, pharaoh=_pharaoh if options.alignments else None)


def _pharaoh(hypothesis: TextHypothesis) -> str:
    return "" if hypothesis.alignment is None else hypothesis.alignment.pharaoh()


def _rows(
    shard: Shard, options: CorpusOptions, size: int, words: WordsOf | None
) -> Iterator[Chunk]:
    import pyarrow

    reader = _text_reader(options, words)
    with open_parquet(shard.source) as file:
        try:
            for batch in _batches(file, shard.begin, shard.end, size):
                values = _bytes(batch.column(options.column))
                yield Chunk([_cell(reader, value) for value in values], batch)
        except pyarrow.ArrowException as error:
            raise InputError(f"cannot read {shard.source.path}: {error}") from error


def _batches(file: Any, begin: int, end: int, size: int) -> Iterator[Any]:
    """Iterate over the rows from `begin` to `end`, skipping row groups outside the range."""
    first = 0
    for index in range(file.metadata.num_row_groups):
        after = first + file.metadata.row_group(index).num_rows
        if first < end and begin < after:
            for batch in file.iter_batches(size, row_groups=[index]):
                low, high = max(begin - first, 0), min(end - first, batch.num_rows)
                if low < high:
                    yield batch.slice(low, high - low)
                first += batch.num_rows
        first = after


def _bytes(column: Any) -> Sequence[bytes | None]:
    """Convert a text column to bytes, because it may contain invalid UTF-8."""
    import pyarrow

    if isinstance(column.type, pyarrow.DictionaryType):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return values


def _cell(reader: _Reader, value: bytes | None) -> Record:
    if value is None:
        return BadRecord(NULL)
    record = reader.record(value)
    is_empty = isinstance(record, LineRecord) and not record.texts[0].strip()
    return BadRecord(EMPTY) if is_empty else record

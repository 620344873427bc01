"""Translation of one shard into its part and its record."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.halving import halving
from translate_trt.runtime.io.atomic_files import new_file, write_bytes_atomically, write_json
from translate_trt.runtime.io.hashing import input_hash
from translate_trt.runtime.json_lines import UNTRANSLATED
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Translation
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord
from translate_trt.runtime.serve.corpus.plan import PARQUET, TRANSLATION, Shard, open_parquet
from translate_trt.runtime.serve.corpus.records import (
    CONSTRAINED,
    BadRecord,
    Chunk,
    LineRecord,
    Record,
    read_records,
)
from translate_trt.runtime.serve.corpus.run_options import TEXT, CorpusOptions

if TYPE_CHECKING:
    from translate_trt.runtime.translator import Translator

#: Lines read, sorted by length and translated at a time.
CHUNK_LINES = 1024

#: Writes the translations of a chunk; None stands for a bad record.
Write = Callable[[Chunk, Sequence[str | None]], None]


def translate_shard(
    shard: Shard,
    job: Job,
    translator: Translator,
    search: SearchOptions,
    options: CorpusOptions,
) -> ShardRecord:
    """Translate a shard unless it is finished, and write its part, bad records and record.

    A bad record becomes an empty line of a text (`json_lines.UNTRANSLATED` with `options.json`) or
    a null of a Parquet file, stays as it is in JSON lines, and has empty translations in TSV, which
    keeps translations aligned with the input.

    Raises:
        InputError: The input cannot be read, or has changed.
        OutputError: The part cannot be written.
        BackendError: The translator failed.
    """
    if (finished := job.finished(shard)) is not None:
        return finished
    begun = time.perf_counter()
    records = tokens = 0
    bad: list[dict[str, Any]] = []
    job.parts(shard.source).mkdir(parents=True, exist_ok=True)
    words = translator.words if options.words else None
    constrained = options.constraints_field is not None
    request = translator.request(
        (), search, split_sentences=options.split, document=options.document,
        unwrap=options.unwrap, alignments=options.alignments, markup=options.markup,
        terminology=options.glossary, translate_all=options.translate_all,
    )  # fmt: skip
    with _new_part(shard, job, options) as write:
        for chunk in read_records(shard, options, CHUNK_LINES, words, search.result_count):
            translations = _translate(chunk.records, translator, request, constrained)
            chunk = _without_constrained(chunk, translations)
            bad += [
                {"place": index, "reason": record.reason}  # its index in the shard
                for index, record in enumerate(chunk.records, start=records)
                if isinstance(record, BadRecord)
            ]
            records += len(chunk.records)
            tokens += sum(
                len(one.hypotheses[0].token_log_probs) for own in translations for one in own or ()
            )
            outputs = [
                None if found is None or isinstance(record, BadRecord) else record.render(found)
                for record, found in zip(chunk.records, translations, strict=True)
            ]
            write(chunk, outputs)
    if bad:
        content = "".join(f"{json.dumps(one)}\n" for one in bad).encode()
        write_bytes_atomically(job.bad(shard), content)
    else:
        job.bad(shard).unlink(missing_ok=True)  # from an earlier version of the input
    part = job.part(shard)
    record = ShardRecord(
        fingerprint=job.fingerprint,
        size=shard.source.size,
        mtime_ns=shard.source.mtime_ns,
        records=records,
        bad=dict(Counter(one["reason"] for one in bad)),
        target_tokens=tokens,
        seconds=time.perf_counter() - begun,
        output_bytes=part.stat().st_size,
        sha256=input_hash(part),
        begin=shard.begin,
        end=shard.end,
        host=platform.node(),
        pid=os.getpid(),
    )
    write_json(job.record(shard), dataclasses.asdict(record))
    return record


def _translate(
    records: Sequence[Record], translator: Translator, request: LineRequest, constrained: bool
) -> list[list[Translation] | None]:
    """Return the translations of each record's texts; None if terms or constraints exclude one."""

    def translated(records: Sequence[Record]) -> list[list[Translation] | None]:
        texts = [text for record in records for text in record.texts]
        constraints = [own for one in records for own in one.constraints] if constrained else None
        of_texts = dataclasses.replace(request, lines=texts, constraints=constraints)
        found = iter(translator.translate_request(of_texts) if texts else ())
        return [list(itertools.islice(found, len(record.texts))) for record in records]

    if request.terminology is None and not constrained:
        return translated(records)
    return halving(records, translated, lambda record, error: None, (InputError, OptionError))


def _without_constrained(chunk: Chunk, translations: Sequence[list[Translation] | None]) -> Chunk:
    """Return the chunk with a bad record in the place of each that has no translation."""
    records = [
        BadRecord(CONSTRAINED, record.untranslated if isinstance(record, LineRecord) else None)
        if found is None
        else record
        for record, found in zip(chunk.records, translations, strict=True)
    ]
    return Chunk(records, chunk.table)


@contextmanager
def _new_part(shard: Shard, job: Job, options: CorpusOptions) -> Iterator[Write]:
    with new_file(job.part(shard)) as file:
        if shard.source.kind == PARQUET:
            with _parquet_writer(shard, file) as write:
                yield write
        else:
            has_objects = options.json and options.input_format == TEXT
            yield partial(_write_lines, file, UNTRANSLATED.encode() if has_objects else b"")


def _write_lines(file: BinaryIO, bad: bytes, chunk: Chunk, texts: Sequence[str | None]) -> None:
    """Write one line per record, with the line `bad` for bad records that have none."""
    for record, text in zip(chunk.records, texts, strict=True):
        line = bad if text is None else text.encode("utf-8")
        if isinstance(record, BadRecord) and record.line is not None:
            line = record.line
        file.write(line + b"\n")


@contextmanager
def _parquet_writer(shard: Shard, file: BinaryIO) -> Iterator[Write]:
    """Write rows with all columns of the input and the translations."""
    import pyarrow.parquet

    with open_parquet(shard.source) as source:
        schema = source.schema_arrow.append(pyarrow.field(TRANSLATION, pyarrow.string()))

    def write(chunk: Chunk, texts: Sequence[str | None]) -> None:
        arrays = [*chunk.table.columns, pyarrow.array(texts, pyarrow.string())]
        writer.write_batch(pyarrow.RecordBatch.from_arrays(arrays, schema=schema))

    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        yield write

"""Concatenation of an input's parts into its output file."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import new_file, write_json
from translate_trt.runtime.io.hashing import input_hash
from translate_trt.runtime.serve.corpus.job import InputRecord, Job, ShardRecord
from translate_trt.runtime.serve.corpus.plan import PARQUET, Input, Shard

_BLOCK_BYTES = 1 << 20


def join_parts(
    job: Job, source: Input, shards: Sequence[Shard], records: Sequence[ShardRecord]
) -> InputRecord:
    """Write the output of an input whose shards are all finished, and remove its parts.

    An interruption loses nothing: the output is written first, then the list of bad records and the
    record of the complete input, and the parts are removed last.

    Raises:
        OutputError: The output cannot be written, or a part has changed since it was written.
    """
    result = job.result(source)
    with new_file(result) as file:
        if source.kind == PARQUET:
            _join_parquet(job, shards, records, file)
        else:
            for shard, record in zip(shards, records, strict=True):
                _copy(job.part(shard), record, file)
    _join_bad(job, source, shards, records)
    bad: Counter[str] = Counter()
    for one in records:
        bad.update(one.bad)
    complete = InputRecord(
        fingerprint=job.fingerprint,
        size=source.size,
        mtime_ns=source.mtime_ns,
        records=sum(one.records for one in records),
        bad=dict(bad),
        target_tokens=sum(one.target_tokens for one in records),
        seconds=sum(one.seconds for one in records),
        output_bytes=result.stat().st_size,
        sha256=input_hash(result),
        shards=len(shards),
    )
    job.done(source).parent.mkdir(exist_ok=True)
    write_json(job.done(source), dataclasses.asdict(complete))
    shutil.rmtree(job.parts(source), ignore_errors=True)
    return complete


def _copy(part: Path, record: ShardRecord, file: BinaryIO) -> None:
    digest = hashlib.sha256()
    with part.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            file.write(block)
    _check(part, digest.hexdigest(), record)


def _check(part: Path, found: str, record: ShardRecord) -> None:
    if found != record.sha256:
        part.unlink()
        raise OutputError(
            f"{part} has changed since its worker wrote it, and was removed; check the disk, and "
            "run the command again, which translates that shard again."
        )


def _join_parquet(
    job: Job, shards: Sequence[Shard], records: Sequence[ShardRecord], file: BinaryIO
) -> None:
    import pyarrow.parquet

    with contextlib.ExitStack() as stack:
        writer = None
        for shard, record in zip(shards, records, strict=True):
            part = job.part(shard)
            _check(part, input_hash(part), record)
            with pyarrow.parquet.ParquetFile(part) as rows:
                if writer is None:
                    writer = stack.enter_context(
                        pyarrow.parquet.ParquetWriter(file, rows.schema_arrow)
                    )
                for batch in rows.iter_batches():
                    writer.write_batch(batch)


def _join_bad(
    job: Job, source: Input, shards: Sequence[Shard], records: Sequence[ShardRecord]
) -> None:
    """List the bad records, with line numbers from 1 or rows from 0."""
    path = job.output / source.bad_name
    if not any(record.bad for record in records):
        path.unlink(missing_ok=True)  # from an earlier version of the input
        return
    before = 0  # records of the shards before
    with new_file(path) as file:
        for shard, record in zip(shards, records, strict=True):
            if record.bad:
                for line in job.bad(shard).read_text(encoding="utf-8").splitlines():
                    one = json.loads(line)
                    index = before + one["place"]
                    where = {"row": index} if source.kind == PARQUET else {"line": index + 1}
                    text = json.dumps({**where, "reason": one["reason"]})
                    file.write(f"{text}\n".encode())
            before += record.records

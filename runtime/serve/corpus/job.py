"""State of a run on disk: its settings, finished shards and complete inputs.

    out/<name>                       translations of a complete input
    out/<name>.bad.jsonl             bad records of the input, if any
    out/_corpus/job.json             settings that affect the translations; others are refused
    out/_corpus/lock                 locked while a run is active
    out/_corpus/parts/<name>/        parts of an incomplete input; for each shard 00003.txt or
                                     00003.parquet, 00003.bad.jsonl, 00003.json once it is
                                     finished, and 00003.started.json for its last attempt
    out/_corpus/done/<name>.json     record of a complete input

Files are created atomically, and the record of a shard is written last: a shard is finished if and
only if it has a record. Two workers with the same shard write identical files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers,
    clear_leftovers_in,
    output_errors,
    write_json,
)
from translate_trt.runtime.io.locks import locked
from translate_trt.runtime.io.outputs import check_apart, object_in
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.plan import BOOKKEEPING, Input, Shard
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions
from translate_trt.runtime.version import version

log = logging.getLogger("translate_trt")

_FORMAT_VERSION = 1
_READERS = 16  # threads that read small files, which hides the latency of network file systems


@dataclass(frozen=True)
class _Record:
    """Record of a finished shard or input.

    Attributes:
        fingerprint: Fingerprint of the run's settings.
        size: Size of the input in bytes; with `mtime_ns` it detects changes of the input.
        mtime_ns: Modification time of the input.
        records: Number of lines or rows, bad ones included.
        bad: Number of bad records by reason.
        target_tokens: Generated tokens, end symbols included.
        seconds: Working time of the workers.
        output_bytes: Size of the part or output.
        sha256: SHA-256 of the part or output.
    """

    fingerprint: str
    size: int
    mtime_ns: int
    records: int
    bad: dict[str, int]
    target_tokens: int
    seconds: float
    output_bytes: int
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a record; None if it is missing or was written by another version."""
        value = object_in(path)
        try:
            return cls(**value)
        except TypeError:  # other fields
            return None


@dataclass(frozen=True)
class ShardRecord(_Record):
    """Record of a finished shard: its range, and the process that translated it."""

    begin: int
    end: int
    host: str
    pid: int


@dataclass(frozen=True)
class InputRecord(_Record):
    """Record of a complete input, with its number of shards."""

    shards: int


@dataclass(frozen=True)
class Job:
    """Output directory of a run, and the settings that affect its translations.

    Attributes:
        output: Absolute path of the directory.
        settings: JSON object of all settings that affect the translations.
    """

    output: Path
    settings: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings."""
        text = json.dumps(self.settings, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    # ---- paths ----

    @property
    def home(self) -> Path:
        """Directory of the run's state."""
        return self.output / BOOKKEEPING

    def result(self, source: Input) -> Path:
        """Path of the translations of an input."""
        return self.output / source.name

    def parts(self, source: Input) -> Path:
        """Directory of an input's parts."""
        return self.home / "parts" / source.name

    def part(self, shard: Shard) -> Path:
        """Path of the translations of a shard."""
        return self.parts(shard.source) / f"{shard.index:05d}{shard.source.suffix}"

    def bad(self, shard: Shard) -> Path:
        """Path of a shard's bad records."""
        return self.part(shard).with_suffix(".bad.jsonl")

    def record(self, shard: Shard) -> Path:
        """Path of the record of a finished shard."""
        return self.part(shard).with_suffix(".json")

    def started(self, shard: Shard) -> Path:
        """Path of the record of a shard's last attempt."""
        return self.part(shard).with_suffix(".started.json")

    def done(self, source: Input) -> Path:
        """Path of the record of a complete input."""
        return self.home / "done" / f"{source.name}.json"

    # ---- finished shards and inputs ----

    def finished(self, shard: Shard) -> ShardRecord | None:
        """Return the record of a finished shard; None if it must be translated."""
        record = ShardRecord.read(self.record(shard))
        if record is None or not self._holds(record, shard.source, self.part(shard)):
            return None
        return record if (record.begin, record.end) == (shard.begin, shard.end) else None

    def complete(self, source: Input) -> InputRecord | None:
        """Return the record of a complete input; None if it is incomplete."""
        record = InputRecord.read(self.done(source))
        if record is None or not self._holds(record, source, self.result(source)):
            return None
        return record

    def _holds(self, record: _Record, source: Input, output: Path) -> bool:
        same = (record.fingerprint, record.size, record.mtime_ns) == (
            self.fingerprint, source.size, source.mtime_ns,
        )  # fmt: skip
        return same and _is_of(record, output)

    def all_finished(self, shards: list[Shard]) -> list[ShardRecord | None]:
        """Return `finished` for each shard, reading the records in parallel."""
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(self.finished, shards))

    # ---- attempts ----

    def begin(self, shard: Shard, run: str) -> int:
        """Record that this process starts a shard, and return the run's attempts at the shard."""
        path, attempts = self.started(shard), self.attempts(shard, run) + 1
        path.parent.mkdir(parents=True, exist_ok=True)
        who = {"host": platform.node(), "pid": os.getpid()}
        write_json(path, {"run": run, "attempts": attempts, **who})
        return attempts

    def attempts(self, shard: Shard, run: str) -> int:
        """Return the number of attempts of a run at a shard."""
        value = object_in(self.started(shard))
        return int(value["attempts"]) if value.get("run") == run else 0

    def check_visible(self) -> None:
        """Raise OutputError if this machine does not see the output directory of the run."""
        if object_in(self.home / "job.json").get("fingerprint") != self.fingerprint:
            raise OutputError(
                f"{self.output} on {platform.node()} is not the directory of the machine that "
                "started the run; put the output on a file system that every machine mounts under "
                "the same path."
            )


def make_settings(
    manifest: Manifest, target: str, search: SearchOptions, options: CorpusOptions
) -> dict[str, Any]:
    """Return all settings that affect translations as a JSON object.

    The results of `verify` in the manifest are excluded.
    """
    entry = manifest.target(target)
    others = dataclasses.asdict(options)
    if options.terminology:
        entries = json.dumps(options.terminology, ensure_ascii=False)
        others["terminology"] = hashlib.sha256(entries.encode("utf-8")).hexdigest()
    if options.words and entry.calibration is not None:
        others["words"] = entry.calibration
    return {
        "bundle": manifest.settings_of(entry),
        "search": dataclasses.asdict(search),
        "corpus": others,
    }


@contextmanager
def open_job(job: Job, inputs: list[Input], force: bool) -> Iterator[None]:
    """Create or reopen an output directory and lock it during the block.

    Args:
        job: Output directory and settings.
        inputs: Inputs of this run; results of other inputs are kept.
        force: Discard the results of a run with other settings.

    Raises:
        OutputError: Another run is active or has used other settings; an output exists that no run
            has written; or the directory overlaps an input.
    """
    paths = [source.path for source in inputs]
    check_apart(job.output, paths)
    for source in inputs:
        check_apart(job.result(source), paths)  # hard links
    with output_errors(job.home):
        job.home.mkdir(parents=True, exist_ok=True)
    with locked(job.home / "lock", job.output):
        for directory in (job.home, job.home / "done"):
            clear_leftovers_in(directory)
        for source in inputs:
            _check_result(job, source, force)
        _check_settings(job, force)
        yield
        _remove_other_results(job)


def _check_settings(job: Job, force: bool) -> None:
    path = job.home / "job.json"
    found = object_in(path)
    if found and found.get("fingerprint") != job.fingerprint:
        others = ", ".join(_differences(found.get("settings"), job.settings)) or "its version"
        if not force:
            raise OutputError(
                f"{job.output} has a run with other settings ({others}); use those, choose "
                "another --output, or add --force to translate everything again."
            )
        log.warning("%s is translated again with other settings (%s)", job.output, others)
        shutil.rmtree(job.home / "parts", ignore_errors=True)
    value = {"format_version": _FORMAT_VERSION, "created_by": f"translate-trt {version()}"}
    write_json(path, {**value, "fingerprint": job.fingerprint, "settings": job.settings})


def _remove_other_results(job: Job) -> None:
    """Remove results of a run with other settings once this run is complete.

    Results of both settings do not remain side by side.
    """
    for done in (job.home / "done").glob("*.json"):
        record = InputRecord.read(done)
        if record is not None and record.fingerprint != job.fingerprint:
            name = done.name.removesuffix(".json")
            if _is_of(record, job.output / name):
                (job.output / name).unlink()
                (job.output / f"{name}.bad.jsonl").unlink(missing_ok=True)
            done.unlink()


def _is_of(record: _Record, output: Path) -> bool:
    return output.is_file() and output.stat().st_size == record.output_bytes


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """Describe each setting that differs, such as `beam_size 4 there, 5 here`."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".strip("."))
    elif there != here:
        short = name.partition(".")[2]
        if short.startswith(("files", "tokenizer")):
            yield f"another {short.replace('.', ' ')}"
        else:
            yield f"{short} {_shown(there)} there, {_shown(here)} here"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _check_result(job: Job, source: Input, force: bool) -> None:
    """Refuse to replace a file that no run has written, and warn if the input has changed.

    Leftovers of a run that was killed while joining parts are removed.
    """
    result = job.result(source)
    clear_leftovers(result)
    clear_leftovers(job.output / source.bad_name)
    record = InputRecord.read(job.done(source))
    if job.complete(source) is not None:  # a run was killed before it had removed all parts
        shutil.rmtree(job.parts(source), ignore_errors=True)
    # After a run was killed while joining, parts exist, and the record may be missing.
    if result.exists() and not job.parts(source).exists():
        if record is None:
            raise OutputError(
                f"{result} exists, but no run has written it; move it away, or choose another "
                "--output."
            )
        if not _is_of(record, result) and not force:
            raise OutputError(
                f"{result} has been changed since it was translated; move it away, choose another "
                "--output, or add --force to replace it."
            )
    if record is not None and (record.size, record.mtime_ns) != (source.size, source.mtime_ns):
        log.warning("%s has changed since its translation and is translated again", source.path)

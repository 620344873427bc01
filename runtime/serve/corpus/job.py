"""What a run keeps on disk: what it is, which shards are finished, which inputs are complete.

    out/<name>                       the translations of an input, once all of them are there
    out/<name>.bad.jsonl             its bad records, if it has any
    out/_corpus/job.json             what decides the translations; another run is refused
    out/_corpus/lock                 locked while a run writes here
    out/_corpus/parts/<name>/        until then, of each shard: 00003.txt or 00003.parquet,
                                     00003.bad.jsonl, 00003.json once it is finished, and
                                     00003.started.json, which says who began it last
    out/_corpus/done/<name>.json     of a complete input

Files appear whole, by renaming, and the record of a shard comes last: what has a record is
finished, what has none is done again. Two workers with the same shard write the same.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, TypeVar

from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers,
    clear_leftovers_in,
    output_error,
    write_json,
)
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.io.locks import locked
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus.plan import BOOKKEEPING, Input, Shard
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions
from translate_trt.runtime.version import version

log = logging.getLogger("translate_trt")

_FORMAT_VERSION = 1
_READERS = 16  # of small files, on disks that are far away

T = TypeVar("T", bound="_Record")


@dataclass(frozen=True)
class _Record:
    """What is kept of something finished.

    Attributes:
        fingerprint: of the run's settings.
        size: of the input, in bytes; with `mtime_ns` it tells whether the input has changed.
        mtime_ns: of the input.
        records: lines or rows, bad ones included.
        bad: how many of them are bad, by reason.
        target_tokens: generated, end symbols included.
        seconds: that workers took for it.
        output_bytes: size of the part, or of the output.
        sha256: of the part, or of the output.
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
    def read(cls: type[T], path: Path) -> T | None:
        """That record; None if there is none, or what is there is none of this version."""
        value = read_object(path)
        try:
            return cls(**value)
        except TypeError:  # other fields
            return None


@dataclass(frozen=True)
class ShardRecord(_Record):
    """A finished shard: where it begins and ends, and where it was translated."""

    begin: int
    end: int
    host: str
    pid: int


@dataclass(frozen=True)
class InputRecord(_Record):
    """A complete input, made of so many shards."""

    shards: int


@dataclass(frozen=True)
class Started:
    """The last time that work on a shard began; `attempts` counts those of that run."""

    run: str
    attempts: int
    host: str
    pid: int


@dataclass(frozen=True)
class Job:
    """A run's output directory, and what decides the translations in it.

    Attributes:
        output: the directory, absolute.
        settings: JSON object of all that decides the translations.
    """

    output: Path
    settings: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings."""
        text = json.dumps(self.settings, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    # ---- where things are ----

    @property
    def home(self) -> Path:
        """Directory of what the run keeps about itself."""
        return self.output / BOOKKEEPING

    def result(self, source: Input) -> Path:
        """The translations of that input."""
        return self.output / source.name

    def parts(self, source: Input) -> Path:
        """Directory of the parts of that input."""
        return self.home / "parts" / source.name

    def part(self, shard: Shard) -> Path:
        """The translations of that shard."""
        return self.parts(shard.source) / f"{shard.index:05d}{shard.source.suffix}"

    def bad(self, shard: Shard) -> Path:
        """The bad records of that shard, if it has any."""
        return self.part(shard).with_suffix(".bad.jsonl")

    def record(self, shard: Shard) -> Path:
        """There once the shard is finished."""
        return self.part(shard).with_suffix(".json")

    def started(self, shard: Shard) -> Path:
        """Who began to work on that shard."""
        return self.part(shard).with_suffix(".started.json")

    def done(self, source: Input) -> Path:
        """There once all of that input is translated and joined."""
        return self.home / "done" / f"{source.name}.json"

    # ---- what is finished ----

    def finished(self, shard: Shard) -> ShardRecord | None:
        """The record of a shard that need not be done again."""
        record = ShardRecord.read(self.record(shard))
        if record is None or not self._holds(record, shard.source, self.part(shard)):
            return None
        return record if (record.begin, record.end) == (shard.begin, shard.end) else None

    def complete(self, source: Input) -> InputRecord | None:
        """The record of an input that need not be done again."""
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
        """`finished` of many shards."""
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(self.finished, shards))

    # ---- at work ----

    def begin(self, shard: Shard, run: str) -> int:
        """Note that this process works on a shard; returns how often that run has begun it."""
        path = self.started(shard)
        before = self.attempts(shard, run)
        who = Started(run, before + 1, platform.node(), os.getpid())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(who))
        return who.attempts

    def attempts(self, shard: Shard, run: str) -> int:
        """How often that run has begun that shard."""
        value = read_object(self.started(shard))
        return int(value["attempts"]) if value.get("run") == run else 0

    def check_visible(self) -> None:
        """Raise OutputError if this machine does not see the run's directory."""
        if read_object(self.home / "job.json").get("fingerprint") != self.fingerprint:
            raise OutputError(
                f"{platform.node()} does not see {self.output} as the machine that started "
                "the run does; put the output on a file system that every machine mounts under "
                "the same path."
            )


def make_settings(
    manifest: Manifest, target: str, search: SearchOptions, options: CorpusOptions
) -> dict[str, Any]:
    """All that decides a translation, as a JSON object.

    Evidence of parity, which `verify` adds to a bundle, is left out.
    """
    entry = manifest.target(target)
    return {
        "bundle": {
            "target": target,
            "files": {role: file.sha256 for role, file in sorted(entry.files.items())},
            "tokenizer": {side: file.sha256 for side, file in sorted(manifest.tokenizer.items())},
            "limits": dataclasses.asdict(manifest.limits),
        },
        "search": dataclasses.asdict(search),
        "corpus": dataclasses.asdict(options),
    }


@contextmanager
def open_job(job: Job, inputs: list[Input], force: bool) -> Iterator[None]:
    """Make, or go on in, an output directory that no other run writes to meanwhile.

    Args:
        job: what is to be done.
        inputs: of this run; results of others stay.
        force: forget what another run with other settings has done.

    Raises:
        OutputError: another run is at work, or has made the directory with other settings; an
            output is there that no run has made; the directory holds an input.
    """
    paths = [source.path for source in inputs]
    check_apart(job.output, paths)
    for source in inputs:
        check_apart(job.result(source), paths)  # a hard link
    try:
        job.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(job.home, error) from error
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
    found = read_object(path)
    if found and found.get("fingerprint") != job.fingerprint:
        others = ", ".join(_differences(found.get("settings"), job.settings)) or "its version"
        if not force:
            raise OutputError(
                f"{job.output} has a run with other settings ({others}); use those, choose "
                "another --output, or add --force to translate everything anew."
            )
        log.warning("%s: translated anew, with other settings (%s)", job.output, others)
        shutil.rmtree(job.home / "parts", ignore_errors=True)
    value = {"format_version": _FORMAT_VERSION, "created_by": f"translate-trt {version()}"}
    write_json(path, {**value, "fingerprint": job.fingerprint, "settings": job.settings})


def _remove_other_results(job: Job) -> None:
    """Remove what a run with other settings has made, as that of this run is complete.

    So results of two do not stay beside each other; until then, each is replaced by its new one.
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
    """`beam_size 4 there, 5 here` for each value that differs."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}".strip("."))
    elif there != here:
        short = name.partition(".")[2]
        if short.startswith(("files", "tokenizer")):
            yield f"another {short.replace('.', ' ')}"
        else:
            yield f"{short} {there} there, {here} here"


def _check_result(job: Job, source: Input, force: bool) -> None:
    """Refuse to replace a file that no run has made; say that an input has changed.

    What a run that was ended while it joined has left is removed.
    """
    result = job.result(source)
    clear_leftovers(result)
    clear_leftovers(job.output / source.bad_name)
    record = InputRecord.read(job.done(source))
    if job.complete(source) is not None:  # a run was ended before it had removed all parts
        shutil.rmtree(job.parts(source), ignore_errors=True)
    # A run that was ended as it joined has parts still, and perhaps no record of its output.
    if result.exists() and not job.parts(source).exists():
        if record is None:
            raise OutputError(
                f"{result} exists, and no run made it; move it away, or choose another --output."
            )
        if not _is_of(record, result) and not force:
            raise OutputError(
                f"{result} has been changed since it was translated; move it away, choose another "
                "--output, or add --force to replace it."
            )
    if record is not None and (record.size, record.mtime_ns) != (source.size, source.mtime_ns):
        log.warning("%s has changed since it was translated; it is translated anew", source.path)


def read_object(path: Path) -> dict[str, Any]:
    """That JSON object; an empty one if there is no file, or something else is in it."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            return value
    return {}


def file_hash(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return sha256_of_file(path)[0]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error

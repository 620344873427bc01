"""What earlier builds left: whole engines, and TensorRT's timings of kernels.

Every file begins with the SHA-256 of the rest and is written beside its place and renamed into it,
so that a reader finds a whole file, the old one or none, whoever else is building.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.backends.engines import EngineRecord
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import BundleError, OutputError
from translate_trt.runtime.io.atomic_files import clear_leftovers, write_bytes_atomically

log = logging.getLogger("translate_trt")

# Raise it when `Engine` or what a key stands for changes: old entries are then never looked at.
_FORMAT = 1
_DIGEST = 64  # hexadecimal digits


@dataclass(frozen=True)
class Engine:
    """A built engine.

    Attributes:
        plan: what TensorRT deserializes.
        record: for the manifest.
        log: what the builder said, without its notes on single layers.
        cached: it was not built now but taken from the cache.
    """

    plan: bytes
    record: EngineRecord
    log: str
    cached: bool = False


def engine_key(graph: bytes, request: dict[str, object]) -> str:
    """Name of an engine: SHA-256 over the graph and all that decides what is made of it.

    Args:
        graph: the ONNX file.
        request: package, version, system, architecture, options and profiles, as JSON knows them.
    """
    description = json.dumps([_FORMAT, request], sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(description.encode())
    digest.update(b"\0")
    digest.update(graph)
    return digest.hexdigest()


def load(path: Path) -> bytes | None:
    """The content of a file that `store` wrote; None if it is not there or was damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read %s (%s); building anew.", path, error.strerror)
        return None
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(content).hexdigest().encode() != digest:
        log.warning("%s is damaged; building anew.", path)
        return None
    return content


def store(path: Path, content: bytes) -> None:
    """Keep content for `load`. A cache that cannot be written costs time, not the export."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(path)
        write_bytes_atomically(path, hashlib.sha256(content).hexdigest().encode() + content)
    except (OSError, OutputError) as error:
        log.warning("the engine cache is not used: %s", error)


def load_engine(directory: Path, key: str) -> Engine | None:
    """The engine of that key; None if there is none that is whole."""
    path = directory / f"{key}.engine"
    content = load(path)
    if content is None:
        return None
    head, _, plan = content.partition(b"\n")
    try:
        fields = Fields(json.loads(head), path)
        record = EngineRecord.from_json(fields.object("record"))
        return Engine(plan, record, fields.text("log"), cached=True)
    except (BundleError, ValueError) as error:
        log.warning("%s is not an entry of this version (%s); building anew.", path, error)
        return None


def store_engine(directory: Path, key: str, engine: Engine) -> None:
    """Keep an engine under that key."""
    head = json.dumps({"record": engine.record.to_json(), "log": engine.log})
    store(directory / f"{key}.engine", head.encode() + b"\n" + engine.plan)

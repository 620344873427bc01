"""Cache of engines (runtime/io/cache_files.py)."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.backends.engines import EngineRecord
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.io.cache_files import load_cached, store_cached

log = logging.getLogger("translate_trt")

# Increment when `Engine` or the meaning of a key changes; old entries are then ignored.
_FORMAT = 1


@dataclass(frozen=True)
class Engine:
    """Built engine.

    Attributes:
        plan: Serialized engine.
        record: Record for the manifest.
        log: Messages of the builder, without those on single layers.
        cached: Whether the engine came from the cache.
    """

    plan: bytes
    record: EngineRecord
    log: str
    cached: bool = False


def engine_key(graph: bytes, request: dict[str, object]) -> str:
    """Return the cache key of an engine, a SHA-256.

    Args:
        graph: Content of the ONNX file.
        request: Package, version, system, architecture, options and profiles as JSON values.
    """
    description = json.dumps([_FORMAT, request], sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(description.encode())
    digest.update(b"\0")
    digest.update(graph)
    return digest.hexdigest()


def load_engine(directory: Path, key: str) -> Engine | None:
    """Load the engine of a key; None if it is missing or damaged."""
    path = directory / f"{key}.engine"
    content = load_cached(path)
    if content is None:
        return None
    head, _, plan = content.partition(b"\n")
    try:
        fields = Fields(json.loads(head), path)
        record = EngineRecord.from_json(fields.object("record"))
        return Engine(plan, record, fields.text("log"), cached=True)
    except (BundleError, ValueError) as error:
        log.warning("%s is not an entry of this version (%s); rebuilding.", path, error)
        return None


def store_engine(directory: Path, key: str, engine: Engine) -> None:
    """Store an engine under a key."""
    head = json.dumps({"record": engine.record.to_json(), "log": engine.log})
    store_cached(directory / f"{key}.engine", head.encode() + b"\n" + engine.plan)

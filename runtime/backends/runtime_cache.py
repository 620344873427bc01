"""Kernels that TensorRT-RTX compiled, stored for later processes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Hashable
from pathlib import Path
from threading import Lock
from typing import Any

from translate_trt.runtime.backends.nvidia_driver import driver_version, find_gpu
from translate_trt.runtime.io.cache_files import engine_directory, load_cached, store_cached
from translate_trt.runtime.io.hashing import sha256_of_file

log = logging.getLogger("translate_trt")

# Increment when the meaning of a file changes; old files are then ignored.
_FORMAT = 1


def runtime_cache_path(engine: Path, version: str, device: int = 0) -> Path | None:
    """Return the file for the kernels of an engine on a GPU.

    Args:
        engine: Path of the engine.
        version: Version of the package.
        device: Index of the GPU.

    Returns:
        The path; None without a cache directory or a GPU.
    """
    directory, gpu, driver = engine_directory(), find_gpu(device), driver_version()
    if directory is None or gpu is None or driver is None:
        return None
    values = [_FORMAT, sha256_of_file(engine)[0], version, driver, *vars(gpu).values()]
    key = hashlib.sha256(json.dumps(values).encode()).hexdigest()
    return directory / f"kernels-{key}.cache"


class RuntimeCache:
    """IRuntimeCache of an engine, shared by its contexts. Thread-safe.

    Without a stored cache, every process compiles the kernels of every profile again. TensorRT-RTX
    itself refuses kernels of another version, GPU or driver; such a file is replaced.

    Args:
        path: File of the cache; None to share kernels within this process only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._creating, self._storing = Lock(), Lock()
        self._cache: Any = None
        self._stored = b""  # digest of the stored content
        self._compiled: set[Hashable] = set()
        self._changed = False

    def attach(self, config: Any) -> None:
        """Give the cache to the IRuntimeConfig of a new context; a CUDA context must be current."""
        with self._creating:
            if self._cache is None:
                self._cache = config.create_runtime_cache()
                self._load()
        if self._cache is None or not config.set_runtime_cache(self._cache):
            log.warning("TensorRT-RTX takes no runtime cache; it compiles kernels anew.")

    def _load(self) -> None:
        content = None if self._path is None else load_cached(self._path)
        if content is None or self._cache is None:
            return
        if self._cache.deserialize(content):
            self._stored = hashlib.sha256(content).digest()
            log.info("loaded compiled kernels from %s", self._path)
        else:
            log.warning("%s is of another GPU, driver or version; it is ignored.", self._path)

    def ran(self, shapes: Hashable) -> None:
        """Record that a context ran with these shapes, for which it may have compiled kernels."""
        if shapes not in self._compiled:
            self._compiled.add(shapes)
            self._changed = True

    def store(self) -> None:
        """Store the kernels if some may have been compiled since the last call.

        Concurrent processes replace each other's files, each of them whole.
        """
        if self._path is None or self._cache is None or not self._changed:
            return
        # The other thread stores nearly the same kernels. Waiting for it could be waiting for this
        # thread, because the garbage collector may close a translator anywhere.
        if not self._storing.acquire(blocking=False):
            return
        try:
            self._changed = False
            memory = self._cache.serialize()
            content = b"" if memory is None else bytes(memory)
            digest = hashlib.sha256(content).digest()
            if not content or digest == self._stored:
                return
            if store_cached(self._path, content):
                self._stored = digest
            else:
                self._path = None  # one warning is enough
        except (RuntimeError, MemoryError) as error:  # the kernels themselves run all the same
            log.warning("compiled kernels are not stored: %s", error)
            self._path = None
        finally:
            self._storing.release()

"""Cubins of kernels, compiled or from the cache of engines."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from translate_trt.runtime import gpu
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.gpu.cubins import Cubin, Specialization, compile_kernels
from translate_trt.runtime.io.cache_files import load_cached, store_cached

log = logging.getLogger("translate_trt")

# Increment when the meaning of an entry changes; old entries are then ignored.
_FORMAT = 1


def load_or_compile(
    kernels: Iterable[Specialization], architectures: Sequence[int], directory: Path | None
) -> dict[tuple[Specialization, int], Cubin]:
    """Load cubins from the cache, or compile them.

    Args:
        kernels: The kernels.
        architectures: Compute capabilities, times ten.
        directory: Directory of the cache; None for no cache.

    Returns:
        Cubins by kernel and architecture.
    """
    cubins: dict[tuple[Specialization, int], Cubin] = {}
    missing = []
    versions = made_by()
    for kernel in kernels:
        loaded = {
            number: cubin
            for number in architectures
            if directory is not None
            and (cubin := _load(directory / _name(kernel, number, versions)))
        }
        if len(loaded) < len(architectures):
            missing.append(kernel)
        cubins |= {(kernel, number): cubin for number, cubin in loaded.items()}
    if missing:
        count = len(missing) * len(architectures)
        log.info("compiling %d kernels for %d GPUs, %d cubins", len(missing), len(architectures),
                 count)  # fmt: skip
        compiled = compile_kernels(missing, architectures, min(available_cores(), count))
        for (kernel, number), cubin in compiled.items():
            if directory is not None:
                _store(directory / _name(kernel, number, versions), cubin)
        cubins |= compiled
    return cubins


def made_by() -> list[str | int]:
    """Return versions of entries, of Triton, and of all kernels, which call each other."""
    sources = hashlib.sha256()
    for source in sorted(Path(gpu.__path__[0]).glob("*.py")):
        sources.update(source.read_bytes())
    return [_FORMAT, importlib.metadata.version("triton"), sources.hexdigest()]


def _name(kernel: Specialization, architecture: int, versions: Sequence[str | int]) -> str:
    """File name of an entry: a hash of all that decides what the compiler makes of a kernel."""
    description = asdict(kernel) | {"aligned": sorted(kernel.aligned)}
    key = json.dumps([*versions, architecture, description])
    return f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"


def _load(path: Path) -> Cubin | None:
    content = load_cached(path)
    if content is None:
        return None
    head, _, binary = content.partition(b"\n")
    fields = json.loads(head)
    parameters = tuple((name, kind) for name, kind in fields.pop("parameters"))
    return Cubin(binary=binary, parameters=parameters, **fields)


def _store(path: Path, cubin: Cubin) -> None:
    fields = asdict(cubin)
    binary = fields.pop("binary")
    store_cached(path, json.dumps(fields).encode() + b"\n" + binary)

"""Cache of what tests compile and trace, kept over runs in .cache/tests.

A key has everything that the content follows from: the sources that make it, the versions of the
packages they use, and the values they are called with.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import re
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.paths import ROOT

FOLDER = ROOT / ".cache/tests"

#: Days that an entry stays after the last run that used it.
DAYS = 7

#: Bytes of all entries; every change of the sources adds new ones.
MOST_BYTES = 2**30

_PACKAGES = (
    "translate-trt", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "numpy",
    "sentencepiece", "safetensors", "tensorrt", "tensorrt-rtx",
)  # fmt: skip
_OWN = re.compile(r"(translate_trt|support)\.")


def _start_of_process() -> float:
    """Return the time before which this process had imported nothing."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return time.time() - 10  # conftest.py imports some of the sources before this module


_START = _start_of_process()


class DiskCache:
    """Files and folders by key. Only complete and undamaged entries are found.

    Args:
        folder: Folder of the entries, created on first use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, out: Path) -> bool:
        """Write an entry's content to a path; return False if there is none.

        The content is a copy, so a test that changes it damages its own run at most.
        """
        path = self._folder / name
        try:
            content = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return False
        digest, archive = content[:32], content[32:]
        if hashlib.sha256(archive).digest() != digest:
            return False
        with (
            tempfile.TemporaryDirectory(dir=out.parent) as folder,
            tarfile.open(fileobj=io.BytesIO(archive)) as tar,
        ):
            # The default of Python 3.14, which the first releases of 3.11 do not have.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(folder, **safe)
            Path(folder, "content").rename(out)
        return True

    def write(self, name: str, made: Path) -> None:
        """Keep a file or folder. The entry appears complete or not at all."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(made, "content")
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{uuid.uuid4()}.partial"
        content = archive.getvalue()
        partial.write_bytes(hashlib.sha256(content).digest() + content)
        partial.replace(self._folder / name)

    def prune(self) -> None:
        """Delete entries that no run has used for `DAYS`, and the oldest beyond `MOST_BYTES`."""
        size, oldest = 0, time.time() - DAYS * 86400
        for used, bytes_, path in sorted(self._entries(), reverse=True):
            size += bytes_
            if used < oldest or size > MOST_BYTES:
                path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        for path in self._folder.glob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another run has deleted it
                continue
            yield status.st_mtime, status.st_size, path


def describe_makers(modules: Sequence[str], apart: Sequence[str] = ()) -> str | None:
    """Hash modules of this repository, the modules they import, and the versions of packages.

    Args:
        modules: Modules whose code decides what is made.
        apart: Modules to leave out, with what only they import.

    Returns:
        The hash; None if a source is newer than this process, which may have imported another.
    """
    sources: dict[Path, str] = {}
    for module in modules:
        sources |= _sources(module, tuple(apart))
    if any(path.stat().st_mtime > _START for path in sources):
        return None
    return hash_text((sorted(sources.values()), _versions()))


def hash_text(value: object) -> str:
    """Hash a value whose `repr` is the same in all processes."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:40]


def hash_files(path: Path) -> str:
    """Hash a file, or the names and contents of a folder's files, not those of its folders."""
    files = sorted(x for x in path.iterdir() if x.is_file()) if path.is_dir() else [path]
    contents = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    return hash_text(contents)


@functools.cache
def _versions() -> list[tuple[str, str]]:
    found = [("python", platform.python_version()), ("machine", platform.machine())]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            found.append((package, ""))
    return found


@functools.cache
def _sources(module: str, apart: tuple[str, ...] = ()) -> dict[Path, str]:
    """Map all files that a module's behaviour depends on to their names and hashes."""
    found: dict[Path, str] = {}
    pending, seen = [module], {module}
    while pending:
        name = pending.pop()
        file = _file(name)
        if file is None:  # a function or class of the module before the last dot
            continue
        content = file.read_bytes()
        found[file] = f"{name} {hashlib.sha256(content).hexdigest()}"
        imported = _imports(content)
        if "importlib.resources" in imported:
            found |= {
                path: f"{path.name} {hash_files(path)}"
                for path in file.parent.rglob("*")
                if path.is_file() and path.suffix not in (".py", ".pyc", ".so")
            }
        fresh = {one for one in imported if _OWN.match(one)}.difference(seen, apart)
        seen |= fresh
        pending.extend(fresh)
    return found


def _imports(source: bytes) -> set[str]:
    """Names after `import` and `from`, and what `from` imports as if it were a module."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            # A package that only leads to its modules would bring all that it exports.
            if not all(map(_file, parts)):
                parts.add(node.module)
            names |= parts
    return names


def _file(module: str) -> Path | None:
    """Find a module's file without importing the module; None if there is none."""
    top, *rest = module.split(".")
    if top == "translate_trt" and rest:
        (folder,) = _package_path(f"translate_trt.{rest.pop(0)}")
    elif top == "support":
        folder = Path(__file__).parent
    else:
        return None
    path = folder.joinpath(*rest)
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


@functools.cache
def _package_path(package: str) -> list[Path]:
    found = importlib.util.find_spec(package)
    return [Path(x) for x in (found and found.submodule_search_locations) or ()]

"""Output checks: no output overlaps an input or replaces files of other programs."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.compression import beginning, compression_of
from translate_trt.runtime.io.lines import STDIN, display_name
from translate_trt.runtime.io.locks import TEMPORARY

_SAMPLE_BYTES = 1 << 24
_DECOMPRESSED_BYTES = 1 << 20


_Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True)
class Kind:
    """A kind of directory that --force may replace.

    Attributes:
        name: Name in messages, such as "bundle".
        command: Command that creates such directories.
        files: Returns the relative paths (with /) of all files that the command wrote to a
            directory, or None if the directory is of another kind.
    """

    name: str
    command: str
    files: Callable[[Path], Collection[str] | None]


def object_in(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that any program may have written; empty if it has none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


# ---- outputs and inputs ----


def check_apart(output: Path, inputs: Iterable[Path | str | None]) -> None:
    """Refuse an output that is an input, contains one, or lies inside one.

    Files are compared by inode, so links and other spellings of a path do not matter. Devices and
    pipes are ignored.

    Args:
        output: Path of a file or directory, which need not exist.
        inputs: Files and directories; "-" is standard input, and None is ignored.

    Raises:
        OutputError: The output overlaps an input.
    """
    around = list(_identities(output))
    own = _identity(output)
    for path in inputs:
        if path is None:
            continue
        found = _identity(path)
        if found is None:  # missing, or a device
            continue
        name = display_name(str(path))
        if found == own:
            raise OutputError(f"the output {output} is the input {name}; choose another path.")
        # An output that does not exist yet has a path but no inode.
        contains = str(path) != STDIN and (
            output.resolve() in Path(path).resolve().parents
            or (own is not None and own in _identities(Path(path)))
        )
        if contains:
            raise OutputError(
                f"the output {output} would replace the input {name}, which lies in it; choose "
                "another path."
            )
        if found in around:
            raise OutputError(
                f"the output {output} lies in the input {name}; choose a path outside of it."
            )


def check_standard_output(inputs: Iterable[Path | str | None]) -> None:
    """Refuse standard output that is appended to an input, which would grow forever.

    Raises:
        OutputError: Standard output is an input.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or a stream in memory
        return
    own = _regular(os.fstat(descriptor))
    for path in inputs:
        if path is not None and own is not None and _identity(path) == own:
            raise OutputError(
                f"standard output is the input {display_name(str(path))}; write into another file."
            )


def _identity(path: Path | str) -> _Identity | None:
    """Return device and inode of a file or directory; None if it is missing or something else."""
    try:
        if str(path) == STDIN:
            return _regular(os.fstat(sys.stdin.fileno()))
        return _regular(os.stat(path))
    except (AttributeError, OSError, ValueError):
        return None


def _regular(found: os.stat_result) -> _Identity | None:
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return found.st_dev, found.st_ino
    return None


def _identities(path: Path) -> Iterator[_Identity]:
    """Iterate over the identities of a path and of all its parent directories."""
    path = path.resolve()
    for one in (path, *path.parents):
        if (found := _identity(one)) is not None:
            yield found


# ---- replacement of existing outputs ----


def check_directory(path: Path, force: bool, kind: Kind | None) -> None:
    """Refuse to replace a directory unless forced, and unless all its files are of the kind.

    Args:
        path: Path of the output directory.
        force: An existing directory may be replaced.
        kind: Kind of directory that may be replaced; None allows only an empty one.

    Raises:
        OutputError: The directory may not be replaced.
    """
    if not path.exists():
        return
    if not force:
        raise OutputError(f"{path} exists; choose another path or add --force.")
    if not path.is_dir():
        raise OutputError(f"{path} is a file, not a directory; choose another path.")
    if not any(path.iterdir()):
        return
    made = kind.files(path) if kind is not None else None
    if made is None or kind is None:
        what = f"no {kind.name} that `{kind.command}` made" if kind else "not empty"
        raise OutputError(f"{path} is {what}, so --force does not replace it; choose another path.")
    if (other := foreign_file(path, made)) is not None:
        raise OutputError(
            f"{path / other} is not part of the {kind.name}, and --force would delete it; "
            "move it away, or choose another path."
        )


def foreign_file(directory: Path, made: Collection[str]) -> str | None:
    """Return the first file that is not in `made`, ignoring temporary files and caches."""
    known = set(made)
    for folder, directories, names in os.walk(directory, onerror=_refuse):
        relative_folder = Path(folder).relative_to(directory)
        links = [name for name in directories if Path(folder, name).is_symlink()]
        # Temporary directories of killed processes are ignored.
        directories[:] = [
            name for name in directories if not TEMPORARY.fullmatch(name) and name not in links
        ]
        for name in sorted([*names, *links]):
            relative = (relative_folder / name).as_posix()
            cached = relative_folder.name == "__pycache__" and name.endswith(".pyc")
            if relative not in known and not TEMPORARY.fullmatch(name) and not cached:
                return relative
    return None


def _refuse(error: OSError) -> None:
    raise OutputError(f"cannot list {error.filename}: {error.strerror}.") from error


def check_file(path: Path, force: bool, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Refuse to replace a file unless forced, and unless it is of the kind.

    Args:
        path: Path of the output file.
        force: An existing file may be replaced.
        is_ours: Recognizes a file of the kind by its first megabytes.
        what: The kind of file in messages, such as "a picture of translate-trt".

    Raises:
        OutputError: The file may not be replaced, or its directory does not exist.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a directory; name a file.")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory; create it, or choose another path.")
    if not path.exists():
        return
    if not path.is_file():
        raise OutputError(f"{path} is a device or a pipe, not a file; choose another path.")
    if not force:
        raise OutputError(f"{path} exists; choose another path or add --force.")
    try:
        with path.open("rb") as file:
            sample = file.read(_SAMPLE_BYTES)
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}.") from error
    if sample and not is_ours(sample):
        raise OutputError(
            f"{path} is not {what}, so --force does not replace it; choose another path."
        )


def is_text(sample: bytes) -> bool:
    """Return True if the beginning of a file is UTF-8 without NUL bytes, compressed or not."""
    size = _SAMPLE_BYTES
    if compression_of(sample) is not None:
        size = _DECOMPRESSED_BYTES
        found = beginning(sample, size)
        if found is None:
            return False
        sample = found
    cut = len(sample) == size
    try:
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(sample) - 4:
            return False
    return b"\0" not in sample

"""Writing files and directories that are either complete or not there."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from translate_trt.runtime.errors import OutputError, TranslateTrtError

log = logging.getLogger("translate_trt")

# What only a write can raise, whatever else the code in between reads.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM}

# A directory with one of these is a bundle, a checkpoint or a model repository: ours, so that
# --force may replace it.
_OUR_FILES = ("manifest.json", "config.json", "repository.json")


def output_error(path: Path | str, error: OSError) -> OutputError:
    """That operating system error on writing `path`, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        mend = "Free some space or choose a path on another disk."
    elif error.errno in (*_NOT_ALLOWED, errno.EROFS):
        mend = "Choose a path that you may write to."
    else:
        mend = "Choose another path."
    return OutputError(f"cannot write {path}: {error.strerror or error}. {mend}")


def write_text_atomically(path: Path, text: str) -> None:
    """Write `path` in UTF-8 so that a reader sees the old content or the new, never a part of it.

    Args:
        path: replaced if it exists; its directory must exist.
        text: written as it is, line ends untranslated.

    Raises:
        OutputError: the disk is full, or the path may not be written.
    """
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """`write_text_atomically` of what is not text, such as a picture.

    Raises:
        OutputError: the disk is full, or the path may not be written.
    """
    with _output_errors(path), new_file(path) as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears at `path` whole, when the block ends without error, or not at all.

    The block writes into the yielded temporary file, which lies beside `path`.

    Args:
        path: replaced if it exists; its directory must exist.

    Raises:
        OutputError: the disk is full, or the path may not be written.
    """
    temporary = _sibling(path, "partial")
    with _output_errors(path):
        # "x" and not tempfile: the file then has the mode that the user's umask gives.
        file = temporary.open("xb")
    try:
        with _output_errors(path, inside=temporary), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _output_errors(path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically, ending in a newline.

    Raises:
        OutputError: as for `write_text_atomically`.
        ValueError: a number is infinite or not a number, which JSON does not know.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomically(path, text + "\n")


@contextmanager
def new_directory(path: Path, force: bool = False) -> Iterator[Path]:
    """A directory that appears at `path` whole, when the block ends without error, or not at all.

    The block fills the yielded temporary directory, which lies beside `path`. With `force` an
    existing directory is moved aside only then, and removed after the new one has taken its
    place: it survives any failure, Ctrl-C included.

    Args:
        path: where the directory is to be; missing parents are made, symbolic links followed.
        force: replace a bundle, a checkpoint, a model repository or an empty directory that is
            there.

    Raises:
        OutputError: `path` exists and may not be replaced (known before the block runs), the disk
            is full, or the path may not be written.
    """
    path = path.resolve()
    _check_replaceable(path, force)
    temporary = _sibling(path, "partial")
    with _output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        with _output_errors(path, inside=temporary):
            yield temporary
        with _output_errors(path):
            _sync_tree(temporary)
            _move_into_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _sibling(path: Path, purpose: str) -> Path:
    """A hidden, unused name beside `path`: on the same file system, so that a rename is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{purpose}")


def _check_replaceable(path: Path, force: bool) -> None:
    if not path.exists():
        return
    if not force:
        raise OutputError(f"{path} exists; choose another path or add --force.")
    if not path.is_dir():
        raise OutputError(f"{path} is a file, not a directory; choose another path.")
    ours = any((path / name).is_file() for name in _OUR_FILES)
    if not ours and any(path.iterdir()):
        raise OutputError(
            f"{path} is neither a bundle nor a checkpoint nor a model repository (it has no "
            f"{', '.join(_OUR_FILES)}), so --force does not replace it; choose another path."
        )


@contextmanager
def _output_errors(path: Path, inside: Path | None = None) -> Iterator[None]:
    """Turn failed writes into OutputError; with `inside`, of other people's code in the block.

    That code also reads files elsewhere, so that only errors which are surely of writing, or of a
    path inside that directory, are taken.
    """
    try:
        yield
    except TranslateTrtError:
        raise
    except OSError as error:
        denied_here = error.errno in _NOT_ALLOWED and _lies_in(error.filename, inside)
        if inside is None or error.errno in _NO_ROOM or denied_here:
            raise output_error(path, error) from error
        raise
    except Exception as error:
        # safetensors and SentencePiece tell of a full disk in the text of their own exceptions.
        if os.strerror(errno.ENOSPC) in str(error):
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise output_error(path, full) from error
        raise


def _lies_in(filename: object, directory: Path | None) -> bool:
    """True if that file name of an OSError (None for some) is in the directory."""
    if directory is None or not isinstance(filename, str):
        return False
    return Path(filename).absolute().is_relative_to(directory)


def _sync_tree(directory: Path) -> None:
    """Hand everything in the directory to the disk, so that the rename cannot come before it."""
    for current, _, names in os.walk(directory):
        for name in names:
            path = Path(current, name)
            if path.is_file():
                _sync_file(path)
        _sync_directory(Path(current))


def _sync_file(path: Path) -> None:
    # Windows syncs only what is open for writing; elsewhere that would fail on read-only files.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    # Some file systems refuse this for directories; the files in it are safe on the disk anyhow.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(new: Path, path: Path) -> None:
    """Rename `new` to `path`; what was there before is removed last."""
    if not path.exists():
        os.rename(new, path)
        _sync_directory(path.parent)
        return
    old = _sibling(path, "old")
    try:
        os.rename(path, old)
        os.rename(new, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise
    _sync_directory(path.parent)
    try:
        shutil.rmtree(old)
    except OSError as error:
        log.warning("%s is in place, but the old one could not be removed: %s", path, error)

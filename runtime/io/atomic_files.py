"""Atomic files and directories (docs/architecture.md, Outputs)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import json
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from translate_trt.runtime.errors import OutputError, TranslateTrtError
from translate_trt.runtime.io.locks import TEMPORARY, abandoned, held, lock_beside, locked
from translate_trt.runtime.io.outputs import Kind, check_apart, check_directory, check_file

log = logging.getLogger("translate_trt")

# Error numbers that only writing can raise.
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM}

# Within a directory: the new files once they count, and the same files while they are moved.
_SWITCH, _MOVING = ".switch", ".moving"

# Constants of Linux's renameat2: the working directory, and the flag that exchanges two names.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def output_error(path: Path | str, error: OSError) -> OutputError:
    """Convert an OSError on writing `path` to an OutputError with a remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free some space or choose a path on another disk."
    elif error.errno in (*_NOT_ALLOWED, errno.EROFS):
        remedy = "Choose a path that you may write to."
    else:
        remedy = "Choose another path."
    return OutputError(f"cannot write {path}: {error.strerror or error}. {remedy}")


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file, which is replaced if it exists; readers see the old content or the new.

    Raises:
        OutputError: The disk is full, or the path is not writable.
    """
    with output_errors(path), new_file(path) as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that appears at `path` when the block ends without an error.

    The block writes to the yielded temporary file, which lies beside `path`.

    Args:
        path: Path of the file, which is replaced if it exists. Its directory must exist.

    Raises:
        OutputError: The disk is full, or the path is not writable.
    """
    with ExitStack() as stack:
        with output_errors(path):
            temporary = stack.enter_context(_partial(path, _make_file))
            file = stack.enter_context(temporary.open("r+b"))
        with output_errors(path, inside=temporary), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with output_errors(path):
            os.replace(temporary, path)
    _sync_directory(path.parent)


def _make_file(path: Path) -> None:
    # Unlike tempfile, mode "x" respects the user's umask.
    path.open("xb").close()


@contextmanager
def _partial(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Create a temporary file or directory beside `path` and remove it after the block.

    A lock distinguishes it from the leftovers of killed processes.
    """
    while True:
        temporary = _sibling(path, "partial")
        make(temporary)
        with held(temporary) as ours:
            if not ours:
                continue
            try:
                yield temporary
            finally:
                _remove(temporary)
            return


def clear_leftovers(path: Path) -> None:
    """Remove temporary files of `path` that killed processes have left."""
    _clear(path.parent.glob(f".{glob.escape(path.name)}.*"))


def clear_leftovers_in(directory: Path) -> None:
    """Remove temporary files in a directory that killed processes have left.

    A directory that one was replacing gets its name back.
    """
    for path in directory.glob(".*.old"):
        if TEMPORARY.fullmatch(path.name):
            _put_back(directory / path.name[1:].rsplit(".", 2)[0])
    _clear(directory.glob(".*"))


def _clear(paths: Iterable[Path]) -> None:
    for path in paths:
        if TEMPORARY.fullmatch(path.name):
            with abandoned(path) as ours:
                if ours:
                    _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or a directory if it exists, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory; readers see all of it or nothing, even if the removal is interrupted."""
    garbage = _sibling(path, "partial")
    os.rename(path, garbage)
    shutil.rmtree(garbage)


def write_json(path: Path, value: object) -> None:
    """Write a value atomically as indented JSON with a final newline.

    Raises:
        OutputError: See `write_bytes_atomically`.
        ValueError: A number is infinite or NaN, which JSON does not support.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes_atomically(path, f"{text}\n".encode())


@contextmanager
def claimed_file(
    path: Path,
    force: bool,
    is_ours: Callable[[bytes], bool],
    what: str,
    inputs: Iterable[Path | str | None],
) -> Iterator[None]:
    """Lock an output file for the block that computes and writes it.

    Args:
        path: Path of the file, which the block must write atomically (`new_file`).
        force: Replace an existing file.
        is_ours: Recognizes a file of the kind by its first megabytes.
        what: The kind of file in messages, such as "a shortlist".
        inputs: Files that the content is computed from.

    Raises:
        OutputError: The file exists and may not be replaced, overlaps an input, or is being written
            by another process.
    """
    if not path.is_dir():  # `check_file` reports a directory
        check_apart(path, inputs)
    check_file(path, force, is_ours, what)
    with locked(lock_beside(path), path):
        check_file(path, force, is_ours, what)  # another process may have created it meanwhile
        clear_leftovers(path)
        yield


@contextmanager
def new_directory(
    path: Path,
    force: bool = False,
    *,
    kind: Kind | None = None,
    inputs: Iterable[Path | str | None] = (),
) -> Iterator[Path]:
    """Create a directory that appears at `path` when the block ends without an error.

    The block fills the yielded temporary directory, which lies beside `path`. With `force`, an
    existing directory is replaced at the end, in one step on systems that can exchange two names,
    and removed afterwards: it survives any failure, Ctrl-C and SIGKILL included. During the block
    no other process can create the same directory.

    Args:
        path: Path of the directory. Missing parents are created, symbolic links followed.
        force: Replace an existing directory that is empty or of the kind.
        kind: Kind of directory that may be replaced.
        inputs: Files and directories that the content is computed from.

    Raises:
        OutputError: `path` exists and may not be replaced, or overlaps an input (both are checked
            before the block); another process is writing it; the disk is full; or the path is not
            writable.
    """
    path = path.resolve()
    inputs = tuple(inputs)
    check_apart(path, inputs)
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_beside(path), path), ExitStack() as stack:
        with output_errors(path):
            _put_back(path)
            check_directory(path, force, kind)
            clear_leftovers(path)
            temporary = stack.enter_context(_partial(path, Path.mkdir))
        with output_errors(path, inside=temporary):
            yield temporary
        with output_errors(path):
            _sync_tree(temporary)
            check_directory(path, force, kind)  # files may have been added meanwhile
            _move_into_place(temporary, path)


@contextmanager
def new_contents(
    directory: Path, obsolete: Callable[[Path], Iterable[Path]], last: str
) -> Iterator[Path]:
    """Replace files of a directory atomically when the block ends without an error.

    The block fills the yielded temporary directory, and its renaming commits the change. If the
    process is killed after that, `finish_switch` completes the change when the directory is opened
    next.

    Args:
        directory: Directory to change; this process holds its lock.
        obsolete: Returns the files and subdirectories of a directory to remove, in order.
        last: Name of the new file to move last, which readers look at first.

    Raises:
        OutputError: The disk is full, or the directory is not writable.
    """
    with ExitStack() as stack:
        with output_errors(directory):
            new = stack.enter_context(_partial(directory / "new", Path.mkdir))
        with output_errors(directory, inside=new):
            yield new
        with output_errors(directory):
            _sync_tree(new)
            os.rename(new, directory / _SWITCH)
            _sync_directory(directory)
            finish_switch(directory, obsolete, last)


def finish_switch(directory: Path, obsolete: Callable[[Path], Iterable[Path]], last: str) -> None:
    """Complete an interrupted `new_contents`, if any."""
    switch, moving = directory / _SWITCH, directory / _MOVING
    if switch.is_dir():
        for path in obsolete(directory):
            if path.is_dir():
                remove_directory(path)
            else:
                path.unlink(missing_ok=True)
        os.rename(switch, moving)
    if moving.is_dir():
        for path in sorted(moving.iterdir(), key=lambda path: (path.name == last, path.name)):
            os.replace(path, directory / path.name)
        _sync_directory(directory)
        moving.rmdir()


def is_switching(directory: Path) -> bool:
    """Return True if the last phase of a `new_contents` is in progress or was interrupted."""
    return (directory / _SWITCH).is_dir() or (directory / _MOVING).is_dir()


def _sibling(path: Path, purpose: str) -> Path:
    """Return an unused hidden name beside `path`, where a rename to `path` is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{purpose}")


@contextmanager
def output_errors(path: Path, inside: Path | None = None) -> Iterator[None]:
    """Convert failed writes to OutputError.

    Args:
        path: The output, for messages.
        inside: Directory that the caller's code in the block writes to. That code may also read
            other files, so only errors that certainly come from writing are converted.
    """
    try:
        yield
    except TranslateTrtError:
        raise
    except OSError as error:
        denied_here = (
            error.errno in _NOT_ALLOWED and inside is not None and isinstance(error.filename, str)
            and Path(error.filename).absolute().is_relative_to(inside)
        )  # fmt: skip
        if inside is None or error.errno in _DISK_FULL or denied_here:
            raise output_error(path, error) from error
        raise
    except Exception as error:
        # safetensors and SentencePiece report a full disk in the text of their own exceptions.
        if os.strerror(errno.ENOSPC) in str(error):
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise output_error(path, full) from error
        raise


def _sync_tree(directory: Path) -> None:
    """Flush all files of a directory to disk before it is renamed."""
    for current, _, names in os.walk(directory):
        for name in names:
            path = Path(current, name)
            if path.is_file():
                _sync_file(path)
        _sync_directory(Path(current))


def _sync_file(path: Path) -> None:
    # Windows requires write access; elsewhere read access also works for read-only files.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    # Some file systems refuse to sync directories; the files are on disk nevertheless.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_into_place(new: Path, path: Path) -> None:
    """Rename `new` to `path`; a directory that it replaces ends up under the temporary name."""
    if not path.exists():
        os.rename(new, path)
    elif not _exchange(new, path):
        # After a crash between the two renames, `_put_back` undoes the first.
        old = _sibling(path, "old")
        try:
            os.rename(path, old)
            os.rename(new, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.rename(old, path)
            raise
        os.rename(old, new)  # removed with the temporary directory
    _sync_directory(path.parent)


def _put_back(path: Path) -> None:
    """Restore a directory if a process was killed between the two renames."""
    if path.exists():
        return
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if TEMPORARY.fullmatch(old.name) and old.is_dir():
            log.warning("%s was restored: a command was killed while replacing it", path)
            os.rename(old, path)
            return


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; return False if the system does not support it."""
    rename = getattr(_c_library(), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            return False
        raise OSError(number, os.strerror(number), str(second))
    return True


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

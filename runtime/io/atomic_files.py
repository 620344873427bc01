"""Files and directories that are either complete or not there (docs/architecture.md, Outputs)."""

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
from translate_trt.runtime.io.locks import PASSING, abandoned, held, lock_beside, locked
from translate_trt.runtime.io.outputs import Kind, check_apart, check_directory, check_file

log = logging.getLogger("translate_trt")

# What only a write can raise, whatever else the code in between reads.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM}

# Inside a directory: new files that count already, and the same while they are moved.
_SWITCH, _MOVING = ".switch", ".moving"

# Of Linux: renameat2 relative to the working directory, and its flag that exchanges both names.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


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
    with ExitStack() as stack:
        with _output_errors(path):
            temporary = stack.enter_context(_partial(path, _make_file))
            file = stack.enter_context(temporary.open("r+b"))
        with _output_errors(path, inside=temporary), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _output_errors(path):
            os.replace(temporary, path)
    _sync_directory(path.parent)


def _make_file(path: Path) -> None:
    # "x" and not tempfile: the file then has the mode that the user's umask gives.
    path.open("xb").close()


@contextmanager
def _partial(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A new file or directory of this process alone beside `path`, gone at the end if still there.

    It is held all the time, so that other processes can tell it from what a killed one has left.
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
    """Remove what killed processes that were writing `path` have left beside it."""
    _clear(path.parent.glob(f".{glob.escape(path.name)}.*"))


def clear_leftovers_in(directory: Path) -> None:
    """Remove what killed processes that were writing anything in the directory have left there."""
    _clear(directory.glob(".*"))


def _clear(paths: Iterable[Path]) -> None:
    for path in paths:
        if PASSING.fullmatch(path.name):
            with abandoned(path) as ours:
                if ours:
                    _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or a directory if it is there, and if that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Remove a directory so that a reader sees all of it or nothing, even if this is cut off."""
    garbage = _sibling(path, "partial")
    os.rename(path, garbage)
    shutil.rmtree(garbage)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically, ending in a newline.

    Raises:
        OutputError: as for `write_text_atomically`.
        ValueError: a number is infinite or not a number, which JSON does not know.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomically(path, text + "\n")


@contextmanager
def claimed_file(
    path: Path,
    force: bool,
    is_ours: Callable[[bytes], bool],
    what: str,
    inputs: Iterable[Path | str | None],
) -> Iterator[None]:
    """Be the only process that makes a file, from before the work to its end.

    Args:
        path: of the file, which the block is to write by `new_file` or in a like way.
        force: replace one that is there.
        is_ours: tells a file of the kind by its first megabytes.
        what: the kind, for messages, such as "a shortlist".
        inputs: what the content is made of.

    Raises:
        OutputError: the file exists and may not be replaced, or is not apart from the inputs;
            another process is making it.
    """
    if not path.is_dir():  # which says more than what lies in it
        check_apart(path, inputs)
    check_file(path, force, is_ours, what)
    with locked(lock_beside(path), path):
        check_file(path, force, is_ours, what)  # another process may have just finished it
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
    """A directory that appears at `path` whole, when the block ends without error, or not at all.

    The block fills the yielded temporary directory, which lies beside `path`. With `force` an
    existing directory is replaced only then, in one step where the system can exchange two
    names, and removed afterwards: it survives any failure, Ctrl-C and SIGKILL included. Meanwhile
    no other process can make the same directory.

    Args:
        path: where the directory is to be; missing parents are made, symbolic links followed.
        force: replace an empty directory, or one of the kind, that is there.
        kind: what may be replaced.
        inputs: what the content is made of.

    Raises:
        OutputError: `path` exists and may not be replaced, or is not apart from the inputs (known
            before the block runs); another process is making it; the disk is full, or the path
            may not be written.
    """
    path = path.resolve()
    inputs = tuple(inputs)
    check_apart(path, inputs)
    with _output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_beside(path), path), ExitStack() as stack:
        with _output_errors(path):
            _put_back(path)
            check_directory(path, force, kind)
            clear_leftovers(path)
            temporary = stack.enter_context(_partial(path, Path.mkdir))
        with _output_errors(path, inside=temporary):
            yield temporary
        with _output_errors(path):
            _sync_tree(temporary)
            check_directory(path, force, kind)  # someone may have put a file there meanwhile
            _move_into_place(temporary, path)


@contextmanager
def new_contents(
    directory: Path, obsolete: Callable[[Path], Iterable[Path]], last: str
) -> Iterator[Path]:
    """New files that replace others in a directory when the block ends without error, or do not.

    The block fills the yielded temporary directory. Once that is renamed, the new files count: a
    process that is killed later leaves the rest to `finish_switch`, which whoever opens the
    directory next calls.

    Args:
        directory: to change; this process holds its lock.
        obsolete: from a directory, the files and directories in it that go, in that order.
        last: of the new files, the one that readers look at first.

    Raises:
        OutputError: the disk is full, or the directory may not be written.
    """
    with ExitStack() as stack:
        with _output_errors(directory):
            new = stack.enter_context(_partial(directory / "new", Path.mkdir))
        with _output_errors(directory, inside=new):
            yield new
        with _output_errors(directory):
            _sync_tree(new)
            os.rename(new, directory / _SWITCH)
            _sync_directory(directory)
            finish_switch(directory, obsolete, last)


def finish_switch(directory: Path, obsolete: Callable[[Path], Iterable[Path]], last: str) -> None:
    """Do what is left of a `new_contents` that was cut off; nothing if there is none."""
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
    """True if the last step of a `new_contents` is under way there, or was cut off."""
    return (directory / _SWITCH).is_dir() or (directory / _MOVING).is_dir()


def _sibling(path: Path, purpose: str) -> Path:
    """A hidden, unused name beside `path`: on the same file system, so that a rename is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{purpose}")


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
    """Rename `new` to `path`; a directory that was there gets a name that is removed last."""
    if not path.exists():
        os.rename(new, path)
    elif not _exchange(new, path):
        # Between the two renames there is none; `_put_back` undoes the first one.
        old = _sibling(path, "old")
        try:
            os.rename(path, old)
            os.rename(new, path)
        except BaseException:
            if old.exists() and not path.exists():
                os.rename(old, path)
            raise
        os.rename(old, new)  # from here on it counts as a leftover
    _sync_directory(path.parent)


def _put_back(path: Path) -> None:
    """Undo what a process has left that was killed between the two renames."""
    if path.exists():
        return
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.old"):
        if PASSING.fullmatch(old.name) and old.is_dir():
            log.warning("%s is there again: a command was ended as it replaced it", path)
            os.rename(old, path)
            return


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step; False if the system cannot."""
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

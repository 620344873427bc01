"""Locks on outputs, which the system drops when a process ends, however it ends.

A lock is `flock` on a file. No lock can be left over: what a killed process leaves is a file that
nobody holds. Where a file system has no locks, commands go on without, with a warning.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from translate_trt.runtime.errors import OutputError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("translate_trt")

#: Inside a directory that a command fills in place: a run, prepared data.
LOCK = ".lock"

#: Names of what is under way beside or inside an output; a killed process leaves such files.
PASSING = re.compile(r"\..+\.(lock|[0-9a-f]{8}\.(partial|old))|\.lock")

_SECONDS_BETWEEN_ATTEMPTS = 0.05
# Never wait for the writer of a named pipe that happens to have such a name.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)


def lock_beside(path: Path) -> Path:
    """Path of the lock file for an output that is replaced as a whole."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def locked(lock: Path, output: Path, wait: float = 0.0, optional: bool = False) -> Iterator[None]:
    """Hold the only lock on an output for the time of the block.

    Args:
        lock: the lock file; its directory must exist. The file is removed at the end.
        output: what is written, for messages.
        wait: seconds to wait for another process.
        optional: go on without a lock where the file may not be made.

    Raises:
        OutputError: another process holds the lock, or the file cannot be made.
    """
    if optional and not lock.exists() and not os.access(lock.parent, os.W_OK):
        yield
        return
    descriptor = _acquire(lock, output, wait)
    try:
        yield
    finally:
        # Removed while the lock is held: whoever opened the file meanwhile notices in `_acquire`.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)


@contextmanager
def locked_directory(directory: Path, wait: float = 0.0) -> Iterator[None]:
    """Make a directory that is filled in place, and hold its lock.

    A directory that was made here and is still empty at the end is removed.

    Raises:
        OutputError: another process holds the lock, or the directory cannot be made.
    """
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(
            f"{directory} is a file, not a directory; choose another path."
        ) from error
    except OSError as error:
        raise OutputError(f"{directory} cannot be made: {error.strerror}.") from error
    try:
        with locked(directory / LOCK, directory, wait):
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # not empty
                directory.rmdir()


def _acquire(lock: Path, output: Path, wait: float) -> int:
    """A descriptor that holds the lock on the file that lies at that path now."""
    deadline = time.monotonic() + wait
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(
                f"cannot write {output}: there can be no lock file {lock}: {error.strerror}. "
                "Choose a path that you may write to."
            ) from error
        try:
            taken = take(descriptor)
            if taken is None:
                log.warning(
                    "the file system of %s has no locks: see to it that no second command writes "
                    "there", output,
                )  # fmt: skip
            if taken is not False and _is_still(descriptor, lock):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {platform.node()}".encode(), 0)
                return descriptor
            holder = os.pread(descriptor, 200, 0).decode(errors="replace")
        except OSError as error:
            os.close(descriptor)
            raise OutputError(f"cannot write {lock}: {error.strerror}.") from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if taken is False:
            if time.monotonic() >= deadline:
                who = f"process {holder}" if holder else "another process"
                raise OutputError(f"{who} is writing to {output}; wait for it, or end it.")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def take(descriptor: int) -> bool | None:
    """Lock an open file if nobody holds it; None: the file system has no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # EBADF: NFS locks only what is open for writing, which a directory never is.
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF):
            return None
        raise
    return True


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold a new file or directory, so that other processes do not take it for a leftover.

    Yields False if one of them did before it could be held.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        yield False
        return
    try:
        yield take(descriptor) is not False and _is_still(descriptor, path)
    finally:
        os.close(descriptor)


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Hold what may be a leftover; True if nobody else does, so that it may be removed."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        yield False
        return
    try:
        yield take(descriptor) is True
    finally:
        os.close(descriptor)

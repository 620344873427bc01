"""Locks on outputs, which the system releases when a process ends.

A lock is `flock` on a file, so a killed process leaves at most an unlocked file. On file systems
without locks, commands continue without locking and log a warning.
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

#: Name of the lock file inside a directory that is filled in place: a run or prepared data.
LOCK = ".lock"

#: Names of lock files and temporary files, which killed processes leave beside or in an output.
TEMPORARY = re.compile(r"\..+\.(lock|[0-9a-f]{8}\.(partial|old))|\.lock")

_SECONDS_BETWEEN_ATTEMPTS = 0.05
# Non-blocking, because a named pipe could have a matching name.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)


def lock_beside(path: Path) -> Path:
    """Return the path of the lock file of an output that is replaced as a whole."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def locked(lock: Path, output: Path, wait: float = 0.0, optional: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of an output, which is named in messages, during the block.

    Args:
        lock: Path of the lock file in an existing directory; the file is removed at the end.
        output: Path of the output.
        wait: Seconds to wait for another process.
        optional: Continue without a lock if the lock file may not be created.

    Raises:
        OutputError: Another process holds the lock, or the lock file cannot be created.
    """
    if optional and not lock.exists() and not os.access(lock.parent, os.W_OK):
        yield
        return
    descriptor = _acquire(lock, output, wait)
    try:
        yield
    finally:
        # Removed while locked: another process that has opened the file notices in `_acquire`.
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(descriptor)


@contextmanager
def locked_directory(directory: Path, wait: float = 0.0) -> Iterator[None]:
    """Create a directory that is filled in place, if necessary, and hold its lock.

    A new directory that is still empty at the end is removed.

    Raises:
        OutputError: Another process holds the lock, or the directory cannot be created.
    """
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError(
            f"{directory} is a file, not a directory; choose another path."
        ) from error
    except OSError as error:
        raise OutputError(f"{directory} cannot be created: {error.strerror}.") from error
    try:
        with locked(directory / LOCK, directory, wait):
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # not empty
                directory.rmdir()


def _acquire(lock: Path, output: Path, wait: float) -> int:
    """Open and lock the file at `lock` and return its descriptor."""
    deadline = time.monotonic() + wait
    while True:
        try:
            # A link that another user has made must not lead to a file that would be overwritten.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(lock, flags, 0o666)
        except OSError as error:
            reason, remedy = error.strerror, "Choose a path that you may write to."
            if error.errno == errno.ELOOP:
                reason, remedy = "it is a symbolic link", "Remove it, or choose another path."
            raise OutputError(
                f"cannot write {output}: cannot create its lock file {lock}: {reason}. {remedy}"
            ) from error
        try:
            taken = try_lock(descriptor)
            if taken is None:
                log.warning(
                    "the file system of %s does not support locks: make sure that no other command "
                    "writes there", output,
                )  # fmt: skip
            if taken is not False and _is_same_file(descriptor, lock):
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
                raise OutputError(f"{who} is writing to {output}; wait for it, or stop it.")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def try_lock(descriptor: int) -> bool | None:
    """Try to lock an open file; return None if the file system does not support locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # EBADF: NFS only locks files that are open for writing, and directories cannot be.
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF):
            return None
        raise
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), found)


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Lock a new temporary file or directory, which marks it as in use.

    Yields False if another process removed it as a leftover before it was locked.
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
        yield try_lock(descriptor) is not False and _is_same_file(descriptor, path)
    finally:
        os.close(descriptor)


@contextmanager
def abandoned(path: Path) -> Iterator[bool]:
    """Lock a possible leftover; yield True if no process uses it and it may be removed."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        yield False
        return
    try:
        yield try_lock(descriptor) is True
    finally:
        os.close(descriptor)

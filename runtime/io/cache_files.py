"""Files of the user's cache: engines, kernel timings and compiled kernels.

Every file begins with the SHA-256 of its content and is replaced atomically: concurrent readers
find the old file, the new file or none.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from pathlib import Path

from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import clear_leftovers, write_bytes_atomically

log = logging.getLogger("translate_trt")

#: Environment variable with the directory of the cache, or "none".
VARIABLE = "TRANSLATE_TRT_CACHE"

_DIGEST = 64  # hexadecimal digits


def cache_directory() -> Path | None:
    """Return the user's cache directory, `$TRANSLATE_TRT_CACHE` or the system's place for it.

    Returns:
        The directory, which need not exist; None if the variable is "none", or if the user has no
        home directory.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen == "none":
        return None
    if chosen:
        return Path(chosen).absolute()
    try:
        home = Path.home()
    except RuntimeError:  # a user without an entry in the password database
        home = Path()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        # The XDG specification says to ignore a relative path.
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = xdg if xdg.is_absolute() else home / ".cache"
    return base / "translate-trt" if base.is_absolute() else None


def engine_directory() -> Path | None:
    """Return the directory of engines, timings and compiled kernels; None for no cache."""
    directory = cache_directory()
    return None if directory is None else directory / "engines"


def load_cached(path: Path) -> bytes | None:
    """Load a file that `store_cached` wrote; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("cannot read %s (%s); it is ignored.", path, error.strerror)
        return None
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(content).hexdigest().encode() != digest:
        log.warning("%s is damaged; it is ignored.", path)
        return None
    return content


def store_cached(path: Path, content: bytes) -> bool:
    """Store content for `load_cached`; failures are logged, not raised.

    Returns:
        Whether the content was stored.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(path)
        write_bytes_atomically(path, hashlib.sha256(content).hexdigest().encode() + content)
    except (OSError, OutputError) as error:
        log.warning("the cache is not used: %s", error)
        return False
    return True

"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20  # bytes


def sha256_of_file(path: Path) -> tuple[str, int]:
    """SHA-256 in lower-case hexadecimal and size in bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        # hashlib.file_digest would do this, from Python 3.11 on.
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size

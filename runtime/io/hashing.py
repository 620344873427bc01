"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of_file(path: Path) -> tuple[str, int]:
    """SHA-256 in lower-case hexadecimal and size in bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()

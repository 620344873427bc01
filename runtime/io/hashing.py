"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of_file(path: Path) -> tuple[str, int]:
    """Return the SHA-256 in lower-case hexadecimal and the size in bytes of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()

"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from translate_trt.runtime.errors import InputError


def sha256_of_file(path: Path) -> tuple[str, int]:
    """Return the SHA-256 in lower-case hexadecimal and the size in bytes of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()


def input_hash(path: Path) -> str:
    """Return the SHA-256 of an input file.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return sha256_of_file(path)[0]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error

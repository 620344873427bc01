"""Origin of a model: a list of files at a fixed revision, of which the needed ones are fetched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from translate_trt.runtime.errors import DownloadError
from translate_trt.runtime.io.atomic_files import write_bytes_atomically
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.train.data.download import read_url


@dataclass(frozen=True)
class RemoteFile:
    """File at an origin.

    Attributes:
        name: Path relative to the model, with forward slashes.
        bytes: Size; None if unknown.
        sha256: SHA-256 of the content; None if unknown.
        git_sha1: SHA-1 of the content as a git blob; None if unknown.
    """

    name: str
    bytes: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None

    def check(self, path: Path) -> None:
        """Compare a downloaded file with the size and the hash that the origin states.

        Raises:
            DownloadError: The file differs.
        """
        size = path.stat().st_size
        expected: tuple[str, object] | None = None
        if self.bytes is not None and size != self.bytes:
            expected, found = ("bytes", self.bytes), str(size)
        elif self.sha256 is not None:
            expected, found = ("SHA-256", self.sha256), sha256_of_file(path)[0]
        elif self.git_sha1 is not None:
            expected, found = ("git hash", self.git_sha1), _git_hash(path, size)
        if expected is not None and found != str(expected[1]):
            raise DownloadError(
                f"{self.name} has {expected[0]} {found}, but the origin states {expected[1]}: the "
                "download is damaged and was removed; run the command again."
            )


def read_listing(url: str, kept: Path, offline: bool, what: str) -> Any:
    """Read a JSON document of an origin, or the copy of the last time.

    Args:
        url: Address of the document.
        kept: Path of the copy.
        offline: Use the copy.
        what: Kind of the models, for messages.

    Raises:
        DownloadError: The document cannot be read, or is not JSON.
    """
    try:
        if offline:
            content = kept.read_bytes()
        else:
            content = read_url(url)
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes_atomically(kept, content)
        return json.loads(content)
    except FileNotFoundError as error:
        raise DownloadError(
            f"no {what} was downloaded before, and the network is not used (--offline)."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DownloadError(f"{kept if offline else url} is not JSON; try again.") from error


def _git_hash(path: Path, size: int) -> str:
    """Return the hash that git has for a file of this content."""
    blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: blob).hexdigest()


class Origin(Protocol):
    """Model at an origin; all files are those of one revision."""

    @property
    def source(self) -> str:
        """Kind of the origin, as in `ModelRecord`."""

    @property
    def repository(self) -> str:
        """Repository or language pair."""

    @property
    def revision(self) -> str:
        """Commit hash or version."""

    @property
    def license(self) -> str | None:
        """License that the origin states."""

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Source and target language, as far as the name of the model says."""

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        """All files by name."""

    def fetch(self, names: Iterable[str]) -> dict[str, Path]:
        """Download files, or find them in the cache, and check them.

        Returns:
            The paths by name; they belong to the cache and must not be changed.

        Raises:
            DownloadError: A file cannot be downloaded, or differs from what the origin states.
        """

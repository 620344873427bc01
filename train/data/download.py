"""Resumable, checksum-verified downloads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from translate_trt.runtime.errors import DownloadError, OptionError
from translate_trt.runtime.io.atomic_files import output_error, write_json
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.io.locks import lock_beside, locked
from translate_trt.train.data.corpora import Archive

log = logging.getLogger("translate_trt")

RECORD = "downloads.json"
BLOCK = 1 << 18
TIMEOUT_SECONDS = 60

# Seconds before each retry; a try that received bytes resets the backoff.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)

# Largest document that `read_url` reads.
_MAX_DOCUMENT = 1 << 26

# Client errors worth a retry: request timeout, too many requests.
_PASSING = (408, 429)


class _InterruptedError(Exception):
    """Temporary failure of the connection or the server."""


@dataclass(frozen=True)
class _Part:
    """Partial download: its bytes, and the server's validator (ETag or date) of that version."""

    path: Path

    @property
    def mark_path(self) -> Path:
        return self.path.with_name(self.path.name + ".mark")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def mark(self, url: str) -> str | None:
        """Return the validator of the version that the partial bytes belong to, if any."""
        try:
            recorded_url, _, mark = self.mark_path.read_text(encoding="utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return mark or None if recorded_url == url else None

    def start(self, url: str, headers: Any) -> None:
        """Discard the partial bytes, and record the validator of the version that follows."""
        # A weak ETag ("W/...") does not guarantee equal bytes.
        tag = headers.get("ETag") or ""
        mark = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified") or ""
        self.path.write_bytes(b"")
        self.mark_path.write_text(f"{url}\n{mark}", encoding="utf-8")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.mark_path.unlink(missing_ok=True)


def download(archive: Archive, base_url: str, directory: Path) -> Path:
    """Download an archive into `directory`, or check the file that is already there.

    An interrupted download resumes, in this run or the next. `downloads.json` in the directory
    records size and SHA-256 of every file, and existing files are checked against it.

    Args:
        archive: Archive to download.
        base_url: Official address or a mirror; http or https.
        directory: Directory of downloads, created if missing.

    Returns:
        The path of the archive.

    Raises:
        DownloadError: The archive does not exist, is not reachable, or has another checksum.
        OptionError: The address is not http or https.
        OutputError: The disk is full, the directory is not writable, or another process is
            downloading the same file into it.
    """
    url = archive.url(base_url)
    _check_address(base_url)
    path = directory / archive.file_name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.is_file():  # no lock: the directory may be shared and read-only
            _check(path, archive, _recorded(directory, archive), url)
            return path
        with locked(lock_beside(path), path):
            _download(archive, url, directory, path)
    except OSError as error:
        raise output_error(error.filename or path, error) from error
    return path


def read_url(url: str) -> bytes:
    """Read a small document.

    Raises:
        DownloadError: The document does not exist, is not reachable, or is too large.
        OptionError: The address is not http or https.
    """
    _check_address(url)
    request = urllib.request.Request(url, headers={"User-Agent": "translate-trt"})
    try:
        with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read(_MAX_DOCUMENT + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"{url} could not be read: {reason}; try again.") from error
    if len(content) > _MAX_DOCUMENT:
        raise DownloadError(f"{url} has more than {_MAX_DOCUMENT:,} bytes; it is not a document.")
    return content


def _check_address(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise OptionError(f"{url} is not a URL that starts with http:// or https://.")


def _download(archive: Archive, url: str, directory: Path, path: Path) -> None:
    """Fetch and check the archive while holding the lock."""
    if path.is_file():  # another process has just finished it
        return
    part = _Part(path.with_name(path.name + ".part"))
    _fetch(url, archive, part)
    try:
        found = _check(part.path, archive, _recorded(directory, archive), url)
    except DownloadError:
        part.remove()
        raise
    record = _read_record(directory) | {archive.path: {"url": url, **found}}
    write_json(directory / RECORD, record)
    part.path.replace(path)
    part.mark_path.unlink(missing_ok=True)


def _fetch(url: str, archive: Archive, part: _Part) -> None:
    """Complete the partial download, with retries."""
    failures = 0
    while True:
        before = part.size
        try:
            return _fetch_once(url, archive, part)
        except _InterruptedError as error:
            failures = 0 if part.size > before else failures
            if failures == len(PAUSES):
                raise DownloadError(
                    f"{url} could not be downloaded: {error}. {part.size:,} bytes are kept in "
                    f"{part.path}; run the command again to continue."
                ) from error
            log.warning("%s: %s; trying again in %g s", url, error, PAUSES[failures])
            time.sleep(PAUSES[failures])
            failures += 1


def _fetch_once(url: str, archive: Archive, part: _Part) -> None:
    """Append to the partial download over one connection.

    Raises:
        _InterruptedError: The download is still incomplete.
        DownloadError: The error is permanent.
    """
    size = archive.bytes
    if size is not None and part.size == size:
        return
    with _open(url, archive.remedy, part) as response:
        if response is None:  # the server has no byte after the part's last one
            return
        ranges = str(response.headers.get("Content-Range", ""))
        if response.status == 206 and not ranges.startswith(f"bytes {part.size}-"):
            part.remove()
            raise _InterruptedError("the server did not continue at the requested offset")
        if response.status != 206:  # the whole file: a new version, or no support for ranges
            part.start(url, response.headers)
        begin = part.size
        announced = response.headers.get("Content-Length")
        total = begin + int(announced) if announced and announced.isdecimal() else None
        if size is not None and total is not None and total != size:
            part.remove()
            raise DownloadError(
                f"{url} has {total:,} bytes, but should have {size:,}: the file was replaced, or "
                f"the address is wrong. {archive.remedy}"
            )
        _copy(response, part, total, url)
    if total is not None and part.size < total:
        raise _InterruptedError(f"the connection ended after {part.size:,} of {total:,} bytes")


@contextlib.contextmanager
def _open(url: str, remedy: str, part: _Part) -> Iterator[Any]:
    """Request the missing bytes; yields None if the partial download is complete."""
    # A content encoding would change the bytes that ranges count.
    headers = {"User-Agent": "translate-trt", "Accept-Encoding": "identity"}
    mark = part.mark(url)
    if part.size and mark is None:
        part.remove()  # the bytes may be of another version of the file
    if part.size and mark is not None:
        headers |= {"Range": f"bytes={part.size}-", "If-Range": mark}
    try:
        response = _opener().open(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS
        )
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{part.size}":
                yield None
                return
            if error.code == 416:
                part.remove()
            if error.code == 416 or error.code in _PASSING or error.code >= 500:
                raise _InterruptedError(
                    f"the server answered {error.code} {error.reason}"
                ) from error
            raise DownloadError(
                f"{url}: the server answered {error.code} {error.reason}. {remedy}"
            ) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _InterruptedError(
            str(getattr(error, "reason", error)) or type(error).__name__
        ) from error
    with response:
        yield response


def _opener() -> urllib.request.OpenerDirector:
    """Make an opener restricted to http and https, also across redirects."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _copy(response: Any, part: _Part, total: int | None, url: str) -> None:
    with (
        part.path.open("ab") as file,
        tqdm(
            total=total,
            initial=part.size,
            desc=url.rpartition("/")[2],
            unit="B",
            unit_scale=True,
            disable=None,
        ) as bar,
    ):
        while block := _read(response):
            file.write(block)
            bar.update(len(block))


def _read(response: Any) -> bytes:
    """Read a block; network errors are told apart from those of writing."""
    try:
        block: bytes = response.read(BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from error
    return block


def _check(path: Path, archive: Archive, recorded: str | None, url: str) -> dict[str, Any]:
    """Check a file's checksums, and return its entry for downloads.json.

    Raises:
        DownloadError: A checksum differs.
    """
    sha256, size = sha256_of_file(path)
    if archive.sha256 is None:
        wanted = [(f"SHA-256 (from {RECORD})", recorded, sha256)]
    else:
        wanted = [("SHA-256", archive.sha256, sha256)]
    if archive.md5 is not None:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False))
        wanted.insert(0, ("MD5", archive.md5, md5.hexdigest()))
    for name, right, found in wanted:
        if right is not None and right != found:
            raise DownloadError(
                f"{path} ({size:,} bytes, from {url}) has {name} {found}, but should have {right}: "
                f"it is damaged or another file. Delete it and run the command again. "
                f"{archive.remedy}"
            )
    return {"bytes": size, "sha256": sha256}


def _read_record(directory: Path) -> dict[str, Any]:
    try:
        values = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DownloadError(
            f"{directory / RECORD} is damaged ({error}); delete it and run the command again."
        ) from error
    return values if isinstance(values, dict) else {}


def _recorded(directory: Path, archive: Archive) -> str | None:
    """Return the SHA-256 that an earlier run recorded, if any."""
    entry = _read_record(directory).get(archive.path)
    return entry.get("sha256") if isinstance(entry, dict) else None


def recorded_downloads(directory: Path, archives: tuple[Archive, ...]) -> list[dict[str, Any]]:
    """Return the entries of archives in `downloads.json`."""
    record = _read_record(directory)
    return [record[archive.path] for archive in archives if archive.path in record]

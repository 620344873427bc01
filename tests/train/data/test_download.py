"""Downloads from a local server: interrupted, resumed, missing, wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.server import Site, serve

from translate_trt.runtime.errors import DownloadError, OptionError, OutputError
from translate_trt.train.data import download as module
from translate_trt.train.data.corpora import Archive
from translate_trt.train.data.download import RECORD, download

CONTENT = bytes(range(256)) * 20
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()
ARCHIVE = Archive("corpora/a.tgz", len(CONTENT), sha256=SHA256)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve({"/corpora/a.tgz": CONTENT}) as found:
        yield found


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that the download would have waited."""
    waited: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    return waited


@pytest.fixture
def fetch(site: Site, tmp_path: Path) -> Callable[..., Path]:
    def run(archive: Archive = ARCHIVE) -> Path:
        return download(archive, site.url, tmp_path / "downloads")

    return run


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_fetched_once_and_recorded(site: Site, fetch: Callable[..., Path]) -> None:
    path = fetch()
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["a.tgz", RECORD]
    assert json.loads((path.parent / RECORD).read_text()) == {
        "corpora/a.tgz": {
            "url": f"{site.url}/corpora/a.tgz", "bytes": len(CONTENT), "sha256": SHA256
        }
    }  # fmt: skip
    assert fetch() == path
    assert site.requests == [("/corpora/a.tgz", None)]


def test_an_interrupted_download_resumes(
    site: Site, fetch: Callable[..., Path], pauses: list[float]
) -> None:
    site.cuts = [1000, 500]
    assert fetch().read_bytes() == CONTENT
    assert [wanted for _, wanted in site.requests] == [None, "bytes=1000-", "bytes=1500-"]
    assert pauses == [1.0, 1.0]  # each try received bytes


def test_the_next_run_resumes_a_download(site: Site, fetch: Callable[..., Path]) -> None:
    site.cuts = [1000] + [0] * 5
    with pytest.raises(DownloadError, match=r"1,000 bytes.*command"):
        fetch()
    site.requests.clear()
    assert fetch().read_bytes() == CONTENT
    assert [wanted for _, wanted in site.requests] == ["bytes=1000-"]


def test_another_version_is_not_joined_to_the_old_one(
    site: Site, fetch: Callable[..., Path]
) -> None:
    site.cuts = [1000] + [0] * 5
    with pytest.raises(DownloadError):
        fetch()
    changed = CONTENT[::-1]
    site.files["/corpora/a.tgz"], site.etag = changed, '"two"'
    sums = hashlib.sha256(changed).hexdigest()
    assert fetch(Archive(ARCHIVE.path, sha256=sums)).read_bytes() == changed


@pytest.mark.parametrize("etag", ['"one"', None])
def test_a_server_without_ranges_starts_again(
    site: Site, fetch: Callable[..., Path], etag: str | None
) -> None:
    site.cuts, site.ranges, site.etag = [1000], etag is None, etag
    assert fetch().read_bytes() == CONTENT
    # Without a validator, the rest may belong to another version.
    assert [wanted for _, wanted in site.requests] == [None, "bytes=1000-" if etag else None]


def test_a_server_that_does_not_tell_the_length(site: Site, fetch: Callable[..., Path]) -> None:
    site.announce = False
    assert fetch(Archive(ARCHIVE.path, sha256=SHA256)).read_bytes() == CONTENT


def test_a_complete_partial_file(site: Site, fetch: Callable[..., Path], tmp_path: Path) -> None:
    directory = tmp_path / "downloads"
    directory.mkdir()
    (directory / "a.tgz.part").write_bytes(CONTENT)
    (directory / "a.tgz.part.mark").write_text(f'{site.url}/corpora/a.tgz\n"one"')
    assert fetch(Archive(ARCHIVE.path, sha256=SHA256)).read_bytes() == CONTENT
    assert site.requests == [("/corpora/a.tgz", f"bytes={len(CONTENT)}-")]


def test_a_busy_server_is_asked_again(
    site: Site, fetch: Callable[..., Path], pauses: list[float]
) -> None:
    site.statuses = [503, 429, 500]
    assert fetch().read_bytes() == CONTENT
    assert pauses == [1.0, 2.0, 4.0]


def test_a_missing_file_is_an_error_at_once(
    fetch: Callable[..., Path], pauses: list[float]
) -> None:
    with pytest.raises(DownloadError, match=r"/gone\.tgz.*--mirror"):
        fetch(Archive("gone.tgz"))
    assert pauses == []


def test_an_unreachable_server(tmp_path: Path, pauses: list[float]) -> None:
    with serve({}) as site:
        url = site.url
    with pytest.raises(DownloadError, match="Connection refused"):
        download(ARCHIVE, url, tmp_path)
    assert pauses == list(module.PAUSES)


@pytest.mark.parametrize(
    ("archive", "name"),
    [
        (Archive(ARCHIVE.path, sha256="0" * 64), "SHA-256"),
        (Archive(ARCHIVE.path, md5="0" * 32), "MD5"),
    ],
)
def test_a_wrong_checksum_leaves_nothing(
    site: Site, fetch: Callable[..., Path], tmp_path: Path, archive: Archive, name: str
) -> None:
    with pytest.raises(DownloadError, match=rf"{site.url}.* has {name} \w+, but should have 0+:"):
        fetch(archive)
    assert names(tmp_path / "downloads") == []


def test_a_wrong_size_is_known_before_the_download(
    fetch: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(DownloadError, match=r"5,120 bytes.*should"):
        fetch(Archive(ARCHIVE.path, 7))
    assert names(tmp_path / "downloads") == []


def test_a_file_on_disk_is_checked_against_its_record(fetch: Callable[..., Path]) -> None:
    unknown = Archive(ARCHIVE.path, md5=MD5)
    path = fetch(unknown)
    assert fetch(unknown) == path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match="MD5"):
        fetch(unknown)
    with pytest.raises(DownloadError, match=rf"{RECORD}.* should have {SHA256}.*Delete it"):
        fetch(Archive(ARCHIVE.path))


def test_a_damaged_record_is_reported(fetch: Callable[..., Path]) -> None:
    path = fetch()
    (path.parent / RECORD).write_text("{")
    with pytest.raises(DownloadError, match=r"downloads\.json is damaged"):
        fetch()


@pytest.mark.parametrize("base", ["ftp://host", "file:///etc", "/etc"])
def test_only_http(tmp_path: Path, base: str) -> None:
    with pytest.raises(OptionError, match="http"):
        download(ARCHIVE, base, tmp_path)


def test_a_full_disk(fetch: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(module._Part, "start", lambda self, *_: self.path.symlink_to("/dev/full"))
    with pytest.raises(OutputError, match="space left"):
        fetch()

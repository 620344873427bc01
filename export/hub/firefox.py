"""Models of Firefox, by language pair, from Mozilla's Remote Settings.

A collection has a record for each file: `fileType` is model, lex, vocab, or srcvocab and trgvocab.
The attachment, which may be compressed with zstd, is at a base URL that the server announces.
Hashes of the attachment and of its decompressed content are in the record.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.hub.origin import RemoteFile, read_listing
from translate_trt.runtime.errors import DownloadError, OptionError
from translate_trt.runtime.io.atomic_files import new_file
from translate_trt.runtime.io.compression import decompressed, reading_compressed
from translate_trt.train.data.corpora import Archive
from translate_trt.train.data.download import download

#: Environment variable with the base URL of another Remote Settings server.
VARIABLE = "TRANSLATE_TRT_FIREFOX_SERVER"
SERVER = "https://firefox.settings.services.mozilla.com/v1"
_RECORDS = "buckets/main/collections/translations-models-v2/records"

#: License of the models that Mozilla distributes.
LICENSE = "MPL-2.0"

_PAIR = re.compile(
    r"([A-Za-z]{2,8}(?:-[A-Z][A-Za-z]{1,3})?)-([A-Za-z]{2,8}(?:-[A-Z][A-Za-z]{1,3})?)"
)
# Final versions; others, as 2.0a1, are for tests of Firefox.
_VERSION = re.compile(r"\d+(\.\d+)*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Files of a model: all of one of the sets, and a shortlist where there is one.
_FILES = ({"model", "vocab"}, {"model", "srcvocab", "trgvocab"})
_SHORTLIST = "lex"
# Of two architectures of one version, the first is the better model.
_ARCHITECTURES = ("base", "base-memory", "tiny")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class _Record:
    """Record of a file: its name, its type, the attachment, and the hash of its content."""

    name: str
    type: str
    attachment: Archive
    content: RemoteFile


@dataclass(frozen=True)
class FirefoxModel:
    """Model of Firefox; see `Origin`."""

    repository: str
    revision: str
    languages: tuple[str, str]
    records: Mapping[str, _Record]
    attachments: str
    downloads: Path

    source = "firefox"
    license = LICENSE

    @classmethod
    def open(
        cls, pair: str, version: str | None, downloads: Path, offline: bool = False
    ) -> FirefoxModel:
        """Look up the model of a language pair.

        Args:
            pair: Languages, as "en-de".
            version: Version of the model; None for the newest.
            downloads: Directory of downloaded files.
            offline: Use only what was downloaded before.

        Raises:
            DownloadError: There is no such model, or no connection.
            OptionError: The text is not a language pair.
        """
        found = _PAIR.fullmatch(pair)
        if found is None:
            raise OptionError(f"{pair!r:.100} is not a language pair; write firefox:en-de.")
        server = os.environ.get(VARIABLE, SERVER).rstrip("/")
        what = "model of Firefox"
        listing = read_listing(f"{server}/{_RECORDS}", downloads / "records.json", offline, what)
        about = read_listing(f"{server}/", downloads / "server.json", offline, what)
        try:
            attachments = str(about["capabilities"]["attachments"]["base_url"])
            listed = [record for record in listing["data"] if isinstance(record, dict)]
        except (TypeError, KeyError) as error:
            raise DownloadError(f"{server} did not answer as Remote Settings do.") from error
        source, target = found[1], found[2]
        models = _models(listed, source, target)
        if not models:
            pairs = sorted(
                {f"{one.get('sourceLanguage')}-{one.get('targetLanguage')}" for one in listed}
            )
            raise DownloadError(f"Firefox has no model for {pair}. It has: {', '.join(pairs)}.")
        versions = sorted({key[0] for key in models}, key=_numbers)
        wanted = version or versions[-1]
        if wanted not in versions:
            raise DownloadError(
                f"Firefox has no version {wanted} of {pair}; it has {', '.join(versions)}."
            )
        architecture = min((key[1] for key in models if key[0] == wanted), key=_preference)
        records = {record.name: record for record in models[wanted, architecture].values()}
        return cls(pair, wanted, (source, target), records, attachments, downloads)

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        """See `Origin.files`."""
        return {name: record.content for name, record in self.records.items()}

    def fetch(self, names: Iterable[str]) -> dict[str, Path]:
        """See `Origin.fetch`."""
        return {name: self._fetch(self.records[name]) for name in names}

    def _fetch(self, record: _Record) -> Path:
        # Files of two versions may have one name.
        directory = self.downloads / self.repository / self.revision
        path = directory / record.name
        if not path.is_file():
            packed = download(record.attachment, self.attachments, directory / "packed")
            try:
                _decompress(packed, path)
            finally:
                packed.unlink(missing_ok=True)
        try:
            record.content.check(path)
        except DownloadError:
            path.unlink()
            raise
        return path


def _models(
    listed: Iterable[dict[str, Any]], source: str, target: str
) -> dict[tuple[str, str], dict[str, _Record]]:
    """Return the complete models of a language pair by version and architecture."""
    models: dict[tuple[str, str], dict[str, _Record]] = defaultdict(dict)
    for values in listed:
        if (values.get("sourceLanguage"), values.get("targetLanguage")) != (source, target):
            continue
        version = str(values.get("version"))
        if not _VERSION.fullmatch(version) or values.get("variant"):
            continue
        record = _record(values)
        models[version, str(values.get("architecture"))][record.type] = record
    wanted = {kind for kinds in _FILES for kind in kinds} | {_SHORTLIST}
    return {
        key: {kind: record for kind, record in records.items() if kind in wanted}
        for key, records in models.items()
        if any(kinds <= records.keys() for kinds in _FILES)
    }


def _record(values: dict[str, Any]) -> _Record:
    try:
        name, attachment = str(values["name"]), values["attachment"]
        archive = Archive(
            str(attachment["location"]).lstrip("/"), int(attachment["size"]),
            str(attachment["hash"]), remedy="Try again later.",
        )  # fmt: skip
        packed = values.get("decompressedHash")
        content = RemoteFile(
            name,
            int(values["decompressedSize"]) if packed and "decompressedSize" in values else None,
            str(packed or archive.sha256),
        )
        if not _FILE_NAME.fullmatch(name) or not _FILE_NAME.fullmatch(archive.file_name):
            raise ValueError(f"the file name {name!r:.100} is not allowed")
        return _Record(name, str(values["fileType"]), archive, content)
    except (TypeError, KeyError, ValueError) as error:
        raise DownloadError(f"a record of Firefox's models is damaged: {error!r:.200}.") from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _preference(architecture: str) -> tuple[int, str]:
    known = architecture in _ARCHITECTURES
    return (_ARCHITECTURES.index(architecture) if known else len(_ARCHITECTURES), architecture)


def _decompress(packed: Path, path: Path) -> None:
    """Write the decompressed content of an attachment, which may not be compressed."""
    with packed.open("rb") as file, new_file(path) as output, reading_compressed(packed.name):
        head, stream = decompressed(file, packed.name)
        output.write(head)
        while block := stream.read(_BLOCK):
            output.write(block)

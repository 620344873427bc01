"""Packages of Argos Translate: by language pair, from Argos's index, or of this machine.

The index has no hashes, so that only HTTPS protects a first download; its hash is recorded for the
next ones.
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
from translate_trt.runtime.argos_packages import ArgosPackage, version_numbers
from translate_trt.runtime.errors import DownloadError
from translate_trt.runtime.io.hashing import input_hash
from translate_trt.runtime.text.languages import ARGOS_CODES
from translate_trt.train.data.corpora import Archive
from translate_trt.train.data.download import download

#: Environment variable with the URL of another index.
VARIABLE = "TRANSLATE_TRT_ARGOS_INDEX"
INDEX = "https://raw.githubusercontent.com/argosopentech/argospm-index/main/index.json"

_FILE = re.compile(r".*/[A-Za-z0-9][A-Za-z0-9._-]*\.argosmodel")


@dataclass(frozen=True)
class ArgosOrigin:
    """Package of Argos Translate; see `Origin`. Its metadata has the languages.

    Attributes:
        paths: Paths of its files, by name.
        url: Address of the directory that the files are downloaded from; None for local files.
    """

    repository: str
    revision: str
    paths: Mapping[str, Path]
    url: str | None = None

    source = "argos"
    license = None
    languages = (None, None)

    @classmethod
    def open(cls, pair: str, version: str | None, downloads: Path, offline: bool) -> ArgosOrigin:
        """Look up the package of a language pair in the index.

        Args:
            pair: Languages, as "en-de".
            version: Version of the package; None for the newest.
            downloads: Directory of downloaded files.
            offline: Use only what was downloaded before.

        Raises:
            DownloadError: There is no such package, or no connection.
        """
        index = os.environ.get(VARIABLE, INDEX)
        listed = read_listing(index, downloads / "index.json", offline, "package of Argos")
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, dict) and (link := _link(entry, index)) is not None:
                codes = [str(entry.get(name)) for name in ("from_code", "to_code")]
                for one in {
                    "-".join(codes),
                    "-".join(ARGOS_CODES.get(code, code) for code in codes),
                }:
                    found[one][str(entry.get("package_version"))] = link
        if pair not in found:
            raise DownloadError(
                f"Argos's index has no package for {pair}. It has: {', '.join(sorted(found))}."
            )
        versions = found[pair]
        chosen = version or max(versions, key=version_numbers)
        if chosen not in versions:
            raise DownloadError(
                f"Argos's index has no version {chosen} of {pair}; it has {', '.join(versions)}."
            )
        url, _, name = versions[chosen].rpartition("/")
        path = downloads / name
        if offline and not path.is_file():
            raise DownloadError(
                f"{name} was not downloaded before, and the network is not used (--offline)."
            )
        return cls(pair, chosen, {name: path}, url)

    @classmethod
    def local(cls, path: Path) -> ArgosOrigin:
        """Use a package of this machine, an .argosmodel file or the directory of an installed one.

        Raises:
            InputError: The package cannot be read.
        """
        if not path.is_dir():
            return cls(path.name, input_hash(path), {path.name: path})
        package = ArgosPackage.read(path)
        paths = {
            file.relative_to(path).as_posix(): file
            for file in (*path.iterdir(), *path.glob("model/*"))
            if file.is_file()
        }
        return cls(path.name, package.version, paths)

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        """See `Origin.files`."""
        return {name: RemoteFile(name) for name in self.paths}

    def fetch(self, names: Iterable[str]) -> dict[str, Path]:
        """See `Origin.fetch`."""
        found = {name: self.paths[name] for name in names}
        if self.url is not None:
            for name, path in found.items():
                download(Archive(name, remedy="Try again later."), self.url, path.parent)
        return found


def _link(entry: dict[str, Any], index: str) -> str | None:
    """Return the first address of a package; as safe a one as that of the index."""
    scheme = "http://" if index.startswith("http://") else "https://"
    links = entry.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, str) and link.startswith(scheme) and _FILE.fullmatch(link):
            return link
    return None

"""Repositories of the Hugging Face Hub, through huggingface_hub.

The library resolves HF_ENDPOINT, tokens, proxies and its cache (HF_HOME), and resumes downloads
when a connection breaks. It does not resume a file whose download a process did not finish.
The list of a repository's files is kept with the installed models, so that a model that was
downloaded once can be installed without a network.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from translate_trt.export.hub.origin import RemoteFile
from translate_trt.runtime.errors import DownloadError
from translate_trt.runtime.io.atomic_files import write_json
from translate_trt.runtime.version import version

#: Branch of a repository that is downloaded by default.
MAIN = "main"

# Errors of the HTTP library, of which huggingface_hub's own are a subclass.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
# Of this machine's disk, and not of the server.
_DISK_ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES)
# The languages of OPUS-MT models, as in opus-mt-en-de and opus-mt-tc-big-en-de.
_OPUS = re.compile(r"opus-mt(?:-tc-[a-z]+)?-([a-z]{2,3})-([a-z]{2,3})$")
# With other characters, a revision could leave the directory of listings.
_REVISION = re.compile(r"(?!.*\.\.)[A-Za-z0-9._/-]{1,200}")


@dataclass(frozen=True)
class HubRepository:
    """Repository at a commit; see `Origin`."""

    repository: str
    revision: str
    license: str | None
    files: Mapping[str, RemoteFile]
    offline: bool = False

    source = "hub"

    @classmethod
    def open(
        cls, repository: str, revision: str | None, listings: Path, offline: bool = False
    ) -> HubRepository:
        """Look up a repository.

        Args:
            repository: Name of the repository.
            revision: Branch, tag or commit hash; None for the branch main.
            listings: Directory where listings are kept.
            offline: Use only what was downloaded before; also set by HF_HUB_OFFLINE.

        Raises:
            DownloadError: There is no such repository or revision, or no connection.
        """
        asked = revision or MAIN
        if not _REVISION.fullmatch(asked):
            raise DownloadError(f"{asked!r:.100} is not a revision; pass a branch, tag or commit.")
        name = f"{repository}@{asked}".replace("/", "--")
        path = listings / f"{name}.json"
        if offline or constants.HF_HUB_OFFLINE:
            return cls._read(path, repository, asked)
        with hub_errors(repository, asked):
            info = hub_api().model_info(repository, revision=asked, files_metadata=True)
        if not info.sha:
            raise DownloadError(f"the server did not name the commit of {repository}; try again.")
        card = info.card_data
        stated = None if card is None else card.get("license")
        if card is not None and stated == "other":
            stated = card.get("license_name") or stated
        files = {
            file.rfilename: RemoteFile(
                file.rfilename,
                file.size,
                None if file.lfs is None else file.lfs.sha256,
                None if file.lfs is not None else file.blob_id,
            )
            for file in info.siblings or ()
        }
        opened = cls(repository, info.sha, stated if isinstance(stated, str) else None, files)
        opened._write(path)
        opened._write(path.with_name(f"{repository}@{info.sha}.json".replace("/", "--")))
        return opened

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """See `Origin.languages`."""
        found = _OPUS.search(self.repository)
        return (None, None) if found is None else (found[1], found[2])

    def fetch(self, names: Iterable[str]) -> dict[str, Path]:
        """See `Origin.fetch`."""
        found = {}
        for name in names:
            with hub_errors(self.repository, self.revision):
                path = Path(
                    hf_hub_download(
                        self.repository, name, revision=self.revision,
                        local_files_only=self.offline, library_name="translate-trt",
                        library_version=version(),
                    )
                )  # fmt: skip
            try:
                self.files[name].check(path)
            except DownloadError:
                # The name in the snapshot is a link to the content.
                for damaged in (path.resolve(), path):
                    with suppress(OSError):
                        damaged.unlink()
                raise
            found[name] = path
        return found

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {
            "revision": self.revision,
            "license": self.license,
            "files": [asdict(file) for file in self.files.values()],
        }
        write_json(path, values)

    @classmethod
    def _read(cls, path: Path, repository: str, asked: str) -> HubRepository:
        try:
            values = json.loads(path.read_bytes())
            files = [RemoteFile(**file) for file in values["files"]]
            revision, stated = str(values["revision"]), values["license"]
        except FileNotFoundError as error:
            raise DownloadError(
                f"{repository} at {asked} was not downloaded before, and the network is not used "
                "(--offline, HF_HUB_OFFLINE)."
            ) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DownloadError(f"{path} is damaged; run the command without --offline.") from error
        return cls(repository, revision, stated, {file.name: file for file in files}, offline=True)


def hub_api() -> HfApi:
    """Return a client of the Hub, which names translate-trt to the server."""
    return HfApi(library_name="translate-trt", library_version=version())


@contextmanager
def hub_errors(repository: str, revision: str, upload: bool = False) -> Iterator[None]:
    """Convert errors of huggingface_hub to DownloadError with a remedy.

    Args:
        repository: Name of the repository.
        revision: Branch, tag or commit.
        upload: The remedies are those of an upload.
    """
    login = "If it is private, log in with `hf auth login`, or set HF_TOKEN."
    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{repository} asks for an agreement: accept it at {constants.ENDPOINT}/{repository}, "
            "and log in with `hf auth login`, or set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise DownloadError(
            f"{constants.ENDPOINT} has no repository {repository}; check the name. {login}"
        ) from error
    except RevisionNotFoundError as error:
        raise DownloadError(
            f"{repository} has no revision {revision}; pass a branch, tag or commit hash of it."
        ) from error
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        why = "the network is not used" if cause is None else _first_line(cause)
        raise DownloadError(
            f"a file of {repository} at {revision} is not in the cache of the Hub, and cannot be "
            f"downloaded: {why}."
        ) from error
    except HFValidationError as error:
        raise DownloadError(f"{repository!r} is not a repository: {_first_line(error)}.") from error
    except (_HTTP_ERROR, OSError, ValueError) as error:  # ValueError: an answer that is not JSON
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise DownloadError(
                f"{repository}: cannot write {constants.HF_HUB_CACHE}, the cache of the Hub: "
                f"{error.strerror}. Free some space, or set HF_HOME to another directory."
            ) from error
        offline = "" if upload else ", or with --offline for files that have been downloaded"
        raise DownloadError(
            f"{repository}: {constants.ENDPOINT} failed: {_first_line(error)}. Run the command "
            f"again{offline}."
        ) from error


def _first_line(error: BaseException) -> Any:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")

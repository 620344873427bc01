"""HTTP server on the loopback interface that speaks the protocol of the Hugging Face Hub."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.server import serving

MAIN = "main"

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_PREUPLOAD = re.compile(r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)")
_COMMIT = re.compile(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)")


@dataclass
class Repository:
    """Repository: its commits, the newest last, and the metadata of its card.

    Attributes:
        commits: files by name, by commit hash.
        card: cardData of the answer.
        stated: hashes that are stated in place of the contents' own, by name.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    stated: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit with exactly these files; return its hash."""
        content = repr(
            sorted((name, hashlib.sha1(text).hexdigest()) for name, text in files.items())
        )
        sha = hashlib.sha1(f"{len(self.commits)} {content}".encode()).hexdigest()
        self.commits[sha] = files
        return sha

    def commit_directory(self, directory: Path, *, without: tuple[str, ...] = ()) -> str:
        """Add a commit with the files of a directory."""
        paths = (path for path in directory.rglob("*") if path.is_file())
        files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
        return self.commit({name: text for name, text in files.items() if name not in without})

    def find(self, revision: str) -> str | None:
        """Return the commit of a branch or hash."""
        if revision == MAIN:
            return list(self.commits)[-1] if self.commits else None
        return revision if revision in self.commits else None


@dataclass
class Hub:
    """Repositories by name, and the requests received.

    Attributes:
        cuts: of the coming answers with a file, the bytes after which each is cut; then none is.
        requests: (method, path, value of the Range header) of each request.
        tokens: values of the Authorization header of requests that had one.
        waiting: set once a GET request of a file waits.
        release: event that GET requests of files wait for; None if they do not wait.
        before_commit: called with the repository before a commit is received.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    waiting: threading.Event = field(default_factory=threading.Event)
    release: threading.Event | None = None
    before_commit: Callable[[Repository], object] = lambda _: None
    url: str = ""

    def repository(self, name: str, **card: Any) -> Repository:
        """Create a repository."""
        self.repositories[name] = Repository(card=card)
        return self.repositories[name]

    def downloads(self) -> list[str]:
        """Return the names of the files that were requested with GET, in order."""
        found = (_RESOLVE.fullmatch(path) for method, path, _ in self.requests if method == "GET")
        return [match[3] for match in found if match is not None]


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve the repositories until the block ends."""
    hub = Hub()

    class Handler(_Handler):
        site = hub

    with serving(Handler) as hub.url:
        try:
            yield hub
        finally:
            if hub.release is not None:
                hub.release.set()


class _Handler(http.server.BaseHTTPRequestHandler):
    site: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.site.requests.append((self.command, path, self.headers.get("Range")))
        if token := self.headers.get("Authorization"):
            self.site.tokens.add(token)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            values = json.loads(body)
            name = f"{values.get('organization') or 'someone'}/{values['name']}"
            if name in self.site.repositories:
                return self._json({"url": f"{self.site.url}/{name}"}, 409)
            self.site.repository(name).commit({".gitattributes": b""})
            return self._json({"url": f"{self.site.url}/{name}"})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        for pattern, method in (
            (_INFO, self._info), (_RESOLVE, self._resolve), (_PREUPLOAD, self._preupload),
            (_COMMIT, self._commit),
        ):  # fmt: skip
            if (found := pattern.fullmatch(path)) is not None:
                repository = self.site.repositories.get(found[1])
                if repository is None:
                    return self._error(404, "Repository not found", "RepoNotFound")
                return method(repository, body, *found.groups())
        return self._error(404, f"no {path}")

    def _info(self, repository: Repository, _: bytes, name: str, revision: str) -> None:
        sha = repository.find(revision)
        if sha is None:
            return self._error(404, "Invalid rev id", "RevisionNotFound")
        siblings = [
            self._sibling(repository, file, text) for file, text in repository.commits[sha].items()
        ]
        return self._json(
            {"id": name, "sha": sha, "siblings": siblings, "cardData": repository.card,
             "private": False, "tags": [], "downloads": 0, "likes": 0}
        )  # fmt: skip

    def _sibling(self, repository: Repository, name: str, text: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(f"blob {len(text)}\0".encode() + text).hexdigest()
        found: dict[str, Any] = {"rfilename": name, "size": len(text), "blobId": blob}
        if name.endswith((".bin", ".safetensors", ".onnx")):
            sha256 = repository.stated.get(name) or hashlib.sha256(text).hexdigest()
            found["lfs"] = {"sha256": sha256, "size": len(text), "pointerSize": 134}
        elif name in repository.stated:
            found["blobId"] = repository.stated[name]
        return found

    def _resolve(
        self, repository: Repository, _: bytes, name: str, revision: str, file: str
    ) -> None:
        sha = repository.find(revision)
        if sha is None:
            return self._error(404, "Invalid rev id", "RevisionNotFound")
        text = repository.commits[sha].get(file)
        if text is None:
            return self._error(404, "Entry not found", "EntryNotFound", sha)
        if self.command == "GET" and self.site.release is not None:
            self.site.waiting.set()
            self.site.release.wait()
        wanted = self.headers.get("Range")
        begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        part = text[begin:]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{len(text) - 1}/{len(text)}")
        self.send_header("ETag", f'"{hashlib.sha256(text).hexdigest()}"')
        self.send_header("X-Repo-Commit", sha)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            cut = self.site.cuts.pop(0) if self.site.cuts else None
            try:
                self.wfile.write(part[:cut])
            except OSError:  # the client has gone
                self.close_connection = True
            if cut is not None:
                self.close_connection = True
        return None

    def _preupload(self, _: Repository, body: bytes, *__: str) -> None:
        files = [
            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
            for file in json.loads(body)["files"]
        ]
        self._json({"files": files})

    def _commit(self, repository: Repository, body: bytes, name: str, _: str) -> None:
        self.site.before_commit(repository)
        head = repository.find(MAIN)
        files = dict(repository.commits[head]) if head is not None else {}
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "header":
                if entry["value"].get("parentCommit", head) != head:
                    return self._error(412, "A commit has happened since")
            elif entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "deletedFile":
                del files[entry["value"]["path"]]
        sha = repository.commit(files)
        return self._json({"commitUrl": f"{self.site.url}/{name}/commit/{sha}", "commitOid": sha})

    def _json(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _error(self, status: int, message: str, code: str = "", sha: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if sha:
            self.send_header("X-Repo-Commit", sha)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

"""Glossaries, documents and counts that clients of DeepL's API keep in a server's memory."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from translate_trt.runtime.serve.http.http_error import HttpError

_MOST_GLOSSARIES = 1_000
_MOST_OF_ONE = 100  # glossaries of one client
# As long as the server keeps their translations.
_MOST_DOCUMENTS, _DOCUMENT_SECONDS = 1_000, 1800.0
# DeepL's status for an exhausted quota.
_QUOTA = 456


@dataclass(frozen=True)
class StoredGlossary:
    """A glossary of a client.

    Attributes:
        owner: Client, which alone sees it.
        name: Name.
        source: Source language as the client wrote it.
        target: Target language as the client wrote it.
        entries: Phrases of the source with those that translate them.
        created: Time in ISO 8601.
    """

    owner: str
    name: str
    source: str
    target: str
    entries: dict[str, str]
    created: str


@dataclass(frozen=True)
class Document:
    """A document of a client.

    Attributes:
        key: What a client must know to see it.
        characters: Number of characters.
        task: Its translation, whose result is a name in the file store.
    """

    key: str
    characters: int
    task: asyncio.Task[str]


class DeepLStore:
    """Glossaries, documents and counts of clients. Belongs to one event loop.

    Attributes:
        characters: Number of translated characters by the name of the key.
    """

    def __init__(self) -> None:
        self.characters: Counter[str] = Counter()
        self._glossaries: dict[str, StoredGlossary] = {}
        self._documents: dict[str, Document] = {}

    def add_glossary(
        self, owner: str, name: str, source: str, target: str, entries: dict[str, str]
    ) -> str:
        """Keep a glossary; return its id.

        Raises:
            HttpError: There are too many.
        """
        if len(self._glossaries) >= _MOST_GLOSSARIES or len(self.glossaries(owner)) >= _MOST_OF_ONE:
            raise HttpError(_QUOTA, "there are too many glossaries; delete some of them")
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        number = secrets.token_hex(16)
        self._glossaries[number] = StoredGlossary(owner, name, source, target, entries, created)
        return number

    def glossaries(self, owner: str) -> dict[str, StoredGlossary]:
        """Return the glossaries of a client by their ids."""
        return {number: one for number, one in self._glossaries.items() if one.owner == owner}

    def glossary(self, owner: str, number: str) -> StoredGlossary:
        """Return a glossary of a client by its id.

        Raises:
            HttpError: The client has none with this id.
        """
        found = self._glossaries.get(number)
        if found is None or found.owner != owner:
            raise HttpError(404, "there is no such glossary")
        return found

    def remove_glossary(self, owner: str, number: str) -> None:
        """Forget a glossary of a client; see `glossary`."""
        self.glossary(owner, number)
        del self._glossaries[number]

    def add_document(self, characters: int, task: asyncio.Task[str]) -> tuple[str, str]:
        """Keep a document for a while; return its id and key."""
        number, key = secrets.token_hex(16), secrets.token_hex(32)
        self._documents[number] = Document(key, characters, task)
        # A client may never ask for the reason of a failure, which asyncio would then report.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if len(self._documents) > _MOST_DOCUMENTS:
            self.remove_document(next(iter(self._documents)))
        asyncio.get_running_loop().call_later(_DOCUMENT_SECONDS, self.remove_document, number)
        return number, key

    def document(self, number: str, key: str) -> Document:
        """Return a document by its id and key.

        Raises:
            HttpError: There is none.
        """
        found = self._documents.get(number)
        if found is None or not secrets.compare_digest(found.key.encode(), key.encode()):
            raise HttpError(404, "there is no such document")
        return found

    def remove_document(self, number: str) -> None:
        """Forget a document, and cancel its translation; nothing if it is forgotten already."""
        if (document := self._documents.pop(number, None)) is not None:
            document.task.cancel()

    def close(self) -> None:
        """Cancel all documents."""
        for number in [*self._documents]:
            self.remove_document(number)

"""API keys: a TOML file of their hashes and limits."""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import InputError

_DIGEST = re.compile("[0-9a-f]{64}")
_HOW = "each key is a table [keys.NAME] with sha256 = the hash of the key in lower-case hexadecimal"


@dataclass(frozen=True)
class ApiKey:
    """A key and its limits; None for those of the server.

    Attributes:
        name: Name in logs.
        sha256: SHA-256 of the key in hexadecimal. Keys are random, so a slow hash adds nothing.
        requests_per_minute: Limit of requests; 0 for none.
        max_characters: Limit of a request.
        admin: Whether the key allows reloading bundles and reading protected metrics.
    """

    name: str
    sha256: str
    requests_per_minute: int | None = None
    max_characters: int | None = None
    admin: bool = False


class ApiKeys:
    """Keys that a server knows."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file of keys.

        Raises:
            InputError: The file cannot be read, or a table or field is wrong.
        """
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:  # neither UTF-8 nor TOML
            raise InputError(f"{path} is no TOML file: {error}.") from error
        keys = tables.get("keys")
        if set(tables) != {"keys"} or not isinstance(keys, dict):
            raise InputError(f"{path} has other tables than keys; {_HOW}.")
        return cls(tuple(_read_key(path, name, table) for name, table in keys.items()))

    def find(self, key: str) -> ApiKey | None:
        """Return the entry of a key, or None, in time that does not depend on the keys."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        found = [one for one in self._keys if hmac.compare_digest(one.sha256, digest)]
        return found[0] if found else None


def _read_key(path: Path, name: str, table: Any) -> ApiKey:
    known = {field.name for field in fields(ApiKey)} - {"name"}
    if not isinstance(table, dict) or not _DIGEST.fullmatch(str(table.get("sha256"))):
        raise InputError(f"{path}: {name} has no hash; {_HOW}.")
    if unknown := set(table) - known:
        raise InputError(
            f"{path}: {name} has the unknown field {min(unknown)}; there are "
            f"{', '.join(sorted(known))}."
        )
    for limit in ("requests_per_minute", "max_characters"):
        value = table.get(limit, 0)
        if type(value) is not int or value < 0:
            raise InputError(f"{path}: {limit} of {name} is {value!r}; write a whole number.")
    if not isinstance(table.get("admin", False), bool):
        raise InputError(f"{path}: admin of {name} is {table['admin']!r}; write true or false.")
    return ApiKey(name, **table)

"""Reading of untrusted files: bytes, text and JSON, and binary layouts."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import InputError

_COPY = "copy the whole directory again"


def read_bytes(path: Path, hint: str = _COPY) -> bytes:
    """Read a file.

    Args:
        path: Path of the file.
        hint: Advice for a missing file.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {hint}.") from error


def read_text(path: Path, hint: str = _COPY) -> str:
    """Read a text file; see `read_bytes`.

    Raises:
        InputError: The file cannot be read, or is not UTF-8 text.
    """
    try:
        return read_bytes(path, hint).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}.") from error


def read_lines(path: Path, hint: str = _COPY) -> list[str]:
    r"""Read the lines of a text file, whose line ends are all \n or all \r\n; see `read_text`.

    A lone \r is a character of its line: vocabularies have tokens with it.
    """
    lines = read_text(path, hint).removesuffix("\n").split("\n")
    from_windows = all(line.endswith("\r") for line in lines[:-1])
    return [line.removesuffix("\r") for line in lines] if from_windows else lines


def load_json(path: Path, hint: str = _COPY) -> Any:
    """Read a JSON file; see `read_bytes`.

    Raises:
        InputError: The file is missing, not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_text(path, hint))
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ValueError) else "it is nested too deeply"
        raise InputError(
            f"cannot read {path}: it is not JSON: {reason}. Copy the directory again."
        ) from error


def load_object(path: Path, hint: str = _COPY) -> dict[str, Any]:
    """Read a JSON file with an object; see `load_json`.

    Raises:
        InputError: The file is missing, not JSON, or not an object.
    """
    values = load_json(path, hint)
    if not isinstance(values, dict):
        raise InputError(f"{path} is not a JSON object; copy the directory again.")
    return values


def shown(value: object) -> str:
    """Format a value as JSON, truncated for an error message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError, TypeError):
        text = "no value that can be shown"
    return text if len(text) <= 60 else text[:57] + "..."


def find_file(directory: Path, names: Sequence[str]) -> Path | None:
    """Return the first existing file of the given names."""
    paths = (directory / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def sibling(directory: Path, name: Any) -> Path | None:
    """Return the file in a directory that has the last part of a path as its name, if it exists.

    Args:
        directory: The directory.
        name: Path on the machine of the settings' author.
    """
    path = directory / Path(str(name)).name
    try:
        return path if path.is_file() else None
    except OSError:  # no file can have the name
        return None


def one_file(
    directory: Path,
    patterns: Sequence[str],
    what: str,
    remedy: str,
    excluded: Collection[str] = (),
) -> Path | None:
    """Return the file of the first pattern that matches any; None without a file.

    Args:
        directory: The directory.
        patterns: Patterns of file names.
        what: Kind of the files, for the message.
        remedy: Advice for a directory with several files.
        excluded: Patterns of other files.

    Raises:
        InputError: Several files match the pattern.
    """
    for pattern in patterns:
        found = [
            path
            for path in sorted(directory.glob(pattern))
            if path.is_file() and not any(path.match(other) for other in excluded)
        ]
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise InputError(f"{directory} has several {what}: {names}. {remedy}")
        if found:
            return found[0]
    return None


class Cursor:
    """Cursor in the content of a little-endian file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self._content, self._offset = path, memoryview(content), 0

    def take(self, count: int, what: str) -> memoryview:
        """Return the next bytes; `what` is their name for the error message."""
        end = self._offset + count
        if end > len(self._content):
            raise self.damaged(
                f"it ends after {len(self._content):,} bytes, within {what}, which should end at "
                f"{end:,}"
            )
        found = self._content[self._offset : end]
        self._offset = end
        return found

    def number(self, kind: str, what: str = "a number") -> int:
        """Return the next integer; `kind` is its format character of `struct`."""
        layout = struct.Struct(f"<{kind}")
        (found,) = layout.unpack(self.take(layout.size, what))
        return int(found)

    def text(self, length: int, what: str = "a name") -> str:
        """Return the next text, without its final zeros."""
        content = bytes(self.take(length, what))
        try:
            return content.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"the name {content[:40]!r} is not UTF-8") from error

    def damaged(self, what: str) -> InputError:
        """Return the error for a damaged file."""
        return damaged(self.path, what)


def damaged(path: Path, what: str) -> InputError:
    """Return the error for a damaged file."""
    return InputError(f"{path} is damaged: {what}. Copy or convert the model again.")

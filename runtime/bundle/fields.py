"""Checked access to the fields of a bundle's JSON files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from translate_trt.runtime.errors import BundleError

#: Remedy for a damaged bundle, at the end of error messages.
REMEDY = "Copy the bundle again or make it again with translate-trt export."


class Fields:
    """JSON object with checked access; errors name a field by its path, such as `model.heads`.

    Raises:
        BundleError: The value is not an object, or a field is missing or has the wrong type.
    """

    def __init__(self, value: object, file: Path, prefix: str = "") -> None:
        self._file = file
        self._prefix = prefix
        if not isinstance(value, dict):
            what = f"the field {prefix!r}" if prefix else "the outermost value"
            raise BundleError(
                f"{file}: {what} must be an object in braces, not {_shown(value)}. {REMEDY}"
            )
        self.values: dict[str, Any] = value

    def fail(self, name: str, expected: str, found: object) -> NoReturn:
        """Raise the error for a field with an unexpected value."""
        raise BundleError(
            f"{self._file}: the field {self._path(name)!r} must be {expected}, "
            f"not {_shown(found)}. {REMEDY}"
        )

    def integer(self, name: str, smallest: int) -> int:
        """Read an integer of at least `smallest`."""
        return self._integer(name, self._get(name), smallest)

    def _integer(self, name: str, value: Any, smallest: int) -> int:
        # In Python True is an integer; in JSON it is not a number. Arrays and C++ use 64 bits.
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or not smallest <= value < 2**63:
            self.fail(name, f"a whole number of at least {smallest}", value)
        return int(value)

    def boolean(self, name: str) -> bool:
        """Read a boolean."""
        value = self._get(name)
        if not isinstance(value, bool):
            self.fail(name, "true or false", value)
        return value

    def text(self, name: str) -> str:
        """Read a string."""
        value = self._get(name)
        if not isinstance(value, str):
            self.fail(name, "a string", value)
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Read a string that must be one of the choices."""
        value = self.text(name)
        if value not in choices:
            self.fail(name, f"one of {', '.join(choices)}", value)
        return value

    def axes(self, name: str, letters: Sequence[str]) -> list[str | int]:
        """Read a nonempty list of positive sizes and of letters for dynamic sizes."""
        value = self._get(name)
        if not isinstance(value, list) or not value:
            self.fail(name, f"a list of sizes and of {', '.join(letters)}", value)
        return [
            item if isinstance(item, str) and item in letters else self._integer(name, item, 1)
            for item in value
        ]

    def is_null(self, name: str) -> bool:
        """Return True if the field is null."""
        return self._get(name) is None

    def optional_text(self, name: str) -> str | None:
        """Read a string or null."""
        return None if self.is_null(name) else self.text(name)

    def texts(self, name: str) -> list[str]:
        """Read a list of strings."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(name, "a list of strings", value)
        return value

    def integers(self, name: str, smallest: int) -> list[int]:
        """Read a list of integers of at least `smallest`."""
        value = self._get(name)
        if not isinstance(value, list):
            self.fail(name, "a list of whole numbers", value)
        return [self._integer(name, item, smallest) for item in value]

    def all_integers(self, smallest: int) -> dict[str, int]:
        """Read all fields of the object as integers of at least `smallest`."""
        return {name: self.integer(name, smallest) for name in self.values}

    def all_texts(self) -> dict[str, str]:
        """Read all fields of the object as strings."""
        return {name: self.text(name) for name in self.values}

    def object(self, name: str) -> Fields:
        """Read a nested object."""
        return Fields(self._get(name), self._file, self._path(name))

    def optional_object(self, name: str) -> dict[str, Any] | None:
        """Read a nested object or null."""
        return None if self.is_null(name) else self.object(name).values

    def objects(self, at_least_one: bool = False) -> Iterator[tuple[str, Fields]]:
        """Iterate over all fields of the object, each of which must be an object."""
        if at_least_one and not self.values:
            raise BundleError(f"{self._file}: the field {self._prefix!r} is empty. {REMEDY}")
        for name in self.values:
            yield name, self.object(name)

    def elements(self, name: str) -> list[Fields]:
        """Read a list of objects; empty if the field is missing."""
        value = self.values.get(name, [])
        if not isinstance(value, list):
            self.fail(name, "a list of objects", value)
        path = self._path(name)
        return [Fields(x, self._file, f"{path}[{index}]") for index, x in enumerate(value)]

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise BundleError(f"{self._file}: the field {self._path(name)!r} is missing. {REMEDY}")
        return self.values[name]

    def _path(self, name: str) -> str:
        return f"{self._prefix}.{name}" if self._prefix else name


def refuse_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which `json.loads` would accept."""
    raise ValueError(f"{text} is no number of JSON")


def _shown(value: object) -> str:
    """Format a value as JSON, abbreviated for error messages."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."

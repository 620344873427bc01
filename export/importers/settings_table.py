"""Settings of a model, checked against the table of a format's known settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from translate_trt.export.importers.input_files import shown
from translate_trt.runtime.errors import InputError

#: Values that switch off an unknown setting, if settings are pickled with their defaults.
OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})


@dataclass(frozen=True)
class SettingsTable:
    """Known settings of a format.

    Unknown settings are refused because they may change what the model computes.

    Attributes:
        known: Settings that the importer reads, that the weights imply, or that matter only in
            training.
        only: Supported values of further settings, which change the layers.
        off: Values with which an unknown setting has no effect.
    """

    known: Collection[str]
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    off: tuple[Any, ...] = OFF


@dataclass(frozen=True)
class Config:
    """Settings by name; `path` is for error messages."""

    path: Path
    values: dict[str, Any]

    def check(self, table: SettingsTable) -> None:
        """Refuse settings that are unknown, or have an unsupported value.

        Raises:
            InputError: A setting is refused; the message names it.
        """
        for name in sorted(self.values, key=str):
            if name in table.only:
                self.choice(name, table.only[name])
            elif name not in table.known and self.values[name] not in table.off:
                raise self.setting_error(
                    name,
                    "this setting is unknown and may change translations. If you know that it "
                    "does not, remove it from the file",
                )

    def setting_error(self, name: str, why: str) -> InputError:
        """Return the error for an unsuitable value of a setting."""
        escaped = shown(str(name)).strip('"')  # of a file that may contain control characters
        return InputError(f"{self.path}: {escaped} is {shown(self.values.get(name))}; {why}.")

    def choice(self, name: str, allowed: Collection[Any], default: Any = None) -> Any:
        """Return a setting that must have one of the allowed values, if it has no default."""
        value = self.values.get(name, default)
        if not is_one_of(value, allowed):
            raise self.setting_error(name, f"supported: {' or '.join(map(shown, allowed))}")
        return value

    def integer(self, name: str) -> int:
        """Return an integer setting."""
        value = self.values.get(name)
        if type(value) is not int:
            raise self.setting_error(name, "an integer is required")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a Boolean setting."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.setting_error(name, "true or false is required")
        return value

    def check_equal(self, first: str, second: str, read: Callable[[str], Any]) -> None:
        """Refuse a second setting that differs from the first; `read` is a method of this class."""
        if read(second) != read(first):
            raise self.setting_error(
                second, f"it must equal {first}, which is {shown(self.values.get(first))}"
            )

    def text(self, name: str, default: str) -> str:
        """Return a setting that is text."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self.setting_error(name, "text is required")
        return value

    def token(self, name: str, size: int) -> int:
        """Return a token id of a vocabulary of `size` tokens."""
        value = self.optional_token(name, size)
        if value is None:
            raise self.setting_error(name, f"one of the {size} tokens is required")
        return value

    def optional_token(self, name: str, size: int) -> int | None:
        """Return a token id of a vocabulary of `size` tokens, or None."""
        value = self.values.get(name)
        if value is not None and not is_token(value, size):
            raise self.setting_error(name, f"one of the {size} tokens is required")
        return value


def is_token(value: object, size: int) -> bool:
    """Return whether a value is one of `size` token ids."""
    return type(value) is int and 0 <= value < size


def is_one_of(value: object, allowed: Collection[Any]) -> bool:
    """Return whether a value is allowed, distinguishing 0 from false."""
    return any(type(value) is type(other) and value == other for other in allowed)

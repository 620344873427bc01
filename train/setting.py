"""Settings: fields of dataclasses with a help text and a range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from translate_trt.runtime.errors import OptionError


def setting(
    default: Any,
    description: str,
    choices: tuple[str, ...] = (),
    *,
    least: float | None = None,
    above: float | None = None,
    below: float = math.inf,
    imported: bool = False,
    flag: str | None = None,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """Define a field of a dataclass whose values `check_settings` checks.

    Args:
        default: Default of the field.
        description: Text of `--help`.
        choices: Allowed values; empty for any.
        least: Smallest value.
        above: Number that values exceed.
        below: Number that values do not reach.
        imported: Only imported models (docs/import.md) may differ from the default.
        flag: Command-line flag, if not named after the field.
        parse: Reads the value of the flag; None for fields of plain types.
    """
    metadata = {
        "help": description, "choices": choices, "least": least, "above": above, "below": below,
        "imported": imported, "flag": flag, "parse": parse,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Check all fields of an instance against the ranges of `setting`.

    Each number of a tuple must be in the range, and None is always allowed.

    Raises:
        OptionError: A value is out of range.
    """
    for field in dataclasses.fields(settings):
        given = getattr(settings, field.name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and "help" in field.metadata:
                _check(field.name, value, **field.metadata)


def _check(
    name: str, value: Any, *, choices: tuple[str, ...], least: float | None, above: float | None,
    below: float, **_: Any,
) -> None:  # fmt: skip
    if choices and value not in choices:
        raise OptionError(f"{name} {value!r}: choose {', '.join(choices)}.")
    if least is not None and not least <= value < below:
        limit = "" if below == math.inf else f" and less than {below:g}"
        raise OptionError(f"{name} is {value}; it must be at least {least:g}{limit}.")
    if above is not None and not above < value < below:
        raise OptionError(f"{name} is {value}; it must be greater than {above:g}.")

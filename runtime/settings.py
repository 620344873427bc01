"""Settings: fields of dataclasses with a help text and a range."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import whole_number

_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("greater than", operator.gt),
    "most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}


def setting(
    default: Any,
    description: str,
    choices: tuple[str, ...] = (),
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
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
        most: Largest value.
        below: Number that values do not reach.
        imported: Only imported models (docs/import.md) may differ from the default.
        flag: Command-line flag, if not named after the field.
        parse: Reads the value of the flag; None for fields of plain types.
    """
    if below is None and (least is not None or above is not None):
        below = math.inf  # refuses infinity
    metadata = {
        "help": description, "choices": choices, "least": least, "above": above, "most": most,
        "below": below, "imported": imported, "flag": flag, "parse": parse,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Check all fields of an instance against their types and the ranges of `setting`.

    Each number of a tuple must be in the range, and None is always allowed.

    Raises:
        OptionError: A value is out of range, or no whole number where it must be one.
    """
    for field in dataclasses.fields(settings):
        given = getattr(settings, field.name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and "help" in field.metadata:
                if field.type in ("int", "int | None"):
                    whole_number(field.name, value)
                _check(field.name, value, field.metadata)


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if limits["choices"] and value not in limits["choices"]:
        raise OptionError(f"{name} {value!r}: choose {', '.join(limits['choices'])}.")
    known = [(limits[key], *rule) for key, rule in _LIMITS.items() if limits[key] is not None]
    if not all(fits(value, limit) for limit, _, fits in known):
        words = [f"{text} {limit:g}" for limit, text, _ in known if limit != math.inf]
        raise OptionError(f"{name} is {value}; it must be {' and '.join(words)}.")

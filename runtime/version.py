"""The version of the installed distribution."""

from __future__ import annotations

import importlib.metadata


def version_numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "10.14.1.48.post1" is (10, 14, 1, 48)."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def version() -> str:
    """Such as "0.1.0"; read from the installation's metadata, so that it stands in one place."""
    return importlib.metadata.version("translate-trt")

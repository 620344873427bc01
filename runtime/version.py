"""Version of the installed distribution."""

from __future__ import annotations

import importlib.metadata


def version_numbers(text: str) -> tuple[int, ...]:
    """Parse the leading numbers of a version: "10.14.1.48.post1" gives (10, 14, 1, 48)."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def version() -> str:
    """Version of this distribution, such as "0.1.0", read from its installed metadata."""
    return importlib.metadata.version("translate-trt")

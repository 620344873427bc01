"""JSON files of other people: whatever they hold, reading them ends in a value or an InputError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import InputError


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON, or has brackets within brackets without end.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def load_json(path: Path, hint: str = "copy the whole directory again") -> Any:
    """Read a JSON file.

    Args:
        path: of the file.
        hint: what to do about a file that is missing.

    Raises:
        InputError: it is missing, or no JSON, or nested deeper than Python reads.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {hint}.") from error
    except ValueError as error:
        raise InputError(
            f"cannot read {path}: it is no JSON: {error}. Copy the directory again."
        ) from error


def shown(value: object) -> str:
    """A value of a JSON file as JSON, cut to what fits a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "nested too deeply to be shown"
    return text if len(text) <= 60 else text[:57] + "..."

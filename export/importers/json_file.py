"""Reading of untrusted JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from translate_trt.runtime.errors import InputError


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def load_json(path: Path, hint: str = "copy the whole directory again") -> Any:
    """Read a JSON file.

    Args:
        path: Path of the file.
        hint: Advice for a missing file.

    Raises:
        InputError: The file is missing, not JSON, or nested too deeply.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {hint}.") from error
    except ValueError as error:
        raise InputError(
            f"cannot read {path}: it is not JSON: {error}. Copy the directory again."
        ) from error


def shown(value: object) -> str:
    """Format a value as JSON, truncated for an error message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "nested too deeply to be shown"
    return text if len(text) <= 60 else text[:57] + "..."

"""Rules of collection: ids that stay the same."""

from __future__ import annotations

from pathlib import PurePath

import pytest


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Refuse test ids that pytest would derive from bytes, paths and sets.

    They may hold times, temporary folders or an order that changes with the hash seed. pytest-xdist
    then runs nothing, since its processes have collected different tests.
    """
    if isinstance(val, bytes | bytearray | PurePath | set | frozenset):
        kind = type(val).__name__
        raise pytest.UsageError(f"parameter {argname} is of {kind}; give it an id (ids=...).")
    return None

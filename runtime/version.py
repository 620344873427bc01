"""The version of the installed distribution."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Such as "0.1.0"; read from the installation's metadata, so that it stands in one place."""
    return importlib.metadata.version("translate-trt")

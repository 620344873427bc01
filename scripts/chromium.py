"""Chromium on this machine, for scripts that open the web page."""

from __future__ import annotations

import os
import shutil

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Return the path of the program in CHROMIUM or on the PATH; None without one."""
    named = (os.environ.get("CHROMIUM", ""), *_PROGRAMS)
    return next(filter(None, map(shutil.which, named)), None)

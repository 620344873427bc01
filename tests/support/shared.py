"""Files shared by all tests of a run, made by the first process that needs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


class SharedFiles:
    """Files and folders of one test run, each made once for all processes of pytest-xdist.

    Args:
        folder: the same for all processes of a run, and of no other run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return a file or folder by name, made on first use; tests must copy it to change it.

        Args:
            name: without slashes.
            make: writes it at the path given. If it fails, the next who asks tries again.
        """
        made = self._folder / name
        partial = self._folder / f"{name}.partial"
        with FileLock(self._folder / f"{name}.lock"):
            if not made.exists():
                if partial.is_dir():
                    shutil.rmtree(partial)
                make(partial)
                partial.rename(made)
        return made


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedFiles:
    """Files that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a folder inside that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return SharedFiles(folder)

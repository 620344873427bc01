"""Files shared by all tests of a run, made by the first process that needs them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from support.disk_cache import FOLDER, DiskCache, describe_makers, hash_text


class SharedFiles:
    """Files and folders of one test run, each made once for all processes of pytest-xdist.

    Args:
        folder: the same for all processes of a run, and of no other run.
        cache: of `kept`; None keeps nothing over runs.
    """

    def __init__(self, folder: Path, cache: DiskCache | None = None) -> None:
        self._folder, self._cache = folder, cache

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

    def kept(
        self,
        kind: str,
        makers: Sequence[str],
        values: object,
        make: Callable[[Path], object],
        apart: Sequence[str] = (),
    ) -> Path:
        """Return a file or folder that is made once for all runs with the same sources.

        Args:
            kind: Begin of the name.
            makers: Modules whose code, with that of all they import, decides what is made.
            values: All else that decides it, with the same `repr` in all processes.
            make: As in `once`.
            apart: Modules that makers import, but that decide nothing.
        """
        name = f"{kind}-{hash_text(values)}"

        def fetch(path: Path) -> None:
            cache, version = self._cache, describe_makers(makers, apart)
            if cache is None or version is None:
                make(path)
                return
            entry = f"{name}-{version}"
            if not cache.read(entry, path):
                make(path)
                with contextlib.suppress(OSError):  # such as a full disk
                    cache.write(entry, path)

        return self.once(name, fetch)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedFiles:
    """Files that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a folder inside that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    # Of what was made by an earlier run, coverage would see no line.
    measured = {"COVERAGE_RUN", "COVERAGE_PROCESS_START"} & os.environ.keys()
    return SharedFiles(folder, None if measured else DiskCache(FOLDER))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # of pytest-xdist
        DiskCache(FOLDER).prune()

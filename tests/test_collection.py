"""The suite is collected alike by every process, whatever the time and the seed of hashes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.collection import COLLECTED
from support.paths import ROOT

pytestmark = pytest.mark.slow


def test_a_second_collection_finds_the_same_tests(request: pytest.FixtureRequest) -> None:
    """Compare with a collection made later, by a process with another hash seed.

    pytest-xdist runs nothing where two processes collect different tests.
    """
    here = request.config.stash[COLLECTED]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    arguments = [*request.config.args, "-p", "no:cacheprovider", "-p", "no:xdist"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    there = [line for line in found.stdout.splitlines() if "::" in line]
    assert there, found.stdout + found.stderr
    assert sorted(set(here) ^ set(there)) == []
    assert sorted(here) == sorted(there)  # pytest orders by fixtures after it has collected

"""The version in all files, and release notes from the changelog."""

from __future__ import annotations

import re
import tomllib
from types import ModuleType

import pytest
from support.paths import ROOT
from support.scripts import load_script

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-12-01

### Added

- A feature.

## [1.1.0] - 2026-11-01

- Another.

[Unreleased]: https://example.org
"""


@pytest.fixture(scope="module")
def release_notes() -> ModuleType:
    return load_script("release_notes")


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == VERSION  # type: ignore[index]


def test_notes_are_the_section_of_the_version(release_notes: ModuleType) -> None:
    assert release_notes.section(CHANGELOG, "1.2.0") == "### Added\n\n- A feature."
    assert release_notes.section(CHANGELOG, "1.1.0") == "- Another."
    with pytest.raises(SystemExit, match=r'"## \[1.*0\] -'):
        release_notes.section(CHANGELOG, "1.3.0")
    with pytest.raises(SystemExit):
        release_notes.section(CHANGELOG, "1.2")

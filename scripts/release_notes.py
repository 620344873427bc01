"""Print a version's section of CHANGELOG.md, for the notes of its release.

    python scripts/release_notes.py v0.1.0

The exit code is 1 if the tag is not the version of pyproject.toml, or if CHANGELOG.md has no dated
section for the version.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def section(changelog: str, version: str) -> str:
    """The text below a version's heading, which has its date: `## [0.1.0] - 2026-11-30`."""
    heading = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    start = heading.search(changelog)
    if start is None:
        raise SystemExit(f'CHANGELOG.md has no heading "## [{version}] - YYYY-MM-DD".')
    text = changelog[start.end() :]
    end = re.search(r"^(## |\[[^\]]+\]: )", text, re.MULTILINE)
    return text[: end.start() if end else None].strip()


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit("usage: release_notes.py TAG")
    (tag,) = arguments
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if tag != f"v{project['version']}":
        raise SystemExit(f"The tag is {tag}, but pyproject.toml has version {project['version']}.")
    print(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), project["version"]))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Hosted CI calls scripts that exist, with pinned actions and few permissions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_scripts_exist_and_actions_are_pinned(path: Path) -> None:
    for step in steps(path):
        for script in re.findall(r"scripts/[\w./]+", step.get("run", "")):
            assert (ROOT / script).is_file(), script
        assert "\n" not in step.get("run", ""), "logic belongs in a script"
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[\w./-]+", step.get("uses", "a/b@c")), step


def test_the_tested_versions_are_those_of_the_package() -> None:
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    named = re.findall(r":: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"

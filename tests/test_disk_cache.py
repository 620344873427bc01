"""Tests of the cache of what tests compile: complete, current, and bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support import disk_cache
from support.disk_cache import DiskCache, describe_makers
from support.shared import SharedFiles


def folder(path: Path, text: str = "text") -> None:
    (path / "inside").mkdir(parents=True)
    (path / "inside/file").write_text(text)


def test_a_second_run_makes_nothing_and_cannot_damage_the_cache(tmp_path: Path) -> None:
    made = []

    def make(path: Path) -> None:
        made.append(path)
        folder(path)

    for run in ("one", "two", "three"):
        (tmp_path / run).mkdir()
        shared = SharedFiles(tmp_path / run, DiskCache(tmp_path / "cache"))
        path = shared.kept("name", ["support.disk_cache"], ("value", 1), make)
        assert (path / "inside/file").read_text() == "text"
        (path / "inside/file").write_text("changed by a test")
        assert len(made) == 1
        assert [x.suffix for x in (tmp_path / run).iterdir() if x != path] == [".lock"]
    for values in (("value", 2), ("other", 1)):
        shared.kept("name", ["support.disk_cache"], values, make)
    shared.kept("name", ["support.shared"], ("value", 1), make)
    assert len(made) == 3  # the last has the name of the first in this run
    (tmp_path / "four").mkdir()
    shared = SharedFiles(tmp_path / "four", DiskCache(tmp_path / "cache"))
    shared.kept("name", ["support.shared"], ("value", 1), make)
    assert len(made) == 4


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Source folder of translate_trt.export, with sources that import each other."""
    (tmp_path / "passes").mkdir()
    (tmp_path / "passes/__init__.py").write_text("import translate_trt.export.unrelated\n")
    (tmp_path / "passes/one.py").write_text("def f(): ...\n")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/table.txt").write_text("1")
    (tmp_path / "reader.py").write_text("import importlib.resources\n")
    (tmp_path / "compile.py").write_text(
        "import torch\n"
        "from translate_trt.export.passes.one import f\n"
        "def g():\n    from translate_trt.export import reader\n"
    )
    monkeypatch.setattr(disk_cache, "_package_path", lambda _: [tmp_path])
    monkeypatch.setattr(disk_cache, "_START", time.time() + 1000)
    return tmp_path


def key() -> str | None:
    disk_cache._sources.cache_clear()
    try:
        return describe_makers(["translate_trt.export.compile"])
    finally:
        disk_cache._sources.cache_clear()


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("compile.py", True), ("passes/one.py", True), ("reader.py", True),
        ("data/table.txt", True), ("unrelated.py", False),
    ],
)  # fmt: skip
def test_a_key_has_all_that_is_imported(file: str, changes: bool, package: Path) -> None:
    before = key()
    assert before == key() is not None
    with (package / file).open("a") as written:
        written.write("# a change\n")
    assert (key() != before) == changes


def test_sources_newer_than_the_process_give_no_key(package: Path) -> None:
    assert key() is not None
    os.utime(package / "passes/one.py", (0, time.time() + 2000))
    assert key() is None

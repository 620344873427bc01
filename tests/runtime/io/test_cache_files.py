"""Files of the user's cache."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from translate_trt.runtime.io import cache_files
from translate_trt.runtime.io.cache_files import (
    cache_directory,
    engine_directory,
    load_cached,
    store_cached,
)


def test_readers_never_see_a_part_of_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    contents = [bytes([number]) * 200_000 for number in range(2)]
    store_cached(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(30):
            store_cached(path, contents[turn % 2])
        done.set()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = set()
    while not done.is_set():
        seen.add(load_cached(path))
    for writer in writers:
        writer.join()
    assert seen <= set(contents)
    assert [child.name for child in tmp_path.iterdir()] == ["entry"]


def test_a_file_in_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not store_cached(tmp_path / "file" / "entry", b"content")
    assert load_cached(tmp_path / "file" / "entry") is None
    assert load_cached(tmp_path) is None
    assert "cache" in caplog.text


def test_the_default_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(cache_files.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "translate-trt"
    assert engine_directory() == tmp_path / "translate-trt" / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory() == Path.home() / ".cache" / "translate-trt"


def test_the_variable_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache_files.VARIABLE, str(tmp_path))
    assert engine_directory() == tmp_path / "engines"
    monkeypatch.setenv(cache_files.VARIABLE, "none")
    assert cache_directory() is None
    assert engine_directory() is None


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", missing)
    for name in (cache_files.VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert engine_directory() is None

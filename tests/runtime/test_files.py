from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from translate_trt.runtime import files
from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.files import new_directory, write_json, write_text_atomically

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def ours(path: Path, content: str = "old") -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(content)
    return path


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text_atomically(path, "ü\r\n\u2028x")
    assert path.read_bytes() == "ü\r\n\u2028x".encode()
    write_text_atomically(path, "new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_file_gets_the_mode_of_the_umask(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_json_ends_in_a_newline_and_keeps_order(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": "ß", "a": [1]})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert "ß" in text
    assert list(json.loads(text)) == ["b", "a"]


def test_json_refuses_nan_and_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert path.read_text() == "1\n"


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OutputError if error is FULL else KeyboardInterrupt):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_missing_parent_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        write_text_atomically(tmp_path / "no" / "a", "x")


def test_directory_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle"
    with new_directory(path) as work:
        (work / "sub").mkdir()
        (work / "sub" / "f").write_text("x")
        assert not path.exists()
        assert work.parent == path.parent
    assert (path / "sub" / "f").read_text() == "x"
    assert names(path.parent) == ["bundle"]


def test_directory_gets_the_mode_of_the_umask(tmp_path: Path) -> None:
    with new_directory(tmp_path / "a"):
        pass
    (tmp_path / "b").mkdir()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_files_reach_the_disk_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, rename = files._sync_file, files.os.rename
    monkeypatch.setattr(files, "_sync_file", lambda p: (calls.append(p.name), sync(p)))
    monkeypatch.setattr(files.os, "rename", lambda a, b: (calls.append("rename"), rename(a, b)))
    with new_directory(tmp_path / "a") as work:
        (work / "sub").mkdir()
        (work / "sub" / "weights").write_text("x")
    assert calls == ["weights", "rename"]


def test_existing_path_is_refused_before_any_work(tmp_path: Path) -> None:
    ours(tmp_path / "a")
    refused = pytest.raises(OutputError, match="exists; choose another path or add --force")
    with refused, new_directory(tmp_path / "a"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("marker", ["manifest.json", "config.json", None])
def test_force_replaces_what_is_ours_or_empty(tmp_path: Path, marker: str | None) -> None:
    path = tmp_path / "a"
    path.mkdir()
    if marker:
        (path / marker).write_text("old")
        (path / "extra").write_text("old")
    with new_directory(path, force=True) as work:
        (work / "new").write_text("x")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["a"]


def test_force_refuses_what_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    (path / "thesis.txt").write_text("precious")
    refused = pytest.raises(OutputError, match="neither a bundle nor a checkpoint")
    with refused, new_directory(path, force=True):
        pytest.fail("the block must not run")
    assert (path / "thesis.txt").read_text() == "precious"


def test_force_refuses_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(OutputError, match="is a file"), new_directory(path, force=True):
        pytest.fail("the block must not run")
    assert path.read_text() == "precious"


def test_force_follows_a_link_to_the_real_directory(tmp_path: Path) -> None:
    ours(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    with new_directory(tmp_path / "link", force=True) as work:
        (work / "new").write_text("x")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["new"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (FULL, OutputError),
        (RuntimeError("IoError: No space left on device (os error 28)"), OutputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (InputError("bad"), InputError),
        (ValueError("bug"), ValueError),
        (PermissionError(errno.EACCES, "Permission denied", "/elsewhere/input"), PermissionError),
    ],
)
def test_failure_leaves_the_old_directory_and_nothing_else(
    tmp_path: Path, raised: BaseException, expected: type[BaseException]
) -> None:
    path = ours(tmp_path / "a")

    def fail_halfway() -> None:
        with new_directory(path, force=True) as work:
            (work / "half").write_text("x")
            raise raised

    with pytest.raises(expected):
        fail_halfway()
    assert names(tmp_path) == ["a"]
    assert (path / "manifest.json").read_text() == "old"


def test_permission_error_inside_is_an_output_error(tmp_path: Path) -> None:
    refused = pytest.raises(OutputError, match="Choose a path that you may write to")
    with refused, new_directory(tmp_path / "a") as work:
        raise PermissionError(errno.EACCES, "Permission denied", str(work / "weights"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("failing_call", [1, 2])
def test_old_directory_survives_a_failed_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    path = ours(tmp_path / "a")
    rename, calls = files.os.rename, []

    def flaky(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing_call:
            raise OSError(errno.EBUSY, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(files.os, "rename", flaky)
    with pytest.raises(OutputError, match="busy"), new_directory(path, force=True):
        pass
    assert names(tmp_path) == ["a"]
    assert (path / "manifest.json").read_text() == "old"


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write"), new_directory(tmp_path / "file" / "a"):
        pytest.fail("the block must not run")


def test_ctrl_c_in_a_process_leaves_the_old_directory(tmp_path: Path) -> None:
    ours(tmp_path / "a")
    code = (
        "import os, signal, sys, pathlib\n"
        "from translate_trt.runtime.files import new_directory\n"
        # A shell starts what runs in the background with Ctrl-C ignored, and that is inherited.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with new_directory(pathlib.Path(sys.argv[1]), force=True) as work:\n"
        "    (work / 'half').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, timeout=60
    )
    assert b"KeyboardInterrupt" in done.stderr
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["manifest.json"]

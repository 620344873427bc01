from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.io import atomic_files as files
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers,
    clear_leftovers_in,
    new_contents,
    new_directory,
    new_file,
    write_bytes_atomically,
    write_json,
)
from translate_trt.runtime.io.locks import held, locked
from translate_trt.runtime.io.outputs import Kind, check_apart, check_file

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def ours(path: Path, content: str = "old") -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(content)
    return path


def made(directory: Path) -> list[str] | None:
    """Return the files of a directory that `ours` created."""
    return ["manifest.json", "more/weights"] if (directory / "manifest.json").exists() else None


THING = Kind("thing", "translate-trt make", made)


def test_text_is_written_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_bytes_atomically(path, "ü\r\n\u2028x".encode())
    assert path.read_bytes() == "ü\r\n\u2028x".encode()
    write_bytes_atomically(path, b"new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_modes_are_those_of_the_umask(tmp_path: Path) -> None:
    write_bytes_atomically(tmp_path / "a", b"x")
    (tmp_path / "b").write_text("x")
    with new_directory(tmp_path / "c"):
        pass
    (tmp_path / "d").mkdir()
    for one, other in ("ab", "cd"):
        assert (tmp_path / one).stat().st_mode == (tmp_path / other).stat().st_mode


def test_parents_that_are_missing_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError):
        write_bytes_atomically(tmp_path / "no" / "a", b"x")
    with pytest.raises(OutputError), new_directory(tmp_path / "file" / "a"):
        pytest.fail("the block must not run")


def test_json_keeps_order_and_refuses_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": "ß", "a": [1]})
    text = path.read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert "ß" in text
    assert list(json.loads(text)) == ["b", "a"]
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert path.read_text(encoding="utf-8") == text


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
        write_bytes_atomically(path, b"new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_directory_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle"
    with new_directory(path) as work:
        (work / "sub").mkdir()
        (work / "sub" / "f").write_text("x")
        assert not path.exists()
        assert work.parent == path.parent
    assert (path / "sub" / "f").read_text() == "x"
    assert names(path.parent) == ["bundle"]


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
    refused = pytest.raises(OutputError, match="--force")
    with refused, new_directory(tmp_path / "a"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "ours"])
def test_force_replaces_what_is_ours_or_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool, exchange: bool
) -> None:
    path = tmp_path / "a"
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    if empty:
        path.mkdir()
    else:
        ours(path)
        (path / "more").mkdir()
        (path / "more" / "weights").write_text("old")
        (path / ".manifest.json.0123abcd.partial").write_text("half")  # left by a killed process
    with new_directory(path, force=True, kind=THING) as work:
        (work / "new").write_text("x")
    assert names(path) == ["new"]
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", [THING, None], ids=["another", "none"])
def test_force_refuses_what_is_not_ours(tmp_path: Path, kind: Kind | None) -> None:
    path = tmp_path / "home"
    path.mkdir()
    (path / "thesis.txt").write_text("precious")
    refused = pytest.raises(OutputError, match="--force")
    with refused, new_directory(path, force=True, kind=kind):
        pytest.fail("the block must not run")
    assert (path / "thesis.txt").read_text() == "precious"
    assert names(tmp_path) == ["home"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("name", ["notes.txt", "more/notes.txt", "link"])
def test_force_names_a_file_that_is_not_ours(tmp_path: Path, name: str, when: str) -> None:
    path = ours(tmp_path / "a")
    (path / "more").mkdir()

    def add() -> None:
        if name == "link":
            (path / "link").symlink_to(tmp_path)
        else:
            (path / name).write_text("precious")

    if when == "before":
        add()
    refused = pytest.raises(OutputError, match=f"{path / name} is not part of the thing")
    with refused, new_directory(path, force=True, kind=THING):
        assert when == "meanwhile"
        add()
    assert (path / name).exists()
    assert (path / "manifest.json").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_force_refuses_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(OutputError), new_directory(path, force=True):
        pytest.fail("the block must not run")
    assert path.read_text() == "precious"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_force_refuses_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError):
        check_file(tmp_path / "pipe", True, lambda _: True, "a text")


def test_force_follows_a_link_to_the_real_directory(tmp_path: Path) -> None:
    ours(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    with new_directory(tmp_path / "link", force=True, kind=THING) as work:
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
        with new_directory(path, force=True, kind=THING) as work:
            (work / "half").write_text("x")
            raise raised

    with pytest.raises(expected):
        fail_halfway()
    assert names(tmp_path) == ["a"]
    assert (path / "manifest.json").read_text() == "old"


def test_permission_error_inside_is_an_output_error(tmp_path: Path) -> None:
    refused = pytest.raises(OutputError, match="may write")
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

    monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    monkeypatch.setattr(files.os, "rename", flaky)
    refused = pytest.raises(OutputError, match="busy")
    with refused, new_directory(path, force=True, kind=THING):
        pass
    assert names(tmp_path) == ["a"]
    assert (path / "manifest.json").read_text() == "old"


def test_what_a_killed_process_left_is_cleared_and_what_is_under_way_is_not(tmp_path: Path) -> None:
    (tmp_path / ".a.0123abcd.partial").mkdir()
    (tmp_path / ".a.0123abcd.partial" / "weights").write_text("half")
    for name in (".a.89ab0123.partial", ".b.0123abcd.partial", ".a.mine.partial", ".a.lock"):
        (tmp_path / name).write_text("")
    with held(tmp_path / ".a.89ab0123.partial") as ours, new_directory(tmp_path / "a"):
        assert ours
        clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == [".a.89ab0123.partial", ".a.mine.partial", ".b.0123abcd.partial", "a"]


def test_a_directory_lost_between_two_renames_is_put_back(tmp_path: Path) -> None:
    """Simulate SIGKILL on a system that cannot exchange two names."""
    ours(tmp_path / ".a.0123abcd.old")
    ours(tmp_path / ".a.89ab0123.partial", "new")
    with pytest.raises(OutputError, match="exists"), new_directory(tmp_path / "a"):
        pytest.fail("the block must not run")
    assert (tmp_path / "a" / "manifest.json").read_text() == "old"
    with new_directory(tmp_path / "a", force=True, kind=THING) as work:
        (work / "new").write_text("x")
    assert names(tmp_path) == ["a"]


def test_the_leftovers_of_a_folder_include_no_directory_that_was_lost(tmp_path: Path) -> None:
    ours(tmp_path / ".a.b.0123abcd.old")
    ours(tmp_path / ".c.0123abcd.old")
    ours(tmp_path / "c", "new")
    clear_leftovers_in(tmp_path)
    assert names(tmp_path) == ["a.b", "c"]
    assert (tmp_path / "a.b" / "manifest.json").read_text() == "old"
    assert (tmp_path / "c" / "manifest.json").read_text() == "new"


def test_a_partial_file_that_another_process_cleared_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made_files = files._make_file, []

    def robbed(path: Path) -> None:
        make(path)
        made_files.append(path)
        if len(made_files) == 1:
            clear_leftovers(tmp_path / "a")

    monkeypatch.setattr(files, "_make_file", robbed)
    with new_file(tmp_path / "a") as file:
        clear_leftovers(tmp_path / "a")
        file.write(b"whole")
    assert len(made_files) == 2
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert names(tmp_path) == ["a"]


def test_the_second_process_is_told_who_writes(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from translate_trt.runtime.io.atomic_files import new_directory\n"
        "with new_directory(pathlib.Path(sys.argv[1])) as work:\n"
        "    print('at work', flush=True)\n"
        "    sys.stdin.read()\n"
        "    (work / 'f').write_text('first')\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"at work\n"
    refused = pytest.raises(OutputError, match=rf"process {first.pid} on \S+ is writing to .*/a;")
    with refused, new_directory(tmp_path / "a"):
        pytest.fail("the block must not run")
    first.communicate(timeout=60)
    assert (tmp_path / "a" / "f").read_text() == "first"
    assert names(tmp_path) == ["a"]


def test_without_locks_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("translate_trt.runtime.io.locks.try_lock", lambda descriptor: None)
    (tmp_path / ".a.0123abcd.partial").mkdir()  # possibly in use: without locks this is unknown
    with new_directory(tmp_path / "a"):
        pass
    assert names(tmp_path) == [".a.0123abcd.partial", "a"]
    assert "support locks" in caplog.text


def test_a_lock_file_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("content")
    (tmp_path / "lock").symlink_to("other")
    message = r"cannot create its lock file .*lock: it is a symbolic link\. Remove it"
    with pytest.raises(OutputError, match=message), locked(tmp_path / "lock", tmp_path):
        pytest.fail("the block must not run")
    assert (tmp_path / "other").read_text() == "content"


@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_contents_are_switched_wherever_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Simulate SIGKILL before the n-th rename."""
    old, new = {"index": "old", "a": "old", "gone": "old"}, {"index": "new", "a": "new", "b": "new"}
    directory = tmp_path / "data"
    directory.mkdir()
    for name, text in old.items():
        (directory / name).write_text(text)

    def obsolete(path: Path) -> list[Path]:
        return [path / "index", path / "a", path / "gone"]

    class KilledError(Exception):
        pass

    calls = []
    for name in ("rename", "replace"):
        original = getattr(os, name)

        def cut(source: Path, target: Path, original: Any = original) -> None:
            calls.append(source)
            if len(calls) > before:
                raise KilledError
            original(source, target)

        monkeypatch.setattr(files.os, name, cut)

    def switch() -> None:
        with new_contents(directory, obsolete, "index") as fresh:
            for name, text in new.items():
                (fresh / name).write_text(text)

    with pytest.raises(KilledError):
        switch()
    monkeypatch.undo()
    files.finish_switch(directory, obsolete, "index")
    found = {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}
    assert found == (old if before == 0 else new)
    assert not any(path.is_dir() for path in directory.iterdir())


@pytest.mark.parametrize("link", ["none", "symbolic", "hard"])
def test_an_output_is_never_its_input(tmp_path: Path, link: str) -> None:
    given, out = tmp_path / "in.txt", tmp_path / "out.txt"
    given.write_text("text")
    if link == "none":
        out = tmp_path / "." / "in.txt"
    elif link == "symbolic":
        out.symlink_to(given)
    else:
        os.link(given, out)
    with pytest.raises(OutputError, match="is the input"):
        check_apart(out, [given])


def test_an_output_lies_in_no_input_and_holds_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("")
    (tmp_path / "link").symlink_to("model")
    for out in (tmp_path / "model" / "new" / "deeper", tmp_path / "link" / "new"):
        with pytest.raises(OutputError, match="/model"):
            check_apart(out, [None, tmp_path / "model"])
    for out in (tmp_path / "model", tmp_path / "link"):
        with pytest.raises(OutputError, match="would replace"):
            check_apart(out, [tmp_path / "model" / "weights"])
    check_apart(tmp_path / "models", [tmp_path / "model", "-", tmp_path / "missing"])
    check_apart(Path(os.devnull), [os.devnull])

"""Outputs of commands: no overlap with inputs, no foreign files, one command at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.io.locks import LOCK, locked

pytest.importorskip("torch", reason="the training packages are needed")

from support.models import save_model

from translate_trt.export.importers.imported import Imported
from translate_trt.train.checkpoint import IMPORTED, imported_files, open_checkpoint

pytestmark = pytest.mark.slow


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def contents(directory: Path) -> dict[str, bytes]:
    """Hash all files below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def checkpoint_copy(checkpoint: Any, tmp_path: Path) -> Path:
    path: Path = shutil.copytree(checkpoint.path, tmp_path / "ck")
    return path


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Create a user's directory that contains names of our files."""
    directory = tmp_path / "thesis"
    directory.mkdir()
    for name in ("config.json", "manifest.json", "repository.json", "run.json", "data.json"):
        (directory / name).write_text('{"mine": true}')
    (directory / "thesis.tex").write_text("years")
    return directory


def test_export_keeps_a_run_that_it_would_replace(checkpoint_copy: Path, tmp_path: Path) -> None:
    run_directory = tmp_path / "run"
    shutil.copytree(checkpoint_copy, run_directory / "checkpoint-averaged")
    before = contents(run_directory)
    for out in (run_directory, run_directory / "bundle"):
        done = run("export", run_directory, "--output", out, "--force")
        assert done.exit_code == 1
        assert "the input" in done.stderr
    assert contents(run_directory) == before


def test_import_keeps_its_model(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "model.bin").write_bytes(b"weights")
    (model / "config.json").write_text("{}")
    done = run("import", "ctranslate2", model, "--output", model / "checkpoint", "--force")
    assert done.exit_code == 1
    assert "the input" in done.stderr
    assert contents(model) == {"model.bin": b"weights", "config.json": b"{}"}


COMMANDS = {
    "export": ("export", "{ck}", "--output"),
    "triton": ("triton", "{bundle}", "--output"),
    "train": ("train", "--train", "{text}", "{text}", "--valid", "{text}", "{text}", "--output"),
    "data prepare": ("data", "prepare", "--from", "{text}", "{text}", "--valid", "{text}",
                     "{text}", "--output"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(COMMANDS))
def test_somebody_elses_directory_is_not_replaced(
    name: str, checkpoint_copy: Path, make_bundle: Callable[..., Path], thesis: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("a\n")
    paths = {"ck": checkpoint_copy, "bundle": make_bundle(), "text": tmp_path / "text"}
    arguments = [one.format(**paths) for one in COMMANDS[name]]
    before = contents(thesis)
    done = run(*arguments, thesis, "--force")
    assert done.exit_code == 1, done.output
    assert str(thesis) in done.stderr
    assert contents(thesis) == before


def test_an_import_replaces_what_import_made_alone(
    checkpoint: Any, tokenizer_model: Path, tmp_path: Path
) -> None:
    model, path = checkpoint.load_model(), tmp_path / "out"
    imported = Imported(model, (tokenizer_model.read_bytes(),) * 2, "a test", {})
    imported.save(path, (None, None))
    imported.save(path, ("en", "de"), force=True)
    assert open_checkpoint(path).source_language == "en"
    assert imported_files(path) is not None
    shutil.rmtree(path)
    save_model(model, path, tokenizer_model)  # by training
    with pytest.raises(Exception, match=f"is no {IMPORTED.name} that"):
        imported.save(path, (None, None), force=True)


def test_what_is_written_in_place_is_locked(
    checkpoint_copy: Path, make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """Hold a lock as another process would: locks belong to open files, not to processes."""
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("a\n")
    out.mkdir()
    paths = {"ck": checkpoint_copy, "bundle": make_bundle(), "text": text}
    for name in ("train", "data prepare", "triton"):
        lock = tmp_path / ".out.lock" if name == "triton" else out / LOCK
        arguments = [one.format(**paths) for one in COMMANDS[name]]
        with locked(lock, out):
            done = run(*arguments, out, *(["--resume"] if name == "train" else []))
        assert done.exit_code == 1, done.stderr
        assert f"process {os.getpid()} on " in done.stderr
        assert str(out) in done.stderr
    assert list(out.iterdir()) == []


def test_notes_in_a_run_are_not_deleted(tmp_path: Path, checkpoint: Any) -> None:
    out, text = tmp_path / "run", tmp_path / "text"
    text.write_text("a\n")
    out.mkdir()
    (out / "run.json").write_text(json.dumps({"model": {}, "train": {}}))
    (out / "tensorboard").mkdir()
    (out / "tensorboard" / "events.out.tfevents.1").write_text("")
    shutil.copytree(checkpoint.path, out / "checkpoint-00000004")
    notes = out / "checkpoint-00000004" / "notes.txt"
    notes.write_text("mine")
    arguments = [one.format(text=text) for one in COMMANDS["train"]]
    done = run(*arguments, out, "--force")
    assert done.exit_code == 1
    assert f"{notes} was not written by translate-trt train" in done.stderr
    assert notes.read_text() == "mine"

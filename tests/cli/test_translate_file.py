"""`translate-trt translate-file`: inputs, outputs and reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

TEXT = "The cat runs.\n\n12\n\nThe cat runs.\n"


@pytest.fixture
def translate_file(compiled_bundle: Path) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        flags = ["--bundle", compiled_bundle, "--beam-size", 1, "--threads", 1, *arguments]
        return CliRunner().invoke(main, ["translate-file", *map(str, flags)])

    return run


def test_a_file_with_a_report(translate_file: Callable[..., Result], tmp_path: Path) -> None:
    source, out, report = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "report.jsonl"
    source.write_text(TEXT)
    done = translate_file(source, "-o", out, "--report", report)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert [row["origin"] for row in rows] == ["model", "none", "repeated"]
    assert "".join(row["translation"] for row in rows).split() == out.read_text().split()
    assert translate_file(source, "-o", out).exit_code == 1  # it exists
    assert translate_file(source, "-o", source, "--force").exit_code == 1
    for path in (source, out, report):  # the report would replace it
        new = tmp_path / ("c.txt" if path != out else "b.txt")
        assert translate_file(source, "-o", new, "--report", path).exit_code == 1
    assert source.read_text() == TEXT
    other = tmp_path / "d.txt"
    assert translate_file(source, "-o", other, "--report", other).exit_code == 1
    assert translate_file(source, "-o", os.devnull, "--force").exit_code == 1


def test_directories_and_patterns(translate_file: Callable[..., Result], tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    (source / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.html", "sub/c.unknown"):
        (source / name).write_text(TEXT)
    (source / "d.srt").write_text("1\n00:00 -->\n")
    done = translate_file(source, "-o", out)
    assert done.exit_code == 1
    assert "d.srt" in done.stderr
    files = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    assert files == {"a.txt", "sub/b.html"}
    (out / "a.txt").write_text("kept")
    (source / "d.srt").unlink()
    assert translate_file(source, "-o", out, "--resume").exit_code == 0
    assert (out / "a.txt").read_text() == "kept"
    assert translate_file(f"{source}/**/*.html", "-o", tmp_path / "other").exit_code == 0
    assert (tmp_path / "other/sub/b.html").exists()
    assert translate_file(source / "sub/c.unknown", "-o", out).exit_code == 1
    assert translate_file(source / "sub/c.unknown", "-o", out, "--format", "txt").exit_code == 0


def test_a_memory(translate_file: Callable[..., Result], tmp_path: Path) -> None:
    source, out, memory = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "a.tmx"
    source.write_text(TEXT)
    memory.write_text(
        '<tmx><body><tu><tuv xml:lang="en"><seg>The cat runs.</seg></tuv>'
        '<tuv xml:lang="de"><seg>Die Katze.</seg></tuv></tu></body></tmx>'
    )
    done = translate_file(source, "-o", out, "--memory", memory)
    assert done.exit_code == 0, done.output
    assert out.read_text() == "Die Katze.\n\n12\n\nDie Katze.\n"


@pytest.mark.parametrize(
    "flags",
    [("--force", "--resume"), ("--line-length", 0), ("--reading-speed", 0), ("--encoding", "x"),
     ("--memory-similarity", 0.5), ("--terminology-ignore-case",)],
)  # fmt: skip
def test_refused_flags(
    translate_file: Callable[..., Result], tmp_path: Path, flags: tuple[object, ...]
) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    done = translate_file(tmp_path / "a.txt", "-o", tmp_path / "b.txt", *flags)
    assert done.exit_code == 2
    assert not (tmp_path / "b.txt").exists()


@pytest.mark.parametrize("name", ["none.txt", "none/*.txt", "", "b.pdf"])
def test_missing_inputs(translate_file: Callable[..., Result], tmp_path: Path, name: str) -> None:
    (tmp_path / "c.unknown").write_text(TEXT)
    assert translate_file(tmp_path / name, "-o", tmp_path / "out").exit_code == 1


def test_two_files_with_one_output(translate_file: Callable[..., Result], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(TEXT)
    names = (tmp_path / "a/x.txt", tmp_path / "b/x.txt")
    assert translate_file(*names, "-o", tmp_path / "out").exit_code == 2

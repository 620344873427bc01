"""Every command and Python example of README.md and docs/ runs, in the order it stands there."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "docs/data.md",
    "docs/train.md",
    "docs/shortlist.md",
    "docs/export.md",
    "docs/compile.md",
    "docs/engines.md",
    "docs/kernels.md",
    "docs/translate.md",
    "docs/evaluate.md",
    "README.md",
]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What the reader has: text, and minutes to spare. The test has neither, so training stops after a
# few steps of a small model, and `verify` compares random-looking text.
SMALL = "--steps 6 --checkpoint-every 3 --d-model 32 --d-ff 32 --heads 2"
VOCABULARY = "--vocabulary-size 300"  # prepared data has one already
SUBJECTS = ["Two men", "A dog", "The old woman", "My friend", "A child"]
VERBS = ["are working", "sees the house", "runs", "reads a book", "is sleeping"]
GERMAN_SUBJECTS = ["Zwei Männer", "Ein Hund", "Die alte Frau", "Mein Freund", "Ein Kind"]
GERMAN_VERBS = ["arbeiten", "sieht das Haus", "rennt", "liest ein Buch", "schläft"]


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of a page that is meant to be run."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def write_text(directory: Path) -> None:
    english = [f"{subject} {verb}." for subject in SUBJECTS for verb in VERBS]
    german = [f"{subject} {verb}." for subject in GERMAN_SUBJECTS for verb in GERMAN_VERBS]
    for part, repeats in (("train", 8), ("val", 1), ("test", 1)):
        for language, lines in (("en", english), ("de", german)):
            path = directory / f"{part}.{language}"
            path.write_text("".join(f"{line}\n" for line in lines * repeats), encoding="utf-8")


def write_shim(directory: Path) -> Path:
    """A `translate-trt` that trains for a moment only, before the real one on the path."""
    real = Path(sys.executable).with_name("translate-trt")
    shim = directory / "bin" / "translate-trt"
    shim.parent.mkdir()
    shim.write_text(
        f'#!/bin/sh\ncase " $* " in\n*" --resume "*) exec {real} "$@" ;;\n'
        f'*" train "*" --data "*) exec {real} "$@" {SMALL} ;;\n'
        f'" train "*) exec {real} "$@" {SMALL} {VOCABULARY} ;;\n*) exec {real} "$@" ;;\nesac\n'
    )
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    return shim.parent


@pytest.mark.slow
def test_the_quickstart_runs_on_text_of_ones_own(tmp_path: Path) -> None:
    write_text(tmp_path)
    for language in ("en", "de"):
        (tmp_path / f"val.{language}").rename(tmp_path / f"valid.{language}")
    path = f"{write_shim(tmp_path)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", ROOT / "scripts/quickstart.sh", "--data", tmp_path, "--out", tmp_path / "out"],
        env={**os.environ, "PATH": path, "TRANSLATE_TRT_VENV": "none"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("target "))
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == [
        "PyTorch",
        "onnx-fp32",
        "onnx-int8",
    ]
    assert "Two men are working." in lines
    refused = subprocess.run(
        ["bash", ROOT / "scripts/quickstart.sh", "--data", tmp_path / "nowhere"],
        env={**os.environ, "PATH": path, "TRANSLATE_TRT_VENV": "none"},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "train.en is missing" in refused.stderr


@pytest.mark.slow
def test_the_commands_of_the_docs_run(tmp_path: Path) -> None:
    write_text(tmp_path)
    environment = {**os.environ, "PATH": f"{write_shim(tmp_path)}:{os.environ['PATH']}"}
    ran = 0
    for page in PAGES:
        for language, text in blocks(page):
            if "scripts/" in text:
                continue  # test.sh runs this very test; the quickstart has its own above
            command = ["bash", "-euo", "pipefail", "-c", text]
            if language == "python":
                command = [sys.executable, "-c", text]
            for leftover in ("test.translated.de",):
                (tmp_path / leftover).unlink(missing_ok=True)
            if "train " in text and "--resume" not in text and (tmp_path / "run").exists():
                text_again = text.replace("--out run/", "--out run/ --force")
                command = ["bash", "-euo", "pipefail", "-c", text_again]
            if "translate-trt export" in text and (tmp_path / "bundle").exists():
                command[-1] = command[-1].replace("--out bundle/", "--out bundle/ --force")
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page}:\n{text}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran >= 7


def test_links_in_the_docs_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http") and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_every_flag_the_docs_name_exists() -> None:
    from translate_trt.runtime.cli import SUBCOMMANDS, main

    known = {"--resume", "--help"}
    for name in SUBCOMMANDS:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        for part in (command, *getattr(command, "commands", {}).values()):  # of a group
            known |= {flag for parameter in part.params for flag in parameter.opts}
    scripts = "\n".join(path.read_text() for path in (ROOT / "scripts").glob("*.*"))
    unknown = []
    for page in PAGES:
        for flag in re.findall(r"`[^`]*?(--[a-z][a-z0-9-]+)", (ROOT / page).read_text()):
            if flag not in known and flag not in scripts:
                unknown.append(f"{page}: {flag}")
    assert unknown == []

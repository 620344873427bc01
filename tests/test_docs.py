"""Every command and Python example of README.md and docs/ runs, and prints what the page shows."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import shlex
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.paths import ROOT

from translate_trt.runtime.cli import SUBCOMMANDS, main

pytestmark = pytest.mark.slow

PAGES = [
    "docs/data.md", "docs/train.md", "docs/shortlist.md", "docs/export.md", "docs/compile.md",
    "docs/engines.md", "docs/kernels.md", "docs/cli.md", "docs/alignments.md", "docs/markup.md",
    "docs/sentences.md", "docs/python.md", "docs/evaluate.md", "README.md", "docs/serve.md",
    "docs/terminology.md",
]  # fmt: skip
PAGES_OF_USERS = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
BLOCK = re.compile(r"^```(bash|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What the reader has: text, and minutes to spare. The test has neither, so training stops after a
# few steps of a small model, and `verify` compares random-looking text. Only the model of run/,
# whose translations the pages show, learns its 25 sentences by heart.
SMALL = ["--steps", "6", "--checkpoint-every", "3"]
LEARNING = ["--steps", "300", "--checkpoint-every", "150", "--average-checkpoints", "1",
            "--warmup-steps", "50", "--batch-tokens", "1024", "--dropout", "0"]  # fmt: skip
SHAPE = ["--d-model", "64", "--d-ff", "128", "--heads", "2", "--encoder-layers", "1",
         "--decoder-layers", "1"]  # fmt: skip
VOCABULARY = ["--vocabulary-size", "400"]  # prepared data has one already
# What scripts/quickstart.sh runs, each in a process of its own.
IN_THE_QUICKSTART = {"train", "export", "verify", "translate"}
SUBJECTS = ["Two men", "A dog", "The old woman", "My friend", "A child"]
VERBS = ["are working", "sees the house", "runs", "reads a book", "is sleeping"]
GERMAN_SUBJECTS = ["Zwei Männer", "Ein Hund", "Die alte Frau", "Mein Freund", "Ein Kind"]
GERMAN_VERBS = ["arbeiten", "sieht das Haus", "läuft", "liest ein Buch", "schläft"]


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
    (directory / "glossary.tsv").write_text("dog\tHund\nchild\tKind\n", encoding="utf-8")


def write_shim(directory: Path) -> Path:
    """A `translate-trt` that trains for a moment only, before the real one on the path."""
    real = Path(sys.executable).with_name("translate-trt")
    shim = directory / "bin" / "translate-trt"
    shim.parent.mkdir()
    small = shlex.join([*SMALL, *SHAPE, *VOCABULARY])
    shim.write_text(f'#!/bin/sh\n[ "$1" != train ] || set -- "$@" {small}\nexec {real} "$@"\n')
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


def words(line: str) -> list[str]:
    """A line of shell as the shell divides it, without its comment."""
    divided = shlex.shlex(line, posix=True, punctuation_chars=True)
    divided.whitespace_split = True
    return list(divided)


def adapted(arguments: list[str]) -> list[str]:
    """Shorten training to a moment, and let commands replace existing outputs."""
    name, *others = arguments
    if name == "train" and "--from" in others:
        others += SMALL  # its shape is the checkpoint's
    elif name == "train" and "--resume" not in others:
        others += (LEARNING if others[-1] == "run/" else SMALL) + SHAPE
        others += [] if "--data" in others else VOCABULARY
    out = Path(others[others.index("--output") + 1]) if "--output" in others else None
    if name in ("train", "export") and "--resume" not in others and out and out.exists():
        others.append("--force")
    return [name, *others]


def split_console(text: str) -> list[tuple[str, str]]:
    """(command, output) of each command of a console block."""
    return re.findall(r"^\$ (.*\n)((?:[^$].*\n)*)", text, re.MULTILINE)


def resembles(output: str, shown: str) -> bool:
    """Whether an output is what a page shows, but for numbers and a few letters.

    They depend on the model, which another machine trains to other weights.
    """
    forms = [re.sub(r"\d+(\.\d+)?", "0", text) for text in (output, shown)]
    return difflib.SequenceMatcher(None, *forms).ratio() > 0.8


class Reader:
    """A reader who types the commands of a page one by one.

    A command runs in this process, where torch is imported already; the first of each kind runs in
    a shell, unless the quickstart runs that kind. What was typed before, word for word, is not
    typed again.
    """

    def __init__(self) -> None:
        self.in_shells = set(IN_THE_QUICKSTART)
        self.typed: set[tuple[str, ...]] = set()

    def type(self, line: str, shown: str = "") -> str | None:
        """Run a line; what went wrong, such as another output than the page shows, or None."""
        first, *others = command = words(line)
        if not shown and tuple(command) in self.typed:
            return None
        self.typed.add(tuple(command))
        given = None
        if first == "echo":
            given, pipe, first, *others = others
            assert pipe == "|", line
        assert first == "translate-trt", f"{line}: only scripts run anything else"
        file = None
        if ">" in others:
            *others, _, file = others
        if others[0] not in self.in_shells:
            self.in_shells.add(others[0])
            return self._in_a_shell(line)
        done = CliRunner().invoke(main, adapted(others), input=given and f"{given}\n")
        if file is not None:
            Path(file).write_text(done.stdout, encoding="utf-8")
        if done.exit_code != 0 or (shown and not resembles(done.stdout, shown)):
            return f"{done.output}\n{done.exception!r}"
        return None

    def _in_a_shell(self, line: str) -> str | None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], env={**os.environ, "PATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return None if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.nightly
def test_the_commands_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("quickstart").symlink_to(".")
    reader = Reader()
    for page in PAGES:
        for number, (language, text) in enumerate(blocks(page)):
            if "scripts/" in text:
                continue  # test.sh runs this very test; the quickstart has its own above
            if "tritonclient" in text:
                continue  # tests/runtime/test_triton_server.py has a server for it
            if language == "python":
                path = tmp_path / f"{page.replace('/', '-')}-{number}.py"
                path.write_text(text, encoding="utf-8")
                runpy.run_path(str(path), run_name="__main__")
                continue
            text = text.replace("\\\n", " ")
            lines = [(line, "") for line in text.splitlines()]
            for line, shown in split_console(text) if language == "console" else lines:
                wrong = reader.type(line, shown)
                assert wrong is None, f"{page}:\n{line}\n{wrong}"
    # Every command that has a page, and no fewer lines than there ever were.
    assert reader.in_shells >= {"data", "shortlist", "plot", "attention", "info", "bench"}
    assert len(reader.typed) >= 25


def test_links_in_the_docs_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *PAGES_OF_USERS]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http") and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_installations_in_the_docs_are_from_a_clone_with_extras_that_exist() -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )
    for page in PAGES_OF_USERS:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install .?translate-trt", text), f"{page}: on no package index"
        for named in re.findall(r"pip install '\.\[(.*?)\]'", text):
            assert set(named.split(",")) <= extras, f"{page}: {named}"


def test_every_flag_the_docs_name_exists() -> None:
    known = {"--resume", "--help"}
    for name in SUBCOMMANDS:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        for part in (command, *getattr(command, "commands", {}).values()):  # of a group
            for parameter in part.params:
                known |= {*parameter.opts, *parameter.secondary_opts}
    programs = [*(ROOT / "scripts").glob("*.*"), *(ROOT / "benchmarks").glob("*.py")]
    programs.append(ROOT / "runtime/backends/gpu_package.py")  # python -m
    scripts = "\n".join(path.read_text() for path in programs)
    unknown = []
    for page in PAGES:
        ours = re.sub(
            r"^```(?:sh|yaml)\n.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S
        )
        for flag in re.findall(r"`[^`]*?(--[a-z][a-z0-9-]+)", ours):
            if flag not in known and flag not in scripts:
                unknown.append(f"{page}: {flag}")
    assert unknown == []

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

pytest.importorskip("safetensors", reason="the training packages are needed")

ENGLISH = ["the", "cat", "dog", "house", "tree", "runs", "sleeps", "green", "big", "small", "river"]
GERMAN = ["das", "Hund", "Haus", "Baum", "läuft", "schläft", "grün", "groß", "klein", "Fluss"]


def shortlist(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["shortlist", "--workers", "1", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> list[object]:
    """Arguments `--source` and `--target` with files."""
    random = np.random.default_rng(1)
    for name, words in (("train.en", ENGLISH), ("train.de", GERMAN)):
        lines = (" ".join(random.choice(words, random.integers(2, 6))) + "\n" for _ in range(60))
        (tmp_path / name).write_text("".join(lines))
    return ["--text", tmp_path / "train.en", tmp_path / "train.de"]


def test_text_and_a_tokenizer(
    text: list[object], make_bundle: Callable[..., Path], tokenizer_model: Path, tmp_path: Path
) -> None:
    from translate_trt.train.shortlist.table import Shortlist, tokenizer_hash

    out = tmp_path / "s.safetensors"
    result = shortlist(
        *text, "--tokenizer", make_bundle(), "--output", out, "--frequent", 7, "--best", 4,
        "--iterations", 2, "--pairs", 50,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:3] == [
        str(out), "pairs         50", "frequent      7 tokens of 316",
    ]  # fmt: skip
    made = Shortlist.load(out, tokenizer_hash(tokenizer_model, tokenizer_model))
    assert (len(made.frequent), made.translations.shape) == (7, (316, 4))
    assert (made.pairs, made.iterations) == (50, 2)


def test_what_stands_at_out_stays_without_force(
    text: list[object], tokenizer_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "s").write_text("mine")
    given = [*text, "--tokenizer", tokenizer_model, "--output", tmp_path / "s"]
    refused = shortlist(*given)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    assert (tmp_path / "s").read_text() == "mine"
    foreign = shortlist(*given, "--force")
    assert foreign.exit_code == 1
    assert "shortlist" in foreign.stderr
    assert (tmp_path / "s").read_text() == "mine"
    (tmp_path / "folder").mkdir()
    assert "directory" in shortlist(*given[:-1], tmp_path / "folder").stderr
    (tmp_path / "s").unlink()
    for force in ((), ("--force",)):
        assert shortlist(*given, *force).exit_code == 0
        assert (tmp_path / "s").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --data, a directory of `translate-trt data prepare`, or both --text"),
        (["--text", "a", "b"], "both --text and --tokenizer"),
        (["--data", "d", "--text", "a", "b"], "--data includes text and tokenizer"),
        (["--data", "d", "--coverage", "a", "b"], "there is no file a"),
        (["--data", "d", "--min-probability", "2"], "--min-probability is 2.0"),
    ],
)
def test_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = shortlist(*arguments, "--output", tmp_path / "s")
    assert result.exit_code == (1 if message.startswith("there is no") else 2)
    assert message in result.stderr
    assert os.listdir(tmp_path) == []


def test_help_and_text_need_no_torch(
    text: list[object], tokenizer_model: Path, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from translate_trt.runtime.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
    )
    given = ["shortlist", *text, "--tokenizer", tokenizer_model, "--output", tmp_path / "s"]
    for arguments in (["shortlist", "--help"], [*given, "--workers", 1]):
        subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True)
    assert (tmp_path / "s").is_file()

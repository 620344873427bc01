"""Generated corpus: the English determines the German, and held-out text is unseen."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path


def run(generator: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(generator), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_english_determines_german() -> None:
    from corpus.grammar import Grammar

    known: dict[str, str] = {}
    for english, german in itertools.islice(Grammar(3).sentences(), 30_000):
        assert known.setdefault(english, german) == german, english
    assert len(known) > 25_000


def test_files_are_deterministic_and_held_out_text_is_unseen(
    generator: Path, tmp_path: Path
) -> None:
    sizes = ("--sentences", 2000, "--valid", 100, "--test", 200)
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert run(generator, "--out", tmp_path / name, "--seed", seed, *sizes).returncode == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for name in names:
        text = (tmp_path / "a" / name).read_bytes()
        assert text == (tmp_path / "b" / name).read_bytes()
        assert text != (tmp_path / "c" / name).read_bytes()
    for language in ("en", "de"):
        parts = {
            part: (tmp_path / "a" / f"{part}.{language}")
            .read_text(encoding="utf-8")
            .split("\n")[:-1]
            for part in ("train", "valid", "test")
        }
        assert [len(parts[part]) for part in ("train", "valid", "test")] == [2000, 100, 200]
        sentences = [line for lines in parts.values() for line in lines]
        assert len(set(sentences)) == len(sentences)


def test_an_existing_directory_is_kept(generator: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    refused = run(generator, "--out", tmp_path, "--sentences", 10)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]

#!/usr/bin/env python3
"""Generate the quickstart's English-German corpus: training, validation and test text.

    python scripts/generate_corpus.py --out DIR [--sentences 20000 --valid 300 --test 500 --seed 1]

All sentences are distinct, so no English or German sentence of the validation and test sets occurs
in training.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from corpus.grammar import Grammar, Pair


def draw(count: int, seed: int) -> list[Pair]:
    """Draw that many pairs in which no English and no German sentence occurs twice."""
    english: set[str] = set()
    german: set[str] = set()
    pairs: list[Pair] = []
    for pair in Grammar(seed).sentences():
        if len(pairs) == count:
            break
        if pair[0] not in english and pair[1] not in german:
            english.add(pair[0])
            german.add(pair[1])
            pairs.append(pair)
    return pairs


def write(directory: Path, parts: dict[str, list[Pair]]) -> None:
    """Write `<part>.en` and `<part>.de` for each part."""
    for name, pairs in parts.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (directory / f"{name}.{language}").write_bytes(text.encode("utf-8"))


def main() -> int:
    """Parse the command line, write the files and return the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True, help="directory to make")
    options.add_argument("--sentences", type=int, default=20_000, help="pairs for training")
    options.add_argument("--valid", type=int, default=300, help="pairs for validation")
    options.add_argument("--test", type=int, default=500, help="pairs held out")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--force", action="store_true", help="replace the files in --out")
    given = options.parse_args()
    out: Path = given.out
    if out.exists() and any(out.iterdir()) and not given.force:
        print(f"{out} exists; choose another --out or add --force.", file=sys.stderr)
        return 1
    pairs = draw(given.sentences + given.valid + given.test, given.seed)
    ends = (given.test, given.test + given.valid)
    parts = {"test": pairs[: ends[0]], "valid": pairs[ends[0] : ends[1]], "train": pairs[ends[1] :]}
    out.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write(new, parts)
        out.mkdir(exist_ok=True)
        for path in new.iterdir():
            os.replace(path, out / path.name)
    finally:
        shutil.rmtree(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

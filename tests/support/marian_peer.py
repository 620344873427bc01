"""Marian itself (`pip install pymarian`), which trains tiny models and translates with them."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

LINES = 200
#: Of `--max-length-factor`: translations are cut off at so many times the source's tokens.
FACTOR = 2
SOURCE = [
    "the", "a", "cat", "dog", "house", "tree", "runs", "sleeps", "eats", "green", "big", "small",
    "river", "walks", "over", "under",
]  # fmt: skip
TARGET = [
    "Haus", "Hund", "läuft", "schläft", "frisst", "grün", "groß", "klein", "Fluss", "geht",
    "über", "unter", "die", "ein",
]  # fmt: skip
SETTINGS = "special:model.yml"
_DIMENSIONS = (
    "--dim-emb", "32", "--transformer-dim-ffn", "48", "--transformer-heads", "4",
    "--transformer-dropout", "0",
)  # fmt: skip
_TRAINING = (
    "--cpu-threads", "1", "--after-batches", "4", "--mini-batch", "16", "--mini-batch-fit",
    "false", "--sync-sgd=false", "-w", "64", "--learn-rate", "0.01", "--seed", "1",
)  # fmt: skip
_DECODING = (
    "--cpu-threads", "1", "--mini-batch", "1", "--n-best", "--no-spm-decode", "--quiet", "-w", "64",
)  # fmt: skip


def needs_marian() -> None:
    """Skip the test where Marian is not installed."""
    if importlib.util.find_spec("pymarian") is None:
        pytest.skip("pymarian is not installed (it has no wheels for this Python or processor)")


def run(directory: Path, *arguments: str) -> str:
    """Run a Marian command and return its standard output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pymarian", *arguments], cwd=directory, env=environment,
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(words: list[str], seed: int, longest: int = 5) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(1, longest))) for _ in range(LINES)]


@dataclass(frozen=True)
class Found:
    """Hypothesis: tokens as Marian writes them, and the sum of their log-probabilities."""

    tokens: tuple[str, ...]
    score: float


class MarianModel:
    """Model that Marian trained for a few batches.

    Args:
        directory: where its files go.
        options: of `marian train`: the architecture.
        vocabularies: names of the vocabularies, which Marian makes from the text.
        words: of the source and target text.
    """

    def __init__(
        self,
        directory: Path,
        options: list[str],
        vocabularies: tuple[str, str],
        words: tuple[list[str], list[str]] = (SOURCE, TARGET),
    ) -> None:
        self.directory, self.path = directory, directory / "model.npz"
        self.vocabularies = [directory / name for name in vocabularies]
        self.lines = lines_of(words[0], 3)
        for name, lines in (("s", lines_of(words[0], 1)), ("t", lines_of(words[1], 2)),
                            ("test", self.lines)):  # fmt: skip
            (directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        run(directory, "train", *options, *_DIMENSIONS, *_TRAINING, "-m", self.path.name, "-t", "s",
            "t", "-v", *vocabularies)  # fmt: skip

    def convert(self, kind: str) -> Path:
        """Convert the model with marian-conv --gemm-type."""
        path = self.directory / f"model.{kind}.bin"
        run(self.directory, "convert", "-f", self.path.name, "-t", path.name, "-g", kind)
        return path

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path) as file:
            return {name: file[name] for name in file.files}

    def make_lively(self, end: float, unlikely: list[int]) -> None:
        """Write larger random weights, so that translations differ from each other and end.

        Args:
            end: what is added to the logit of the end symbol, which has id 0.
            unlikely: ids of tokens that have no probability, as a trained model has it.
        """
        rng, arrays = np.random.default_rng(1), self.arrays()
        for name, array in arrays.items():
            if name != SETTINGS and min(array.shape) > 1:
                scale = 0.6 if "Wemb" in name or "logit" in name else 0.35
                arrays[name] = rng.normal(scale=scale, size=array.shape).astype(np.float32)
            elif name != SETTINGS:
                arrays[name] = array + rng.normal(scale=0.1, size=array.shape).astype(np.float32)
        if "decoder_ff_logit_out_b" in arrays:
            arrays["decoder_ff_logit_out_b"][0, 0] += end
            arrays["decoder_ff_logit_out_b"][0, unlikely] = -100
        np.savez(self.path, **arrays)

    def score(self, sources: list[str], targets: list[str]) -> list[float]:
        """Return marian-scorer's sum of log-probabilities of each pair, with the end symbol."""
        for name, lines in (("scored.s", sources), ("scored.t", targets)):
            (self.directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        names = [path.name for path in self.vocabularies]
        output = run(
            self.directory, "score", "-m", self.path.name, "-v", *names, "-t", "scored.s",
            "scored.t", "--cpu-threads", "1", "-w", "64", "--mini-batch", "16", "--quiet",
        )  # fmt: skip
        return [float(line) for line in output.split()]

    def translate(
        self, beam: int, model: Path | None = None, options: Sequence[str] = ()
    ) -> list[list[Found]]:
        """Return Marian's n best hypotheses of each line, best first.

        Args:
            beam: the beam size.
            model: another file of the model.
            options: more options of `marian-decoder`.
        """
        names = [path.name for path in self.vocabularies]
        output = run(
            self.directory, "decode", "-m", (model or self.path).name, "-v", *names, "-i", "test",
            "-b", str(beam), "--normalize", "0", "--max-length-factor", str(FACTOR), *_DECODING,
            *options,
        )  # fmt: skip
        found: list[list[Found]] = [[] for _ in self.lines]
        for line in output.splitlines():
            number, text, _, score = line.split(" ||| ")
            found[int(number)].append(Found(tuple(text.split(" ")) if text else (), float(score)))
        return found

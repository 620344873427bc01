"""Fixtures: training text, the settings of a tiny run, and a function that trains it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.disk_cache import hash_text
from support.shared import SharedFiles

from translate_trt.train.checkpoint import AVERAGED
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.load_data import TextFiles, TextPair
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Train with one thread: bit-identical results need the same number of threads everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "vocabulary_size": 320, "encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 32,
        "heads": 2, "dropout": 0.2, "batch_tokens": 256, "micro_batch_tokens": 128,
        "warmup_steps": 20, "steps": 12, "checkpoint_every": 4, "validate_every": 0, "log_every": 4,
        "average_checkpoints": 2, "precision": "fp32",
    }  # fmt: skip


@pytest.fixture
def write_pairs(tmp_path: Path) -> Callable[[str, int, int], TextPair]:
    """Function that writes `count` pairs of numbers in words, English and German."""

    def write(name: str, count: int, seed: int) -> TextPair:
        rng = random.Random(seed)
        rows = [[rng.randrange(10) for _ in range(rng.randint(1, 8))] for _ in range(count)]
        for language, words in (("en", WORDS), ("de", GERMAN)):
            text = "".join(" ".join(words[index] for index in row) + "\n" for row in rows)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
        return TextPair(tmp_path / f"{name}.en", tmp_path / f"{name}.de")

    return write


@pytest.fixture
def text(write_pairs: Callable[[str, int, int], TextPair]) -> TextFiles:
    """Training and validation text."""
    return TextFiles(write_pairs("train", 200, 1), write_pairs("valid", 10, 2))


@pytest.fixture
def trained(
    shared: SharedFiles, run: Callable[..., Path], settings: dict[str, Any]
) -> Callable[..., Path]:
    """Function that copies the run of `run`, which is trained once for equal settings."""

    def copy(out: Path, **changes: Any) -> Path:
        name = hash_text(sorted({**settings, **changes}.items()))
        made = shared.once(f"run-{name}", lambda path: run(path, **changes))
        shutil.copytree(made, out)
        return out / AVERAGED

    return copy


@pytest.fixture
def run(text: TextFiles, settings: dict[str, Any]) -> Callable[..., Path]:
    """Function that trains from text files to the averaged checkpoint."""

    def train(out: Path, resume: bool = False, **changes: Any) -> Path:
        job = prepare_job(text, out, "tiny", {**settings, **changes}, resume=resume)
        averaged = Trainer(job, Group(torch.device("cpu")), resume).run()
        assert averaged is not None
        return averaged

    return train

"""A small parser, trained on random trees (a plugin of tests/conftest.py)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from support.shared import SharedFiles
from translate_trt.train.data.corpora import TREE_DEFAULTS, PrepareOptions
from translate_trt.train.data.prepare import Preparation, prepare
from translate_trt.train.data.token_files import PreparedData, open_prepared
from translate_trt.train.data.trees import treebank_alignment, treebank_pair
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.run import prepare_job

#: Settings of the parser, beside those of the preset `parsing`.
SETTINGS: dict[str, Any] = {
    "encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "d_ff": 64, "heads": 2,
    "dropout": 0.0, "attention_dropout": 0.0, "batch_tokens": 1_000, "steps": 60,
    "warmup_steps": 20, "learning_rate": 5e-3, "checkpoint_every": 20, "validate_every": 30,
    "precision": "fp32", "guided_alignment": 0.5,
}  # fmt: skip


def random_trees(count: int, seed: int) -> list[str]:
    """Trees of sentences such as "the red dog sees the cat of the man .", as in treebanks."""
    rng = random.Random(seed)

    def phrase(depth: int = 0) -> str:
        adjectives = "".join(
            f"(JJ {rng.choice(['red', 'big', 'old'])}) " for _ in range(rng.randrange(3))
        )
        noun = rng.choice(["dog", "cat", "man", "tree", "-LRB-"])
        found = f"(NP (DT the) {adjectives}(NN {noun}))"
        if depth < 1 and rng.random() < 0.3:
            return f"(NP-PRD {found} (PP (IN of) {phrase(depth + 1)}))"
        return found

    return [
        f"( (S {phrase()}\n  (VP (VBZ {rng.choice(['sees', 'likes'])}) {phrase()}) (. .)) )"
        for _ in range(count)
    ]


@pytest.fixture(scope="session")
def parser_data(shared: SharedFiles) -> PreparedData:
    """Prepared trees: two corpora for training, and a validation set. Tests must not change it."""

    def make(path: Path) -> None:
        path.mkdir()
        for seed, (name, count) in enumerate({"gold": 200, "silver": 40, "valid": 12}.items()):
            (path / f"{name}.mrg").write_text("\n".join(random_trees(count, seed)))
        gold, silver, valid = (
            treebank_pair([path / f"{name}.mrg"]) for name in ("gold", "silver", "valid")
        )
        options = PrepareOptions(**TREE_DEFAULTS | {"source_vocabulary_size": 290})
        alignments = [treebank_alignment([path / f"{name}.mrg"]) for name in ("gold", "silver")]
        job = Preparation(
            "treebank", ("en", None), [gold, silver], [valid], [], options, trees=True,
            alignments=alignments,
        )  # fmt: skip
        prepare(job, path / "data", workers=1)

    return open_prepared(shared.once("parser-data", make) / "data")


@pytest.fixture(scope="session")
def parser_run(shared: SharedFiles, parser_data: PreparedData) -> Path:
    """Run of a small parser. Tests must not change it."""

    def make(path: Path) -> None:
        settings = SETTINGS | {"corpus_weights": "1,0.5"}
        job = prepare_job(parser_data, path, "parsing", settings)
        Trainer(job, Group(torch.device("cpu"))).run()

    return shared.kept("parser", ["support.parsers"], (), make)

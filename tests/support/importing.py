"""Helpers of the tests of several importers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from translate_trt.export.importers.imported import Imported
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, START


def tokenizer_of(models: tuple[bytes, bytes]) -> Tokenizer:
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / side for side in ("source.spm", "target.spm")]
        for path, model in zip(paths, models, strict=True):
            path.write_bytes(model)
        return Tokenizer(*paths)


@torch.inference_mode()
def logits_of(imported: Imported, source: str, target: str, columns: list[str]) -> np.ndarray:
    """Return the logits [T + 1, columns] of the target tokens and the end symbol.

    Args:
        imported: the model.
        source: words.
        target: words.
        columns: the target's tokens whose logits to give, END for the end symbol.
    """
    tokenizer, model = tokenizer_of(imported.tokenizers), imported.model
    ids = {name: place for place, name in enumerate(
        tokenizer.target_pieces(range(tokenizer.vocabulary_size)))}  # fmt: skip
    source_ids = tokenizer.encode_source(source)
    if model.config.source_end:
        source_ids = [*source_ids, END]
    target_ids = [START, *tokenizer.encode_target(target)]
    hidden = model(torch.tensor([source_ids]), None, torch.tensor([target_ids]))
    places = [END if name == "END" else ids[f"\u2581{name}"] for name in columns]
    return model.project(hidden)[0][:, places].numpy()


def assert_same_logits(
    imported: Imported,
    sides: tuple[list[str], list[str]],
    special: int,
    end: int,
    expected: Callable[[list[int], list[int]], np.ndarray],
) -> None:
    """Compare the logits of 30 random pairs, without those of special tokens but the end.

    Args:
        imported: the model.
        sides: tokens of source and target by the toolkit's ids, special ones first.
        special: number of special tokens.
        end: the toolkit's id of the end.
        expected: returns the logits [T + 1, V] of a pair of the toolkit's ids.
    """
    rng = random.Random(2)
    columns = [end, *range(special, len(sides[1]))]
    for _ in range(30):
        pair = [
            [rng.randrange(special, len(tokens)) for _ in range(rng.randint(1, 12))]
            for tokens in sides
        ]
        source, target = (
            " ".join(tokens[index] for index in ids)
            for tokens, ids in zip(sides, pair, strict=True)
        )
        found = logits_of(imported, source, target, ["END", *sides[1][special:]])
        np.testing.assert_allclose(found, expected(*pair)[:, columns], atol=1e-4)

"""Helpers of the tests of several importers."""

from __future__ import annotations

import tempfile
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

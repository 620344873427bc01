"""Arbitrary shortlists."""

from __future__ import annotations

import numpy as np
import torch

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END
from translate_trt.train.search import beam_search
from translate_trt.train.shortlist.table import Shortlist, shared_copies, tokenizer_hash

TARGETS = ("onnx-fp32-shortlist", "onnx-int8-shortlist")


def random_table(checkpoint: Checkpoint, frequent: int = 19, best: int = 4) -> Shortlist:
    """Return a shortlist of each token and some others, for a model that reverses its source."""
    rng = np.random.default_rng(1)
    size = checkpoint.model.input_vocabulary_size
    others = np.sort(rng.choice(np.arange(4, 60), frequent - 1, replace=False))
    always = np.concatenate(([END], others)).astype(np.int32)
    translations = rng.integers(4, 60, (size, best)).astype(np.int32)
    translations[:, 0] = np.arange(size)
    translations[np.isin(translations, always)] = 0
    translations[: END + 1] = 0
    return Shortlist(
        frequent=always,
        frequent_counts=np.ones(frequent, np.int64),
        frequent_probabilities=np.zeros((size, frequent), np.float32),
        translations=translations,
        probabilities=(translations > 0).astype(np.float32),
        copies=shared_copies(size),
        vocabulary_size=checkpoint.model.vocabulary_size,
        tokenizer_sha256=tokenizer_hash(*checkpoint.tokenizers),
        pairs=1,
        iterations=1,
    )


def listed_search(
    checkpoint: Checkpoint, table: Shortlist, sources: list[list[int]], options: SearchOptions
) -> list[list[Hypothesis]]:
    """Search with the reference, restricted to the tokens of each sentence's shortlist."""
    model = checkpoint.load_model()
    project, found = model.project, []
    for source in sources:
        hidden = torch.ones(checkpoint.model.vocabulary_size, dtype=torch.bool)
        hidden[torch.from_numpy(table.for_sentence(source)).long()] = False
        model.project = lambda x, hidden=hidden: project(x).masked_fill(hidden, -torch.inf)  # type: ignore[method-assign]
        found += beam_search(model, [source], options)
    return found

"""Ensembles of models."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from support.models import save_model
from support.scripted import Script, ScriptedModel, exhaustive, random_script
from support.small_models import small_model

from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.evaluation.validation import load_as_one
from translate_trt.train.model import Transformer
from translate_trt.train.search import Ensemble, beam_search


def scripted(*scripts: Script) -> Ensemble:
    return Ensemble([cast(Transformer, ScriptedModel([script])) for script in scripts])


def mean(first: Script, second: Script) -> Script:
    def script(tokens: tuple[int, ...]) -> np.ndarray:
        probabilities = (np.exp(first(tokens)) + np.exp(second(tokens))) / 2
        return np.log(probabilities).astype(np.float32)

    return script


@pytest.mark.parametrize("seed", range(4))
def test_two_members_against_exhaustive_search(seed: int) -> None:
    vocabulary, max_length = 7, 4
    options = SearchOptions(beam_size=300, max_length=max_length, num_hypotheses=20)
    first, second = random_script(seed, vocabulary), random_script(seed + 100, vocabulary)
    (found,) = beam_search(scripted(first, second), [[4]], options)
    expected = exhaustive(mean(first, second), options, range(vocabulary), max_length)[:20]
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens, _ in expected]
    scores = [hypothesis.score for hypothesis in found]
    np.testing.assert_allclose(scores, [score for score, _, _ in expected], atol=1e-5)


def test_attention_is_the_members_mean() -> None:
    members = [small_model(seed, vocabulary_size=24) for seed in (1, 2)]
    options = SearchOptions(beam_size=1, max_length=1, return_attention=True)
    ((found,),) = beam_search(Ensemble(members), [[5, 6, 7]], options)
    every = [beam_search(one, [[5, 6, 7]], options)[0][0].attention for one in members]
    assert found.attention is not None
    np.testing.assert_allclose(found.attention, np.mean(np.stack(every), 0), atol=1e-6)  # type: ignore[arg-type]


def test_one_checkpoint_is_a_model_and_two_are_an_ensemble(checkpoint: Checkpoint) -> None:
    one, _ = load_as_one([checkpoint], torch.device("cpu"))
    assert isinstance(one, Transformer)
    two, tokenizer = load_as_one([checkpoint, checkpoint], torch.device("cpu"))
    assert isinstance(two, Ensemble)
    assert not any(member.training for member in two.members)
    assert tokenizer.vocabulary_size == checkpoint.model.vocabulary_size


def test_more_pieces_than_the_others_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    wider = small_model(1, vocabulary_size=checkpoint.model.vocabulary_size + 1)
    path = save_model(wider, tmp_path / "checkpoint", checkpoint.tokenizer)
    with pytest.raises(CheckpointError, match=f"{checkpoint.path} and {path} have different"):
        load_as_one([checkpoint, open_checkpoint(path)], torch.device("cpu"))

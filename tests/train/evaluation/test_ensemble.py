"""Ensembles of models."""

from __future__ import annotations

from itertools import chain
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
from translate_trt.train.model import Transformer, pad
from translate_trt.train.search import Ensemble, beam_search

SOURCES = [[5, 6, 7, 8], [9], [10, 11]]


def model(seed: int, vocabulary_size: int = 24, d_model: int = 16, layers: int = 2) -> Transformer:
    sizes = {"vocabulary_size": vocabulary_size, "d_model": d_model}
    made = small_model(seed, encoder_layers=layers, decoder_layers=layers, **sizes)
    made.embedding.weight.data *= 4  # sharper distributions, in which beams cross
    return made


def scripted(*scripts: Script) -> Ensemble:
    return Ensemble([cast(Transformer, ScriptedModel([script])) for script in scripts])


def mean(first: Script, second: Script) -> Script:
    def script(tokens: tuple[int, ...]) -> np.ndarray:
        probabilities = (np.exp(first(tokens)) + np.exp(second(tokens))) / 2
        return np.log(probabilities).astype(np.float32)

    return script


def written(probabilities: list[float]) -> Script:
    return lambda tokens: np.log(np.array(probabilities, dtype=np.float32))


def test_probabilities_are_averaged_not_their_logarithms() -> None:
    # Token 4: (0.90 + 0.01) / 2 = 0.455; token 5: (0.06 + 0.55) / 2 = 0.305. The geometric means,
    # 0.095 and 0.182, would choose token 5.
    first = written([0.01, 0.01, 0.01, 0.01, 0.90, 0.06])
    second = written([0.14, 0.10, 0.10, 0.10, 0.01, 0.55])
    options = SearchOptions(beam_size=1, max_length=1)
    ((found,),) = beam_search(scripted(first, second), [[4]], options)
    assert found.tokens == (4,)
    assert found.token_log_probs == pytest.approx([np.log(0.455)], abs=1e-6)


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


def test_a_model_twice_is_the_model() -> None:
    one = model(1)
    options = SearchOptions(num_hypotheses=4, max_length=7, return_attention=True)
    alone = beam_search(one, SOURCES, options)
    twice = beam_search(Ensemble([one, one]), SOURCES, options)
    for found, expected in zip(chain(*twice), chain(*alone), strict=True):
        assert found.tokens == expected.tokens
        np.testing.assert_allclose(found.token_log_probs, expected.token_log_probs, atol=1e-5)
        assert found.attention is not None
        np.testing.assert_allclose(found.attention, expected.attention, atol=1e-6)


def test_members_of_different_sizes() -> None:
    # Holds only if the caches of both members are reordered by the right parents.
    members = [model(1), model(2, d_model=32, layers=1)]
    options = SearchOptions(num_hypotheses=4, max_length=7)
    results = beam_search(Ensemble(members), SOURCES, options)
    for source, found in zip(SOURCES, results, strict=True):
        assert len({hypothesis.tokens for hypothesis in found}) == 4
        for hypothesis in found:
            generated = [*hypothesis.tokens, *([] if hypothesis.truncated else [3])]
            previous = torch.tensor([[2, *generated[:-1]]])
            ids, _ = pad([[*source, 3]])
            every = [one.project(one(ids, None, previous))[0] for one in members]
            probabilities = torch.stack(every).softmax(-1).mean(0)[range(len(generated)), generated]
            np.testing.assert_allclose(
                hypothesis.token_log_probs, probabilities.log().tolist(), atol=1e-5
            )
    assert results != beam_search(members[0], SOURCES, options)


def test_attention_is_the_members_mean() -> None:
    members = [model(1), model(2)]
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
    wider = model(1, checkpoint.model.vocabulary_size + 1)
    path = save_model(wider, tmp_path / "checkpoint", checkpoint.tokenizer)
    with pytest.raises(CheckpointError, match=f"{checkpoint.path} and {path} have different"):
        load_as_one([checkpoint, open_checkpoint(path)], torch.device("cpu"))

"""Reference beam search: each rule on scripted log-probabilities, and against exhaustive search."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.scripted import Case, ScriptedModel, exhaustive, random_script, written_cases
from support.small_models import small_model

from translate_trt.runtime.errors import BackendError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.train.model import Transformer, pad
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

#: Options that change which hypotheses there are, their scores, or their order.
SETTINGS: list[dict[str, Any]] = [
    {}, {"early_stopping": True}, {"length_penalty": 0.0}, {"min_length": 6},
    {"length_penalty": 1.0, "length_penalty_form": "length"}, {"length_penalty": 3.0},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3}, {"loop_guard": True},
]  # fmt: skip


def search(scripts: list[Any], options: SearchOptions, **more: Any) -> list[list[Hypothesis]]:
    model = ScriptedModel(scripts)
    sources = more.pop("sources", [[4 + index] for index in range(len(scripts))])
    return beam_search(cast(Transformer, model), sources, options, **more)


def penalty(options: SearchOptions, length: int) -> float:
    beta = options.length_penalty_beta
    return float(((beta + length) / (beta + 1)) ** options.length_penalty)


@pytest.mark.parametrize("case", written_cases(), ids=lambda case: case.name)
def test_written_traces(case: Case) -> None:
    sources = [[4] * case.source_length]
    prefixes = [case.prefix] if case.prefix else None
    model = ScriptedModel([case.script])
    (found,) = beam_search(cast(Transformer, model), sources, case.options, prefixes)
    if case.steps is not None:
        assert model.steps == case.steps
    assert [list(hypothesis.tokens) for hypothesis in found] == [
        entry["tokens"] for entry in case.expected
    ]
    for hypothesis, entry in zip(found, case.expected, strict=True):
        length = len(hypothesis.tokens) + (not hypothesis.truncated)
        expected = math.log(entry["probability"]) / penalty(case.options, length)
        assert hypothesis.score == pytest.approx(expected, abs=1e-5)
        assert hypothesis.truncated == entry["truncated"]
        total = sum(hypothesis.token_log_probs)
        assert total == pytest.approx(math.log(entry["probability"]), abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("form", ["gnmt", "length"])
@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_equals_exhaustive_search(alpha: float, form: str, seed: int) -> None:
    vocabulary, max_length = 7, 4
    options = SearchOptions(
        beam_size=300,  # 6 ** 3 live prefixes at most: nothing is ever dropped
        length_penalty=alpha,
        length_penalty_form=form,
        max_length=max_length,
        num_hypotheses=20,
    )
    script = random_script(seed, vocabulary)
    (found,) = search([script], options)
    expected = exhaustive(script, options, range(vocabulary), max_length)[:20]
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens, _ in expected]
    scores = [hypothesis.score for hypothesis in found]
    np.testing.assert_allclose(scores, [score for score, _, _ in expected], atol=1e-5)


@pytest.mark.parametrize("constraints", [[(5,)], [(5, 6)], [(5,), (6,)], [(6, 4), (5,)]])
@pytest.mark.parametrize("seed", range(3))
def test_constraints_select_from_exhaustive_search(
    constraints: list[tuple[int, ...]], seed: int
) -> None:
    vocabulary, max_length = 7, 4
    options = SearchOptions(beam_size=2000, num_hypotheses=12, max_length=max_length)
    script = random_script(seed, vocabulary)
    (found,) = search([script], options, constraints=[constraints])
    expected = [
        entry
        for entry in exhaustive(script, options, range(vocabulary), max_length)
        # The phrases have no token in common, so that occurrences cannot overlap.
        if all(f" {_spelled(one)} " in f" {_spelled(entry[1])} " for one in constraints)
    ]
    expected = expected[:12]
    assert [one.tokens for one in found[: len(expected)]] == [tokens for _, tokens, _ in expected]
    scores = [one.score for one in found[: len(expected)]]
    np.testing.assert_allclose(scores, [score for score, _, _ in expected], atol=1e-5)


def _spelled(tokens: tuple[int, ...]) -> str:
    return " ".join(map(str, tokens))


@pytest.mark.parametrize("beams", [2, 3, 4, 8])
def test_few_beams_meet_every_constraint(beams: int) -> None:
    constraints = [[8, 9, 10], [11], [8, 12]]  # unlikely tokens, more than there are beams
    for seed in range(20):
        script = random_script(seed, 16, likely=7)
        options = SearchOptions(beam_size=beams, max_length=24)
        (found,) = search([script], options, constraints=[constraints])
        spelled = f" {_spelled(found[0].tokens)} "
        assert all(f" {_spelled(tuple(one))} " in spelled for one in constraints)


def test_greedy_is_argmax() -> None:
    for seed in range(20):
        script = random_script(seed, 9)
        (found,) = search([script], SearchOptions(beam_size=1, max_length=12))
        tokens: tuple[int, ...] = ()
        while len(tokens) < 12:
            token = int(script(tokens).argmax())
            if token == 3:
                break
            tokens = (*tokens, token)
        assert found[0].tokens == tokens


@pytest.mark.parametrize("beams", [2, 4])
@pytest.mark.parametrize("constraints", [[], [[8], [9, 8]]], ids=["free", "constraints"])
@pytest.mark.parametrize("changed", SETTINGS, ids=str)
def test_rule_5_the_n_best_are_the_first_of_all(
    changed: dict[str, Any], constraints: list[list[int]], beams: int
) -> None:
    """With n = K the pool must be full, and so the rule is the one of Wu et al. (2016)."""
    scripts = [random_script(seed, 13) for seed in range(8)]
    settings = {"beam_size": beams, "max_length": 24, **changed}
    steps: list[int] = []
    of_all: list[list[Hypothesis]] = []
    for wanted in (beams, *range(1, beams)):
        options = SearchOptions(**settings, num_hypotheses=wanted)
        model = ScriptedModel(scripts)
        found = beam_search(
            cast(Transformer, model), [[4 + index] for index in range(8)], options,
            constraints=[constraints] * 8, batch_tokens=1,
        )  # fmt: skip
        steps.append(model.steps)
        of_all = of_all or found
        assert found == [one[:wanted] for one in of_all]
    assert steps[1:] == sorted(steps[1:])
    assert steps[1] < steps[0] or changed


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_early_stopping_ends_with_the_first_full_pool(beams: int) -> None:
    stopped = 0
    for seed in range(20):
        script, steps, best = random_script(seed, 15), {}, {}
        for early in (False, True):
            model = ScriptedModel([script])
            options = SearchOptions(
                beam_size=beams, num_hypotheses=beams, max_length=40, early_stopping=early
            )
            (found,) = beam_search(cast(Transformer, model), [[4]], options)
            steps[early], best[early] = model.steps, found[0].score
        lengths = [len(hypothesis.token_log_probs) for hypothesis in found]
        assert len(found) == beams
        # The last that ended filled the pool: one step earlier it was not full.
        if not found[0].truncated:
            assert steps[True] == max(lengths)
        assert best[True] <= best[False]
        stopped += steps[True] < steps[False]
    assert (stopped > 0) == (beams > 1)  # of one beam, the first end is as good as it gets


def test_sentences_of_a_batch_keep_their_own_limits_and_prefixes() -> None:
    scripts = [random_script(seed, 9, likely=7) for seed in range(6)]
    sources = [[4 + index, *[4] * length] for index, length in enumerate((3, 0, 5, 1, 0, 2))]
    prefixes = [(), (5,), (6, 5), (), (4, 4, 4), (3,)]
    for options in (SearchOptions(beam_size=2, num_hypotheses=2), SearchOptions(beam_size=1)):
        together = search(scripts, options, sources=sources, target_prefixes=prefixes)
        for index, found in enumerate(together):
            alone = beam_search(
                cast(Transformer, ScriptedModel(scripts)),
                [sources[index]],
                options,
                [prefixes[index]],
            )
            assert alone == [found]
            for hypothesis in found:
                generated = (*hypothesis.tokens, *(() if hypothesis.truncated else (3,)))
                assert generated[: len(prefixes[index])] == prefixes[index]


def test_a_small_batch_budget_changes_nothing() -> None:
    scripts = [random_script(seed, 9) for seed in range(5)]
    options = SearchOptions(beam_size=2, max_length=6)
    assert search(scripts, options, batch_tokens=4) == search(scripts, options)


def test_token_log_probs_are_those_of_the_model_at_once() -> None:
    # Holds only if the caches are reordered by the right parents in every step.
    model = small_model(1, vocabulary_size=24, encoder_layers=2, decoder_layers=2)
    model.embedding.weight.data *= 4  # sharper distributions, in which beams cross
    sources = [[5, 6, 7, 8], [9], [10, 11]]
    options = SearchOptions(beam_size=4, num_hypotheses=4, max_length=7)
    for source, found in zip(sources, beam_search(model, sources, options), strict=True):
        assert len({hypothesis.tokens for hypothesis in found}) == 4
        for hypothesis in found:
            generated = [*hypothesis.tokens, *([] if hypothesis.truncated else [3])]
            previous = torch.tensor([[2, *generated[:-1]]])
            ids, _ = pad([[*source, 3]])
            logits = model.project(model(ids, None, previous))[0]
            expected = logits.log_softmax(-1)[range(len(generated)), generated]
            np.testing.assert_allclose(hypothesis.token_log_probs, expected.tolist(), atol=1e-5)


def test_an_empty_source_does_not_run_the_model() -> None:
    model = ScriptedModel([])
    found = beam_search(cast(Transformer, model), [[], []], SearchOptions())
    assert found == [[Hypothesis((), 0.0)]] * 2
    assert model.steps == 0


def test_a_prefix_without_room_is_refused() -> None:
    with pytest.raises(OptionError, match="fills max_length 2"):
        search([random_script(0, 9)], SearchOptions(max_length=2), target_prefixes=[[5, 6]])


def test_probabilities_that_are_not_finite_are_an_error() -> None:
    def nothing(tokens: tuple[int, ...]) -> np.ndarray:
        return np.full(19, np.nan, dtype=np.float32)

    model = cast(Transformer, ScriptedModel([random_script(1, 19), nothing]))
    with pytest.raises(BackendError, match=r"probabilities.*3 source"):
        beam_search(model, [[4, 9], [5, 9, 9]], SearchOptions(beam_size=3))


def test_the_default_limit_is_source_and_fifty() -> None:
    def never_ends(tokens: tuple[int, ...]) -> np.ndarray:
        return np.log(np.array([1e-9, 1e-9, 1e-9, 1e-9, 0.6, 0.4], dtype=np.float32))

    (found,) = search([never_ends], SearchOptions(beam_size=2), sources=[[4, 4, 4]])
    assert len(found[0].tokens) == 53
    assert found[0].truncated


def test_attention_of_a_real_model() -> None:
    model = small_model(vocabulary_size=30, decoder_layers=2)
    options = SearchOptions(max_length=5, return_attention=True, num_hypotheses=4)
    for source, found in zip(
        [[5, 6, 7], [8]], beam_search(model, [[5, 6, 7], [8]], options), strict=True
    ):
        for hypothesis in found:
            assert hypothesis.attention is not None
            assert hypothesis.attention.shape == (len(hypothesis.token_log_probs), len(source) + 1)
            np.testing.assert_allclose(hypothesis.attention.sum(1), 1.0, atol=1e-5)

"""The search inside the step graph, as ONNX, on the same scripts as the reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from support.scripted import (
    END,
    START,
    Case,
    Script,
    ScriptedBackend,
    ScriptedModel,
    exhaustive,
    random_script,
    written_cases,
)

from translate_trt.export.graphs import BeamSearchStep
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Request, search_batch
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

Search = Callable[..., Sequence[NDArray[Any]]]


@pytest.fixture(scope="session")
def graph_search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """`BeamSearchStep` as a graph of its own, run by ONNX Runtime."""
    n, k, v = 2, 3, 17
    example = (
        torch.randn(n, k, v),
        *(torch.zeros(n, dtype=torch.int64) for _ in range(3)),
        torch.tensor(0.6),
        torch.tensor(5.0),
        torch.zeros(n, k, dtype=torch.int64),
        torch.zeros(n, k),
        torch.zeros(n, dtype=torch.int64),
        torch.zeros(n, dtype=torch.bool),
        torch.zeros(n, k),
        *(torch.zeros(n, k, dtype=torch.int64) for _ in range(2)),
    )
    names = ["logits", *ScriptedBackend.REQUEST, *ScriptedBackend.STATE]
    dynamic = [dict.fromkeys(range(x.dim()), torch.export.Dim.DYNAMIC) for x in example]
    program = torch.onnx.export(
        BeamSearchStep(END).eval(), example, dynamo=True, dynamic_shapes=tuple(dynamic),
        input_names=names, opset_version=20, verbose=False,
    )  # fmt: skip
    assert program is not None
    path: Path = tmp_path_factory.mktemp("search") / "search.onnx"
    program.save(path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == names

    def run(*inputs: NDArray[Any]) -> Sequence[NDArray[Any]]:
        return cast(
            Sequence[NDArray[Any]], session.run(None, dict(zip(names, inputs, strict=True)))
        )

    return run


def search(
    scripts: Sequence[Script],
    options: SearchOptions,
    graph: Search,
    sources: Sequence[Sequence[int]] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[Hypothesis]], ScriptedBackend]:
    sources = sources or [[4 + index] for index in range(len(scripts))]
    backend = ScriptedBackend(scripts, graph)
    request = Request.of(sources, prefixes or [()] * len(sources), options, END)
    return search_batch(backend, backend.SHAPE, request, START), backend


def reference(
    scripts: Sequence[Script], options: SearchOptions, prefixes: Any = None
) -> list[list[Hypothesis]]:
    model = cast(Transformer, ScriptedModel(scripts))
    return beam_search(model, [[4 + index] for index in range(len(scripts))], options, prefixes)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.truncated for h in ours] == [h.truncated for h in theirs]
        np.testing.assert_allclose([h.score for h in ours], [h.score for h in theirs], atol=1e-4)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.token_log_probs, other.token_log_probs, atol=1e-4)


@pytest.mark.parametrize("case", written_cases(), ids=lambda case: case.name)
def test_written_traces(case: Case, graph_search: Search) -> None:
    sources, prefixes = [[4] * case.source_length], [case.prefix]
    (found,), backend = search([case.script], case.options, graph_search, sources, prefixes)
    assert [list(h.tokens) for h in found] == [entry["tokens"] for entry in case.expected]
    assert [h.truncated for h in found] == [entry["truncated"] for entry in case.expected]
    for hypothesis, entry in zip(found, case.expected, strict=True):
        total = sum(hypothesis.token_log_probs)
        assert total == pytest.approx(math.log(entry["probability"]), abs=1e-4)
    if case.name.startswith("it stops"):
        assert backend.steps == 1


@pytest.mark.parametrize("beams", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("alpha", "form"), [(0.0, "gnmt"), (0.6, "gnmt"), (1.0, "length")])
def test_equal_to_the_reference(beams: int, alpha: float, form: str, graph_search: Search) -> None:
    options = SearchOptions(
        beam_size=beams,
        length_penalty=alpha,
        length_penalty_form=form,
        num_hypotheses=beams,
        max_length=14,
    )
    scripts = [random_script(seed, 19) for seed in range(24)]
    found, _ = search(scripts, options, graph_search)
    assert_same(found, reference(scripts, options))
    lengths = {len(hypotheses[0].tokens) for hypotheses in found}
    assert len(lengths) > 2  # sentences were done at different steps of the same batch
    truncated = [h.truncated for hypotheses in found for h in hypotheses]
    assert not all(truncated)


def test_minimum_length_and_prefixes(graph_search: Search) -> None:
    scripts = [random_script(seed, 19) for seed in range(24)]
    prefixes = [[5 + index % 7, 9, 11][: index % 4] for index in range(24)]
    for minimum, beams in itertools.product((0, 3, 6), (1, 4)):
        options = SearchOptions(
            beam_size=beams, num_hypotheses=beams, min_length=minimum, max_length=10
        )
        found, _ = search(scripts, options, graph_search, prefixes=prefixes)
        assert_same(found, reference(scripts, options, prefixes))
        for hypotheses, prefix in zip(found, prefixes, strict=True):
            for hypothesis in hypotheses:
                assert list(hypothesis.tokens[: len(prefix)]) == prefix
                assert len(hypothesis.token_log_probs) >= minimum


def test_the_best_of_everything(graph_search: Search) -> None:
    # Only tokens 0 to 4 have a chance, so eight beams hold all that is worth holding.
    options = SearchOptions(beam_size=8, length_penalty=0.6, max_length=3)
    for seed in range(10):
        script = random_script(seed, 20, likely=4)
        ((found, *_),), _ = search([script], options, graph_search)
        best = exhaustive(script, options, range(5), 3)
        finished = next(entry for entry in best if not entry[2])
        assert found.score >= finished[0] - 1e-5 or found.tokens == finished[1]


def test_ties_within_a_beam_and_across_beams(graph_search: Search) -> None:
    def equal(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        return np.full(19, -math.log(19), dtype=np.float32)

    for beams in (1, 2, 4, 8):
        options = SearchOptions(beam_size=beams, num_hypotheses=beams, max_length=4)
        found, _ = search([equal], options, graph_search)
        assert_same(found, reference([equal], options))


def test_neighbours_do_not_matter(graph_search: Search) -> None:
    scripts = [random_script(seed, 19) for seed in range(16)]
    options = SearchOptions(beam_size=4, num_hypotheses=4, max_length=12)
    together, _ = search(scripts, options, graph_search)
    alone = [search([script], options, graph_search)[0][0] for script in scripts]
    assert together == alone
    backwards, _ = search(scripts[::-1], options, graph_search)
    assert backwards[::-1] == together


def test_a_finished_sentence_no_longer_changes(graph_search: Search) -> None:
    # Done already, and the logits now offer an end symbol better than anything in the pool.
    beams, size = 2, 11
    logits = np.full((1, beams, size), -20, np.float32)
    logits[:, :, END] = 20
    one = np.array([1], np.int64)
    pool = np.array([[-0.5, -0.7]], np.float32)
    lengths, parents = np.array([[4, 2]]), np.array([[1, 0]])
    outputs = graph_search(
        logits, -one, 0 * one, 50 * one, np.array(0.6, np.float32), np.array(5, np.float32),
        np.array([[5, 6]]), np.array([[-0.1, -0.2]], np.float32), 5 * one, np.array([True]),
        pool, lengths, parents,
    )  # fmt: skip
    names = ["parents", *ScriptedBackend.STATE]
    state = dict(zip(names, outputs, strict=True))
    np.testing.assert_array_equal(state["finished_scores"], pool)
    np.testing.assert_array_equal(state["finished_lengths"], lengths)
    np.testing.assert_array_equal(state["finished_parents"], parents)
    assert state["done"].tolist() == [True]


def test_dead_beams_make_no_nan(graph_search: Search) -> None:
    script = random_script(1, 19)
    options = SearchOptions(beam_size=8, num_hypotheses=8, max_length=2)
    (found,), _ = search([script], options, graph_search, prefixes=[[7]])
    assert found
    assert all(math.isfinite(hypothesis.score) for hypothesis in found)

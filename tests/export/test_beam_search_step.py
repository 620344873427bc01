"""The search of the step graph, as ONNX, compared with the reference on scripted logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from support.scripted import (
    END,
    Case,
    Script,
    ScriptedGraphs,
    ScriptedModel,
    SearchStep,
    random_script,
    scripted_search,
    written_cases,
)
from support.translations import assert_same

from translate_trt.export.aten_to_onnx import to_onnx
from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.passes.pipeline import run_passes
from translate_trt.export.search_step import BeamSearchStep, Changes, Request, State
from translate_trt.export.targets import DYNAMIC_OPSET, TARGETS
from translate_trt.runtime import kernels
from translate_trt.runtime.bundle.contract import NEXT, unscored
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

INPUTS = ["logits", *Request._fields, *State._fields, *Changes._fields]
OUTPUTS = ["parents", *(NEXT + name for name in State._fields)]
_BY_NAME = {spec.name: spec for spec in ScriptedGraphs.CONTRACT.step_inputs}
SPECS = [_BY_NAME[name] for name in INPUTS[1:]]


@pytest.fixture(scope="session")
def traced_search(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`BeamSearchStep` as a graph of its own."""
    sizes = {axis: size for size, axis in enumerate(sorted({a for x in SPECS for a in x.axes}), 2)}
    example = (
        torch.randn(sizes["N"], sizes["K"], 17),
        *(torch.ones([sizes[a] for a in x.axes], dtype=getattr(torch, x.dtype)) for x in SPECS),
    )
    dynamic = [dict.fromkeys(range(x.dim()), torch.export.Dim.DYNAMIC) for x in example]
    program = torch.export.export(
        BeamSearchStep(END).eval(), example, dynamic_shapes=(dynamic[0], tuple(dynamic[1:])),
        strict=False,
    )  # fmt: skip
    inputs = {"logits": ("N", "K", "V"), **{spec.name: spec.axes for spec in SPECS}}
    model = to_onnx(program, inputs, OUTPUTS, "search", DYNAMIC_OPSET)
    path: Path = tmp_path_factory.mktemp("search") / "search.onnx"
    ir.save(model, path)
    return path


@pytest.fixture(scope="session", params=["operators", "kernels"])
def graph_search(request: pytest.FixtureRequest, traced_search: Path) -> SearchStep:
    """`BeamSearchStep` in ONNX Runtime: as traced, and with the compiled kernel."""
    path, options = traced_search, ort.SessionOptions()
    if request.param == "kernels":
        status = kernels.status()
        if status.startswith("none"):  # every processor has that of the search
            pytest.skip(f"compiled kernels: {status}")
        model = ir.load(path)
        run_passes(model, TARGETS["onnx-fp32"].passes)
        calls = [node.op_type for node in model.graph if node.domain]
        assert calls == ["ForcedColumns", "TopLogits", "SelectBeams"]
        path = path.with_name("calls.onnx")
        # The kernel of TopLogits sums in another order, which would break ties.
        summed = [(DOMAIN, "TopLogits")]
        onnx.save(onnx.inliner.inline_selected_functions(ir.to_proto(model), summed), path)
        options.register_custom_ops_library(str(kernels.library()))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == INPUTS

    def run(*inputs: NDArray[Any]) -> Sequence[NDArray[Any]]:
        return cast(
            Sequence[NDArray[Any]], session.run(None, dict(zip(INPUTS, inputs, strict=True)))
        )

    return run


def search(
    scripts: Sequence[Script],
    options: SearchOptions,
    graph: SearchStep,
    sources: Sequence[Sequence[int]] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> tuple[list[list[Hypothesis]], ScriptedGraphs]:
    sources = sources or [[4 + index] for index in range(len(scripts))]
    graphs = ScriptedGraphs(scripts, graph)
    return scripted_search(graphs, options, sources, prefixes), graphs


def reference(
    scripts: Sequence[Script], options: SearchOptions, prefixes: Any = None
) -> list[list[Hypothesis]]:
    model = cast(Transformer, ScriptedModel(scripts))
    return beam_search(model, [[4 + index] for index in range(len(scripts))], options, prefixes)


def all_of(beams: int, alpha: float, form: str, early: bool, max_length: int) -> SearchOptions:
    """Options with all hypotheses of a pool."""
    return SearchOptions(
        beams, alpha, length_penalty_form=form, early_stopping=early, max_length=max_length,
        num_hypotheses=beams,
    )  # fmt: skip


@pytest.mark.parametrize("case", written_cases(), ids=lambda case: case.name)
def test_written_traces(case: Case, graph_search: SearchStep) -> None:
    sources, prefixes = [[4] * case.source_length], [case.prefix]
    (found,), graphs = search([case.script], case.options, graph_search, sources, prefixes)
    assert [list(h.tokens) for h in found] == [entry["tokens"] for entry in case.expected]
    assert [h.truncated for h in found] == [entry["truncated"] for entry in case.expected]
    for hypothesis, entry in zip(found, case.expected, strict=True):
        total = sum(hypothesis.token_log_probs)
        assert total == pytest.approx(math.log(entry["probability"]), abs=1e-4)
    if case.steps is not None:
        assert graphs.steps == case.steps


@pytest.mark.parametrize("beams", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("alpha", "form", "early"),
    [(0.0, "gnmt", False), (0.6, "gnmt", False), (1.0, "length", False), (0.6, "gnmt", True)],
)
def test_equal_to_the_reference(
    beams: int, alpha: float, form: str, early: bool, graph_search: SearchStep
) -> None:
    options = all_of(beams, alpha, form, early, max_length=14)
    scripts = [random_script(seed, 19) for seed in range(24)]
    found, _ = search(scripts, options, graph_search)
    assert_same(found, reference(scripts, options))
    lengths = {len(hypotheses[0].tokens) for hypotheses in found}
    assert len(lengths) > 2  # sentences were done at different steps of the same batch
    truncated = [h.truncated for hypotheses in found for h in hypotheses]
    assert not all(truncated)


@pytest.mark.parametrize("beams", [2, 4])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("alpha", "form"), [(0.6, "gnmt"), (1.0, "length")])
def test_rule_5_the_n_best_are_the_first_of_all(
    alpha: float, form: str, early: bool, beams: int, graph_search: SearchStep
) -> None:
    options = all_of(beams, alpha, form, early, max_length=24)
    scripts = [random_script(seed, 19) for seed in range(24)]
    of_all, _ = search(scripts, options, graph_search)
    for wanted in range(1, beams):
        fewer = replace(options, num_hypotheses=wanted)
        found, _ = search(scripts, fewer, graph_search)
        assert found == [one[:wanted] for one in of_all]
        assert_same(found, reference(scripts, fewer))


def test_minimum_length_and_prefixes(graph_search: SearchStep) -> None:
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


def test_neighbours_do_not_matter(graph_search: SearchStep) -> None:
    scripts = [random_script(seed, 19) for seed in range(16)]
    options = SearchOptions(beam_size=4, num_hypotheses=4, max_length=12)
    together, _ = search(scripts, options, graph_search)
    alone = [search([script], options, graph_search)[0][0] for script in scripts]
    assert together == alone
    backwards, _ = search(scripts[::-1], options, graph_search)
    assert backwards[::-1] == together


# ---- single steps, by the rules of docs/beam-search.md ----
#
# Logits and scores are small multiples of powers of two, and the logits of all beams are
# permutations of the same numbers, so ties are exact.

LOWEST = -np.inf


#: Inputs in the middle of a search with an empty pool; all others are zero.
MIDDLE: dict[str, Any] = {
    "forced_tokens": -1, "max_lengths": 50, "length_penalty_beta": 5, "num_hypotheses": 1,
    "tokens": 9, "positions": 4, "finished_scores": LOWEST, "sampling_temperature": 1,
    "sampling_top_p": 1,
}  # fmt: skip


def one_step(graph: SearchStep, logits: Any, **given: Any) -> dict[str, NDArray[Any]]:
    """Outputs of one step of N sentences; one number of `given` is that of all sentences."""
    logits = np.asarray(logits, np.float32)
    assert given.keys() <= set(INPUTS)
    sizes = dict(zip("NK", logits.shape, strict=False))  # marks, samples and constraints: none
    inputs = []
    for spec in SPECS:
        value = (MIDDLE | given).get(spec.name, 0)
        shape = [sizes.get(str(axis), 0) for axis in spec.axes] if np.ndim(value) == 0 else None
        inputs.append(np.array(value if shape is None else np.full(shape, value), spec.dtype))
    outputs = graph(logits, *inputs)
    return dict(zip(["parents", *State._fields], outputs, strict=True))


def row(size: int = 24, **named: float) -> NDArray[np.float32]:
    """Logits of one beam: `t5=2.0` for token 5, and zero for all other tokens."""
    logits = np.zeros(size, np.float32)
    for name, value in named.items():
        logits[int(name[1:])] = value
    return logits


def test_rule_2_an_end_that_is_not_among_the_best_2k_does_not_count(
    graph_search: SearchStep,
) -> None:
    # Two beams: beam 0 has three better continuations than beam 1's end symbol, beam 1 one.
    better = row(t5=8, t6=8, t7=8)
    out = one_step(graph_search, np.stack([better, row(t8=8, t3=7)])[None], log_probs=[[-1, -1]])
    assert (out["finished_scores"] == LOWEST).all()
    # Without the third it is the fourth best of all.
    fewer = row(t5=8, t6=8)
    out = one_step(graph_search, np.stack([fewer, row(t8=8, t3=7)])[None], log_probs=[[-1, -1]])
    assert out["finished_parents"][0, 0] == 1
    assert out["finished_scores"][0, 0] > LOWEST


def test_rule_3_of_equal_scores_the_earlier_one_stays(graph_search: SearchStep) -> None:
    logits = np.stack([row(t3=60), row(t3=60)])[None]  # of probability 1, to the bit
    out = one_step(
        graph_search, logits, log_probs=[[-2, -2]],
        finished_scores=[[-2, -3]], finished_lengths=[[1, 2]], finished_parents=[[1, 1]],
    )  # fmt: skip
    assert out["finished_lengths"].tolist() == [[1, 5]]
    assert out["finished_parents"].tolist() == [[1, 0]]  # and of the new ones that of beam 0


@pytest.mark.parametrize(
    ("wanted", "scores", "done"),
    [
        (1, (-4.0, LOWEST), True),
        (1, (-4.001, LOWEST), False),
        (1, (LOWEST, LOWEST), False),
        (2, (-1, -4.0), True),
        (2, (-1, -4.001), False),
        (2, (-1, LOWEST), False),
    ],
)
@pytest.mark.parametrize("alpha", [0, 1])
def test_rule_5_done_when_no_live_beam_can_beat_the_n_best(
    wanted: int, scores: tuple[float, float], done: bool, alpha: int, graph_search: SearchStep
) -> None:
    # Token 5 is certain, so the best live beam stays at -4 (at -4 * lp(7) where that divides by 4).
    best = -4.0 if alpha == 0 else -16.0  # (5 + 19) / 6 = 4 at the maximum length of 19
    out = one_step(
        graph_search, np.stack([row(t5=90), row(t5=90)])[None], log_probs=[[best, best - 8]],
        finished_scores=[scores], max_lengths=[19], length_penalty_alpha=alpha,
        num_hypotheses=wanted,
    )  # fmt: skip
    assert out["log_probs"][0, 0] == best
    assert out["done"].tolist() == [done]


@pytest.mark.parametrize("early", [False, True])
def test_rule_3_early_stopping_takes_ends_of_the_best_alone(
    early: bool, graph_search: SearchStep
) -> None:
    # The second beam's end is third of all, behind both of the first beam.
    logits = np.stack([row(t5=60, t6=59.5), row(t3=60)])[None]
    out = one_step(graph_search, logits, log_probs=[[-1, -9]], early_stopping=early)
    assert out["tokens"].tolist() == [[5, 6]]
    end = LOWEST if early else pytest.approx(-9, abs=1e-5)
    assert out["finished_scores"].tolist() == [[end, LOWEST]]
    # It counts if it is among them.
    out = one_step(graph_search, logits, log_probs=[[-1, -1.2]], early_stopping=early)
    assert out["finished_scores"][0].tolist() == [pytest.approx(-1.2, abs=1e-5), LOWEST]


def test_rule_5_a_sentence_that_is_done_waits_where_it_is(graph_search: SearchStep) -> None:
    # Neither the table of positions nor a static cache may have a further position.
    for maximum, done, following in ((5, False, 4), (5, True, 4), (6, False, 5), (6, True, 4)):
        out = one_step(
            graph_search, row(t5=1)[None, None], positions=[4], max_lengths=[maximum], done=[done]
        )
        assert out["positions"].tolist() == [following]
        assert out["done"].tolist() == [done or maximum == 5]


# Rule 6: two beams at their fifth token, whose best continuations are 5 and 6.
LIVE = np.stack([row(t5=90), row(t6=90)])[None]


def cut_off(
    graph: SearchStep, scores: Sequence[float], log_probs: Sequence[float] = (-4, -12), **given: Any
) -> list[tuple[float, int, int, bool]]:
    """Score, length, parent and truncation of each entry of the pool after the last step."""
    given = {"max_lengths": [5], "finished_lengths": [[3, 2]], "finished_parents": [[1, 1]]} | given
    out = one_step(graph, LIVE, finished_scores=[scores], log_probs=[log_probs], **given)
    names = ("scores", "lengths", "parents", "truncated")
    return list(zip(*(out[f"finished_{name}"][0].tolist() for name in names), strict=True))


@pytest.mark.parametrize("nothing", [LOWEST, np.nan], ids=["dead", "NaN"])
def test_rule_6_a_dead_beam_is_no_hypothesis(nothing: float, graph_search: SearchStep) -> None:
    (best, second) = cut_off(graph_search, (-7, LOWEST), (nothing, nothing))
    assert best == (-7, 3, 1, False)
    assert (second[0], second[3]) == (LOWEST, False)


def test_rule_6_what_was_cut_off_stays_so_while_neighbours_go_on(graph_search: SearchStep) -> None:
    given: dict[str, Any] = {"done": [True], "finished_truncated": [[False, True]]}
    after = cut_off(graph_search, (-7, -4), (-1, -2), finished_lengths=[[3, 5]], **given)
    assert sorted(after) == [(-7, 3, 1, False), (-4, 5, 1, True)]
    # A sentence that was done before takes no live hypotheses.
    after = cut_off(graph_search, (-7, LOWEST), (-1, -2), done=[True])
    assert [score for score, *_ in after] == [-7, LOWEST]


def test_rule_8_ties_go_to_the_smaller_beam_then_the_smaller_token(
    graph_search: SearchStep,
) -> None:
    # The logits of all beams are permutations; more than the best 2K = 6 tie.
    logits = np.stack([row(t9=4, t5=4), row(t4=4, t8=4), row(t7=4, t6=4)])[None]
    out = one_step(graph_search, logits, log_probs=[[-1, -1, -1]])
    assert out["log_probs"].min() == out["log_probs"].max()
    assert out["parents"].tolist() == [[0, 0, 1]]
    assert out["tokens"].tolist() == [[5, 9, 4]]


@pytest.mark.parametrize("beams", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("size", [40, 320, 5000])
def test_rule_8_however_many_tie(beams: int, size: int, graph_search: SearchStep) -> None:
    # Top-k implementations differ by k and size; all must keep the order of indices.
    out = one_step(graph_search, np.zeros((2, beams, size)), log_probs=np.zeros((2, beams)))
    # The best 2K are beam 0's first tokens; the end symbol is one of them, if K is large enough.
    ended = 2 * beams > END and beams > 1
    expected = [token for token in range(2 * beams) if token != END][:beams]
    assert out["tokens"].tolist() == [expected] * 2
    assert (out["parents"] == 0).all()
    assert (out["finished_scores"] > LOWEST).sum(axis=1).tolist() == [int(ended)] * 2


def test_rule_9_a_done_sentence_keeps_its_pool_while_its_neighbour_goes_on(
    graph_search: SearchStep,
) -> None:
    logits = np.stack([np.stack([row(t3=30), row(t3=29)])] * 2)
    pool: dict[str, Any] = {
        "finished_scores": [[-7.1, -7.3]] * 2,
        "finished_lengths": [[3, 2]] * 2,
        "finished_parents": [[1, 0]] * 2,
    }
    out = one_step(graph_search, logits, done=[True, False], log_probs=[[-1, -2]] * 2, **pool)
    for name, before in pool.items():
        np.testing.assert_array_equal(out[name][0], np.array(before[0], out[name].dtype))
        assert out[name][1].tolist() != out[name][0].tolist()
    assert out["done"][0]


def test_rule_10_each_sentence_has_options_of_its_own(graph_search: SearchStep) -> None:
    # Every combination at once, on the same numbers; then each by itself.
    combinations = list(
        itertools.product((0, 0.6, 1, 3), (0, 5), (1, 2), (False, True), (0, 6), (5, 19))
    )
    names = ("length_penalty_alpha", "length_penalty_beta", "num_hypotheses", "early_stopping",
             "min_lengths", "max_lengths")  # fmt: skip
    logits = np.stack([row(t3=3, t5=4, t6=2.5), row(t3=4, t6=3.75)])
    same: dict[str, Any] = {"log_probs": [-2, -2.5], "finished_scores": [-2.75, LOWEST]}

    def step(chosen: Sequence[Any]) -> dict[str, NDArray[Any]]:
        columns = dict(zip(names, zip(*chosen, strict=True), strict=True))
        alike = {name: [value] * len(chosen) for name, value in same.items()}
        return one_step(graph_search, [logits] * len(chosen), **alike, **columns)

    together = step(combinations)
    for place, one in enumerate(combinations):
        for name, value in step([one]).items():
            np.testing.assert_array_equal(together[name][place], value[0], str((name, one)))
    # The options matter.
    assert len(np.unique(together["finished_scores"], axis=0)) > 10
    assert 0 < together["done"].sum() < len(combinations)


def test_rule_10_a_token_that_is_given_costs_nothing(graph_search: SearchStep) -> None:
    logits = np.stack([np.stack([row(t5=9, t3=8), row(t6=9, t3=8)])] * 2)
    forced = [unscored(23), unscored(0)]
    out = one_step(graph_search, logits, forced_tokens=forced, log_probs=[[-1, -2]] * 2)
    assert out["tokens"].tolist() == [[23, 23], [0, 0]]
    assert out["parents"].tolist() == [[0, 1]] * 2
    assert out["log_probs"].tolist() == [[-1, -2]] * 2
    assert (out["finished_scores"] == LOWEST).all()

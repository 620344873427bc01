"""Searches over scripted log-probabilities: written down, or drawn from a seed per prefix.

The same script runs through the PyTorch reference (`ScriptedModel`) and through the step graph's
search (`ScriptedGraphs`), so that what either does with given numbers can be told exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from support.paths import ROOT
from translate_trt.export.contract import GraphLayout, make_contract
from translate_trt.export.graphs import SharedSlots, StaticCaches
from translate_trt.export.search_step import BeamSearchStep, Changes, Request, State
from translate_trt.runtime.bundle.contract import MASKED, NEXT, Contract, TensorSpec
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Arrays, Reference, Sentence
from translate_trt.runtime.results import Hypothesis

TRACES = ROOT / "tests" / "data" / "search_traces.json"
END = 3
START = 2

#: Tokens generated so far -> log-probability of each next token [V].
Script = Callable[[tuple[int, ...]], NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """Scripted search: log-probabilities, options and expected results.

    In the JSON file, `log_probs` maps tokens joined by spaces ("" at the start) to probabilities by
    token; what is not named shares the rest. `*` stands for every other prefix.
    `steps`, where given, is how often the model runs.
    """

    name: str
    vocabulary: int
    options: SearchOptions
    source_length: int
    prefix: tuple[int, ...]
    script: Script
    expected: list[dict[str, Any]]
    steps: int | None = None


def _written(table: Mapping[str, Mapping[str, float]], vocabulary: int) -> Script:
    def script(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        named = table.get(" ".join(map(str, tokens)), table["*"])
        rest = (1 - sum(named.values())) / (vocabulary - len(named))
        probabilities = [named.get(str(token), max(rest, 1e-9)) for token in range(vocabulary)]
        return np.log(np.array(probabilities, dtype=np.float64)).astype(np.float32)

    return script


def written_cases() -> list[Case]:
    """Load the cases of tests/data/search_traces.json."""
    return [
        Case(
            case["name"],
            case["vocabulary"],
            SearchOptions(**case["options"]),
            case.get("source_length", 1),
            tuple(case.get("prefix", ())),
            _written(case["log_probs"], case["vocabulary"]),
            case["expected"],
            case.get("steps"),
        )
        for case in json.loads(TRACES.read_text(encoding="utf-8"))
    ]


def random_script(seed: int, vocabulary: int, likely: int | None = None) -> Script:
    """Draw log-probabilities for each prefix; only the first `likely` tokens are likely."""

    def script(tokens: tuple[int, ...]) -> NDArray[np.float32]:
        random = np.random.default_rng([seed, *tokens])
        logits = random.standard_normal(vocabulary) * 1.5
        if likely is not None:
            logits[likely:] = -1e4
        result: NDArray[np.float32] = logits - np.log(np.exp(logits).sum())
        return result.astype(np.float32)

    return script


def exhaustive(
    script: Script, options: SearchOptions, vocabulary: Sequence[int], max_length: int
) -> list[tuple[float, tuple[int, ...], bool]]:
    """Enumerate (score, tokens, truncated) of all hypotheses in the order of rule 7.

    Complete ones of up to `max_length` tokens with the end symbol, and those cut off there.
    """
    found: list[tuple[float, tuple[int, ...], bool]] = []

    def penalty(length: int) -> float:
        beta = options.length_penalty_beta
        return float(((beta + length) / (beta + 1)) ** options.length_penalty)

    def visit(tokens: tuple[int, ...], log_prob: float) -> None:
        log_probs = script(tokens)
        for token in vocabulary:
            total = log_prob + float(log_probs[token])
            length = len(tokens) + 1
            if token == END:
                if length >= options.min_length:
                    found.append((total / penalty(length), tokens, False))
            elif length == max_length:
                found.append((total / penalty(length), (*tokens, token), True))
            else:
                visit((*tokens, token), total)

    visit((), 0.0)
    return sorted(found, key=lambda entry: (entry[2], -entry[0]))


@dataclass
class _ScriptedCache:
    prefixes: list[tuple[int, ...]]
    recorded: None = None
    attention: None = None

    def select(self, rows: torch.Tensor) -> _ScriptedCache:
        return _ScriptedCache([self.prefixes[row] for row in rows.tolist()])


class ScriptedModel:
    """Fake `Transformer` for `beam_search`; sentence i follows scripts[i]."""

    embedding = SimpleNamespace(weight=torch.zeros(1))
    source_end = True

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.scripts = scripts
        self.steps = 0

    def start_cache(self, source: torch.Tensor, lengths: torch.Tensor) -> _ScriptedCache:
        # A source's first token names its script.
        self.chosen = [self.scripts[int(row[0]) - 4] for row in source]
        self.rows = list(range(len(source)))
        return _ScriptedCache([(row,) for row in range(len(source))])

    def decode_next(self, tokens: torch.Tensor, cache: _ScriptedCache) -> torch.Tensor:
        self.steps += 1
        cache.prefixes = [
            (*prefix, token) for prefix, token in zip(cache.prefixes, tokens.tolist(), strict=True)
        ]
        rows = [self.chosen[prefix[0]](prefix[2:]) for prefix in cache.prefixes]
        return torch.from_numpy(np.stack(rows))


#: (logits, then the request, the search state and the marks) -> parents and next state.
SearchStep = Callable[..., Sequence[NDArray[Any]]]


def torch_step(*inputs: NDArray[Any]) -> list[NDArray[Any]]:
    """Run `BeamSearchStep` in PyTorch, without a graph."""
    with torch.inference_mode():
        return [x.numpy() for x in BeamSearchStep(END)(*map(torch.from_numpy, inputs))]


def assert_declared(arrays: Arrays, specs: Sequence[TensorSpec]) -> None:
    """Check names, types and axes of arrays; each letter must have one size."""
    assert arrays.keys() == {spec.name for spec in specs}
    sizes: dict[str, int] = {}
    for spec in specs:
        array = arrays[spec.name]
        assert array.dtype == np.dtype(spec.dtype), spec.name
        given = zip(array.shape, spec.axes, strict=True)
        expected = [sizes.setdefault(x, n) if isinstance(x, str) else x for n, x in given]
        assert list(array.shape) == expected, spec.name


SHARED_SLOTS = GraphLayout()


def contract_of(layout: GraphLayout) -> Contract:
    """Return the contract of a decoder of one layer, one head and one column."""
    return make_contract(1, 1, 1, 1, layout=layout)


class ScriptedGraphs:
    """`Graphs` whose logits come from scripts; a source's first token names its own.

    All they know of a sentence is in the arrays they are given, as with real graphs: the source in
    `cross_key_0`, and in the slots of a cache the tokens fed there and their positions. A slot that
    was overwritten too early, or moved to a wrong place, is found out at once.

    Attributes:
        scripts: of all sentences.
        search: the search of a step.
        sizes: of each step so far, (N, S, P).
        used: of each step so far, the most slots that are in the past of a beam of one sentence.
    """

    CONTRACT = contract_of(SHARED_SLOTS)

    def __init__(
        self, scripts: Sequence[Script], search: SearchStep = torch_step,
        layout: GraphLayout = SHARED_SLOTS,
    ) -> None:  # fmt: skip
        self.scripts, self.search = scripts, search
        self.contract = contract_of(layout)
        self.sizes: list[tuple[int, int, int]] = []
        self.used: list[int] = []
        self.encoded: list[tuple[int, int]] = []  # (N, S) of each run of the encoder

    @property
    def steps(self) -> int:
        return len(self.sizes)

    def encode(self, inputs: Arrays) -> Arrays:
        assert_declared(inputs, self.contract.encoder_inputs)
        ids, lengths = inputs["source_ids"], inputs["source_lengths"]
        self.encoded.append(ids.shape)
        hidden = np.arange(ids.shape[1]) >= lengths[:, None]
        keys = ids.astype(np.float32)[:, None, :, None]
        outputs = {
            "source_bias": np.where(hidden, MASKED, 0).astype(np.float32)[:, None, None],
            "cross_key_0": keys,
            "cross_value_0": keys.copy(),
        }
        assert_declared(outputs, self.contract.encoder_outputs)
        return outputs

    def step(self, inputs: Arrays) -> Arrays:
        """Run a step; only the returned caches are writable."""
        assert_declared(inputs, self.contract.step_inputs)
        caches = {spec.name for spec in self.contract.caches}
        own = {name: x if name in caches else x.copy() for name, x in inputs.items()}
        outputs = self._step(own)
        assert_declared(outputs, self.contract.step_outputs)
        for name, array in outputs.items():
            if name.removeprefix(NEXT) in caches:
                assert array is inputs[name.removeprefix(NEXT)]
            else:
                array.flags.writeable = False
        return outputs

    def _step(self, inputs: Arrays) -> Arrays:
        ancestry = torch.from_numpy(inputs["ancestry"])
        # Who is done waits at a position that there is.
        assert (inputs["positions"] < inputs["max_lengths"]).all()
        self.sizes.append((len(ancestry), inputs["source_bias"].shape[3], ancestry.shape[2]))
        living = [(row == 0).any(0).sum() for row in inputs["ancestry"][~inputs["done"]]]
        self.used.append(max(map(int, living), default=0))
        rows = [self._row(inputs, row) for row in range(len(ancestry))]
        caches = self._write(inputs)
        ancestry = caches.extend(ancestry)
        logits = np.stack([[script(p) for p in prefixes] for script, _, prefixes in rows])
        names = [
            *Request._fields,
            *State._fields,
            *(Changes._fields if self.contract.marks else ()),
        ]
        parents, *following = self.search(logits, *(inputs[name] for name in names))
        index = torch.from_numpy(parents)[..., None].expand_as(ancestry)
        ancestry = ancestry.gather(1, index)
        outputs = {"parents": parents, NEXT + "ancestry": ancestry.numpy()}
        outputs |= {
            NEXT + name: value for name, value in zip(State._fields, following, strict=True)
        }
        outputs |= {NEXT + spec.name: inputs[spec.name] for spec in self.contract.caches}
        if isinstance(caches, SharedSlots):
            _, full = caches.next_slots(ancestry)
            outputs |= {NEXT + "slots": lowest_free(ancestry), "full": full.numpy()}
        return outputs

    def _row(self, inputs: Arrays, row: int) -> tuple[Script, list[int], list[tuple[int, ...]]]:
        """Recover script, source and beam prefixes of a row from its caches."""
        beams = inputs["tokens"].shape[1]
        if inputs["done"][row]:  # waits, or is idle; its results are never read
            return self.scripts[0], [], [()] * beams
        shown = inputs["source_bias"][row, 0, 0] == 0
        source = inputs["cross_key_0"][row, 0, shown, 0].astype(int).tolist()
        np.testing.assert_array_equal(source, inputs["cross_value_0"][row, 0, shown, 0])
        assert source[-1] == END
        assert END not in source[:-1]
        prefixes = []
        for beam in range(beams):
            own = inputs["ancestry"][row, beam] == 0
            at = inputs["self_value_0"][row, 0, own, 0].astype(int)
            fed = inputs["self_key_0"][row, 0, own, 0].astype(int)
            assert sorted(at) == list(range(1, inputs["positions"][row] + 1)), "a slot is lost"
            tokens = [*fed[at.argsort()].tolist(), int(inputs["tokens"][row, beam])]
            assert tokens[0] == START
            prefixes.append(tuple(tokens[1:]))
        return self.scripts[source[0] - 4], source, prefixes

    def _write(self, inputs: Arrays) -> SharedSlots | StaticCaches:
        """Write this step's tokens and positions, from 1, into the caches."""
        rows, beams = inputs["tokens"].shape
        positions = inputs["positions"][:, None]
        if self.contract.slots is None:
            slots = inputs["slots"]
            caches: SharedSlots | StaticCaches = SharedSlots(torch.from_numpy(slots), heads=1)
        else:
            slots = positions * beams + np.arange(beams)
            caches = StaticCaches(torch.from_numpy(inputs["positions"]), beams)
        for row in range(rows):
            assert len(set(slots[row].tolist())) == beams
            inputs["self_key_0"][row, 0, slots[row], 0] = inputs["tokens"][row]
            inputs["self_value_0"][row, 0, slots[row], 0] = positions[row] + 1
        return caches


def lowest_free(ancestry: torch.Tensor) -> NDArray[np.int64]:
    """Choose free slots [N, K] of ancestry [N, K, P], the lowest first; others if these are few.

    Of equal ones ONNX's top-k takes the first, as the graphs do, and PyTorch's takes any.
    """
    in_a_past = ancestry.amax(1) == 0
    found: NDArray[np.int64] = in_a_past.numpy().argsort(1, kind="stable")
    return found[:, : ancestry.shape[1]]


def scripted_search(
    graphs: ScriptedGraphs,
    options: SearchOptions,
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = 10_000,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of `Reference` for each source."""
    given = zip(sources, prefixes or [()] * len(sources), strict=True)
    search = Reference(graphs, graphs.contract, START, END, batch_tokens=batch_tokens)
    return search.translate([Sentence(*one, options) for one in given])

"""Searches over log-probabilities that are written down, or drawn from a seed, prefix by prefix.

The same script runs through the PyTorch reference (`ScriptedModel`) and through the step graph's
search (`ScriptedBackend`), so that what either does with given numbers can be told exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from translate_trt.runtime.contract import GraphShape
from translate_trt.runtime.options import SearchOptions

TRACES = Path(__file__).resolve().parent.parent / "data" / "search_traces.json"
END = 3
START = 2

#: Tokens generated so far -> log-probability of each next token [V].
Script = Callable[[tuple[int, ...]], NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """A written search: its script, its options and what must come out.

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
    """The cases of tests/data/search_traces.json."""
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
    """Log-probabilities drawn for each prefix; only the first `likely` tokens have a chance."""

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
    """(score, tokens, truncated) of every hypothesis there is, best first.

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
    return sorted(found, key=lambda entry: -entry[0])


@dataclass
class _ScriptedCache:
    prefixes: list[tuple[int, ...]]
    record_attention: bool = False
    attention: None = None

    def select(self, rows: torch.Tensor) -> _ScriptedCache:
        return _ScriptedCache([self.prefixes[row] for row in rows.tolist()])


class ScriptedModel:
    """Stands in for `Transformer` in `beam_search`; sentence i follows scripts[i]."""

    embedding = SimpleNamespace(weight=torch.zeros(1))

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


@dataclass
class ScriptedBackend:
    """A `Backend` whose logits come from scripts and whose search is the given function.

    Attributes:
        scripts: of all sentences; a source's first token names its own.
        search: (logits, then the request, then the search state) -> parents and next state.
        fetched: names of what `to_host` was asked for (every array passes by name of its step).
    """

    scripts: Sequence[Script]
    search: Callable[..., Sequence[NDArray[Any]]]
    steps: int = 0
    fetched: list[str] = field(default_factory=list)

    SHAPE = GraphShape(decoder_layers=0, heads=1, key_size=1, value_size=1)
    REQUEST = tuple(spec.name for spec in SHAPE.request())
    STATE = (
        "tokens",
        "log_probs",
        "positions",
        "done",
        "finished_scores",
        "finished_lengths",
        "finished_parents",
    )

    def encode(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.chosen = [self.scripts[int(row[0]) - 4] for row in inputs["source_ids"]]
        self.prefixes: list[list[tuple[int, ...]]] | None = None
        return {"source_bias": np.zeros((len(self.chosen), 1, 1, 1), np.float32)}

    def step(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        self.steps += 1
        beams = inputs["tokens"].shape[1]
        if self.prefixes is None:
            self.prefixes = [[()] * beams for _ in self.chosen]
        logits = np.stack(
            [
                np.stack([script(prefix) for prefix in row])
                for script, row in zip(self.chosen, self.prefixes, strict=True)
            ]
        )
        request = [inputs[name] for name in self.REQUEST]
        state = [inputs[name] for name in self.STATE]
        parents, *following = self.search(logits, *request, *state)
        names = ["parents", *(f"next_{name}" for name in self.STATE), "next_ancestry"]
        outputs = dict(zip(names, (parents, *following, inputs["ancestry"]), strict=True))
        self.prefixes = [
            [(*row[parent], token) for parent, token in zip(p, t, strict=True)]
            for row, p, t in zip(
                self.prefixes, parents.tolist(), outputs["next_tokens"].tolist(), strict=True
            )
        ]
        return outputs

    def to_device(self, value: NDArray[Any]) -> NDArray[Any]:
        return value

    def to_host(self, tensor: NDArray[Any]) -> NDArray[Any]:
        return tensor

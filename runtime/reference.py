"""Reference implementation of the beam search loop around the step graph: rules 1 to 10.

Read it beside docs/beam-search.md, whose rule numbers it cites. Batches are static: their sentences
start together and no sentence joins later. Tests compare libtranslate_trt with this module, which
also translates plain lines where that library is not built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.bundle.contract import (
    FREE,
    MASKED,
    NEXT,
    Contract,
    max_beams,
    request_values,
    unscored,
)
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry
from translate_trt.runtime.errors import BackendError, InputError, OptionError
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.native import missing_library
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation, check_found
from translate_trt.runtime.text.tokenizer import Tokenizer

Arrays = dict[str, NDArray[Any]]

_BATCH_TOKENS = 512  # default, as that of libtranslate_trt for ONNX Runtime

# Options and parts of a request that plain lines have.
_OPTIONS = (
    "beam_size", "length_penalty", "length_penalty_form", "early_stopping", "max_length",
    "min_length", "num_hypotheses", "source_language", "target_language", "max_extra_length",
)  # fmt: skip
_FIELDS = ("lines", "tokens", "targets", "names", "translate_all")
_NOTHING = LineRequest((), SearchOptions())


class Graphs(Protocol):
    """Encoder and step graph of a target on host arrays. Thread-safe."""

    def encode(self, inputs: Arrays) -> Arrays:
        """Run the encoder and return its outputs by name."""

    def step(self, inputs: Arrays) -> Arrays:
        """Run one step and return its outputs by name; it may update the caches in place."""


@dataclass(frozen=True)
class Sentence:
    """A sentence to translate.

    Attributes:
        tokens: Source tokens without the end symbol; not empty.
        prefix: Values of `forced_tokens` (see the contract) for the first steps.
        options: Search options; all sentences of a batch share the beam size.
    """

    tokens: Sequence[int]
    prefix: Sequence[int]
    options: SearchOptions

    @property
    def max_length(self) -> int:
        """Maximum number of generated tokens, the end symbol included."""
        return self.options.max_length_for(len(self.tokens))


class Batch:
    """Sentences that are translated together, one per row.

    Args:
        graphs: Graphs of the target.
        contract: Inputs and outputs of the graphs.
        sentences: At least one sentence; all have the same beam size.
        start_token: The decoder's start symbol.
        end_token: The end symbol.

    Attributes:
        history: Of each step so far, the last token of each beam [N, K], the beam of the previous
            step that it continues, and its cumulative log-probability.
        lengths: [N] number of steps of each sentence until it was done.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, sentences: Sequence[Sentence],
        start_token: int, end_token: int,
    ) -> None:  # fmt: skip
        self._graphs, self._contract, self._sentences = graphs, contract, sentences
        self.history: list[tuple[NDArray[Any], ...]] = []
        self.lengths = np.zeros(len(sentences), dtype=np.int64)
        count, beams = len(sentences), sentences[0].options.beam_size
        self._inputs = graphs.encode(_padded([[*one.tokens, end_token] for one in sentences]))
        max_lengths = np.array([one.max_length for one in sentences], dtype=np.int64)
        marked_beams = beams if contract.marks else None
        options = [one.options for one in sentences]
        self._inputs |= request_values(options, max_lengths, marked_beams)
        # Rule 1: one live hypothesis per sentence.
        slots = _slot_capacity(beams) if contract.slots is None else contract.slots
        self._inputs |= contract.initial_state(count, beams, start_token, slots)

    @property
    def is_done(self) -> bool:
        """True once all sentences are done."""
        return bool(self._inputs["done"].all())

    def step(self) -> None:
        """Run one step (rules 2 to 6, in the graph) and record its live beams."""
        inputs, position = self._inputs, len(self.history)
        forced = ([*one.prefix, FREE][min(position, len(one.prefix))] for one in self._sentences)
        inputs["forced_tokens"] = np.fromiter(forced, dtype=np.int64)
        self.lengths += ~inputs["done"]
        outputs = self._graphs.step(inputs)
        for spec in self._contract.state:
            inputs[spec.name] = outputs[NEXT + spec.name]
        self.history.append((inputs["tokens"], outputs["parents"], inputs["log_probs"]))
        full = outputs.get("full", np.False_) & ~inputs["done"]
        if full.any():
            self._grow(full)

    def hypotheses(self, row: int) -> list[Hypothesis]:
        """Return the n best hypotheses of the sentence of a row, which is done (rule 7).

        Raises:
            BackendError: The pool is empty (`check_found`).
        """
        sentence = self._sentences[row]
        names = ("scores", "lengths", "parents", "truncated")
        pool = zip(*(self._inputs[f"finished_{name}"][row].tolist() for name in names), strict=True)
        best = sorted((e for e in pool if e[0] > -np.inf), key=lambda e: (e[3], -e[0]))
        found = [self._trace(row, *one) for one in best[: sentence.options.num_hypotheses]]
        return check_found(found, len(sentence.tokens))

    def _trace(self, row: int, score: float, length: int, beam: int, cut_off: bool) -> Hypothesis:
        """Trace a hypothesis back from the live beam that ended, or was cut off.

        Its length includes the end symbol, which is the token of no live beam.
        """
        path = []
        for tokens, parents, log_probs in reversed(self.history[: length - (not cut_off)]):
            path.append((int(tokens[row, beam]), float(log_probs[row, beam])))
            beam = int(parents[row, beam])  # that the token was chosen from
        path.reverse()
        totals = [0.0, *(total for _, total in path)]
        if not cut_off:
            totals.append(score * self._sentences[row].options.penalty(length))
        added = tuple(after - before for before, after in pairwise(totals))
        return Hypothesis(tuple(token for token, _ in path), score, added, cut_off)

    def _grow(self, full: NDArray[np.bool_]) -> None:
        """Add cache slots; the full rows [N] write next to their lowest free slots."""
        inputs, beams = self._inputs, self._sentences[0].options.beam_size
        old = inputs["ancestry"].shape[2]
        added = _slot_capacity(old + beams) - old
        for spec in self._contract.caches:
            inputs[spec.name] = np.pad(inputs[spec.name], ((0, 0), (0, 0), (0, added), (0, 0)))
        width = ((0, 0), (0, 0), (0, added))
        inputs["ancestry"] = np.pad(inputs["ancestry"], width, constant_values=MASKED)
        inputs["slots"] = inputs["slots"].copy()
        for row in np.flatnonzero(full):
            free = np.flatnonzero((inputs["ancestry"][row] < 0).all(0))
            inputs["slots"][row] = free[:beams]


def _padded(sources: Sequence[Sequence[int]]) -> Arrays:
    """Pad token lists to the encoder's inputs; any valid token id serves as padding."""
    lengths = np.array([len(tokens) for tokens in sources], dtype=np.int64)
    ids = np.full((len(sources), int(lengths.max())), sources[0][-1], dtype=np.int64)
    for row, tokens in zip(ids, sources, strict=True):
        row[: len(tokens)] = tokens
    return {"source_ids": ids, "source_lengths": lengths}


def _slot_capacity(needed: int) -> int:
    """Round up to a multiple of 16, which suits the matmuls."""
    return -(-needed // 16) * 16


class Reference:
    """Translator of sentences in static batches.

    Args:
        graphs: Graphs of a target.
        contract: Their inputs and outputs.
        start_token: The decoder's start symbol.
        end_token: The end symbol.
        batch_tokens: Source tokens per batch, padding included; None for the default.
    """

    def __init__(
        self, graphs: Graphs, contract: Contract, start_token: int, end_token: int,
        batch_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self._graphs, self._contract = graphs, contract
        self._start_token, self._end_token = start_token, end_token
        self.batch_tokens = _BATCH_TOKENS if batch_tokens is None else batch_tokens

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence; all have one beam size.

        Raises:
            BackendError: The backend failed, or a search found no hypothesis.
        """
        results: dict[int, list[Hypothesis]] = {}
        lengths = [len(one.tokens) + 1 for one in sentences]
        for rows in length_sorted_batches(lengths, self.batch_tokens):
            batch = Batch(
                self._graphs, self._contract, [sentences[index] for index in rows],
                self._start_token, self._end_token,
            )  # fmt: skip
            while not batch.is_done:
                batch.step()
            results |= {index: batch.hypotheses(row) for row, index in enumerate(rows)}
        return [results[index] for index in range(len(sentences))]


class PlainTranslator:
    """Translation of plain lines by `Reference`, each as one sentence."""

    def __init__(
        self, reference: Reference, manifest: Manifest, target: TargetEntry, tokenizer: Tokenizer
    ) -> None:
        self.reference, self._tokenizer = reference, tokenizer
        self._manifest, self._target = manifest, target

    def check(self, request: LineRequest) -> None:
        """Refuse what only libtranslate_trt does, and what the target was not compiled for.

        Raises:
            BackendError: The request needs the library; the message names the command to build it.
            OptionError: The beam size is not that of the target, a language is unknown, or
                translations may be longer than the bundle was exported for.
        """
        manifest, options = self._manifest, request.options
        plain = SearchOptions(**{name: getattr(options, name) for name in _OPTIONS})
        if request != replace(_NOTHING, **{name: getattr(request, name) for name in _FIELDS},
                              options=plain):  # fmt: skip
            raise BackendError(missing_library("all but beam search of plain sentences"))
        manifest.prompt.check(options, (manifest.source_language, manifest.target_language))
        limits = manifest.limits
        longest = max(options.max_length_for(limits.max_source_length), options.min_length)
        if longest > limits.max_target_length:
            raise OptionError(
                f"translations may have {longest} tokens, and this bundle was exported for "
                f"{limits.max_target_length}; lower max_length, max_extra_length or min_length."
            )
        beams = self._target.contract.beams
        most = max_beams(self._target.contract.choices(manifest.model.vocabulary_size))
        if options.beam_size > most or beams not in (None, options.beam_size):
            raise OptionError(
                f"beam_size is {options.beam_size}; {self._target.name} takes "
                f"{f'up to {most}' if beams is None else beams}."
            )

    def translate(self, request: LineRequest) -> list[Translation]:
        """Translate lines of text or tokens.

        Raises:
            InputError: A token is outside the vocabulary.
            BackendError: See `check`; a line is too long for one sentence; or the backend failed.
            OptionError: See `check`; a line lacks a target language; or a prefix is too long.
        """
        self.check(request)
        encode, prompt = self._tokenizer.encode_target, self._manifest.prompt
        lines = [prompt.of_line(line, request.options) for line in request.lines]
        sources = request.tokens or self._tokenizer.encode_source_batch([text for text, _ in lines])
        options = [own for _, own in lines] or [request.options] * len(sources)
        for index, (_, own) in enumerate(lines):
            if sources[index]:
                prompt.check_line(own, request.names[index])
        targets: Sequence[Any] = request.targets or [()] * len(sources)
        encoded = (encode(one) if isinstance(one, str) else one for one in targets)
        given = [
            self._sentence(request.names[index], source, target, own)
            for index, (source, target, own) in enumerate(
                zip(sources, encoded, options, strict=True)
            )
        ]
        found = iter(self.reference.translate([one for one in given if one.tokens]))
        empty = [] if request.tokens is None else [Hypothesis((), 0.0)]
        return [self._joined(next(found) if one.tokens else empty) for one in given]

    def _sentence(
        self, name: str, source: Sequence[int], target: Sequence[int], options: SearchOptions
    ) -> Sentence:
        model, prompt = self._manifest.model, self._manifest.prompt
        sizes = ((source, model.input_vocabulary_size), (target, model.vocabulary_size))
        if any(not 0 <= token < size for tokens, size in sizes for token in tokens):
            raise InputError(f"{name} has a token outside the vocabulary.")
        if len(source) > self._manifest.max_segment_length:
            raise BackendError(missing_library(f"{name} is too long for one sentence"))
        if not source:
            return Sentence((), (), options)
        forced = [*prompt.of_target(options), *map(unscored, target)]
        made = Sentence([*prompt.of_source(options), *source], forced, options)
        if len(forced) >= made.max_length:
            raise OptionError(f"the target prefix of {name} is too long; raise max_length.")
        return made

    def _joined(self, found: Sequence[Hypothesis]) -> Translation:
        texts = self._tokenizer.decode_batch([one.tokens for one in found])
        hypotheses = [
            TextHypothesis(text, one.score, (one,)) for text, one in zip(texts, found, strict=True)
        ]
        return Translation(tuple(hypotheses) or (TextHypothesis("", 0.0),))

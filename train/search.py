"""Reference beam search in PyTorch, with which every compiled target is compared.

The search follows docs/beam-search.md rule by rule, with hypotheses as plain Python objects, one
sentence at a time; only the model is batched. It shares no code with the step graph, so a mistake
in either shows as a difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import forced_token
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions, read_sequences
from translate_trt.runtime.results import Hypothesis, check_found
from translate_trt.runtime.sampling import noise_of
from translate_trt.train.config import END, START, UNKNOWN
from translate_trt.train.cudnn_attention import cudnn_attention
from translate_trt.train.model import DecoderCache, Transformer, pad


class Model(Protocol):
    """Interface of `Transformer` and `Ensemble` that the search uses."""

    @property
    def embedding(self) -> nn.Embedding: ...

    @property
    def longest(self) -> int | None: ...

    @property
    def source_end(self) -> bool: ...

    def start_cache(self, source: Tensor, source_lengths: Tensor) -> Any: ...

    def decode_next(self, tokens: Tensor, cache: Any) -> Tensor: ...


@dataclass
class EnsembleCache:
    """Caches of an ensemble's members."""

    members: list[DecoderCache]
    recorded: AttentionHeads | None = None
    attention: Tensor | None = None  # [N, S], mean over the members, if `recorded`

    def select(self, rows: Tensor) -> EnsembleCache:
        """Gather the rows [M] of all caches; rows may repeat."""
        return EnsembleCache([m.select(rows) for m in self.members], self.recorded)


class Ensemble:
    """Ensemble of models with the same vocabulary.

    The probability of a next token is the arithmetic mean of the members' probabilities. (Some
    toolkits average log-probabilities, which lets a single member veto a token.)
    """

    def __init__(self, members: Sequence[Transformer]) -> None:
        self.members = members

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the first member, whose device the search uses."""
        return self.members[0].embedding

    @property
    def longest(self) -> int | None:
        """Maximum sentence length of all members in tokens; None without a limit."""
        return min((m.longest for m in self.members if m.longest is not None), default=None)

    @property
    def source_end(self) -> bool:
        """Whether the decoder sees the source's end symbol, in the first member."""
        return self.members[0].source_end

    def start_cache(self, source: Tensor, source_lengths: Tensor) -> EnsembleCache:
        """Encode with every member."""
        return EnsembleCache([m.start_cache(source, source_lengths) for m in self.members])

    def decode_next(self, tokens: Tensor, cache: EnsembleCache) -> Tensor:
        """Compute log-probabilities [N, V] of the token after `tokens` [N]; extends the caches."""
        log_probs, attention = [], []
        for model, own in zip(self.members, cache.members, strict=True):
            own.recorded = cache.recorded
            log_probs.append(model.decode_next(tokens, own).float().log_softmax(-1))
            if own.attention is not None:
                attention.append(own.attention)
        cache.attention = torch.stack(attention).mean(0) if attention else None
        return torch.stack(log_probs).logsumexp(0) - math.log(len(self.members))


@dataclass(frozen=True)
class _Partial:
    """Live hypothesis: its tokens and the log-probability of each."""

    log_prob: float  # cumulative
    tokens: tuple[int, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    attention: tuple[Tensor, ...] = ()
    row: int = 0  # row of its parent among the sentence's previous hypotheses

    def extend(self, log_prob: float, token: int, row: int, attention: Tensor | None) -> _Partial:
        return _Partial(
            log_prob,
            (*self.tokens, token),
            (*self.token_log_probs, log_prob - self.log_prob),
            self.attention if attention is None else (*self.attention, attention),
            row,
        )


@dataclass
class _Sentence:
    """Search state of a sentence."""

    options: SearchOptions
    max_length: int
    prefix: Sequence[int]
    source: Sequence[int]  # without the end symbol
    source_end: bool  # attention has a column for the end symbol
    constraints: Sequence[tuple[int, ...]] = ()
    live: list[_Partial] = field(default_factory=lambda: [_Partial(0.0)])  # rule 1
    pool: list[tuple[float, _Partial, bool]] = field(default_factory=list)  # best first
    dropped: list[_Partial] = field(default_factory=list)  # that ended in a loop (rule 11)
    length: int = 0  # generated tokens of each live hypothesis
    done: bool = False

    def step(self, log_probs: Tensor, attention: Tensor | None) -> None:
        """Apply rules 2 to 6 for one position.

        Args:
            log_probs: [live hypotheses, V] of the next token.
            attention: [live hypotheses, S] of this position, if recorded.
        """
        kept = self.expand(log_probs, attention)
        self.length += 1
        self.retire(kept)
        self.live_on(kept)
        self.done = self.is_done()
        if self.length >= self.max_length:
            self.cut_off()
        elif not self.done and self.is_loop_check_due():
            self.drop_loops()

    def expand(self, log_probs: Tensor, attention: Tensor | None) -> list[_Partial]:
        """Return the best 2K continuations, or the best one in greedy search (rule 2)."""
        width = 2 * self.options.beam_size if self.options.beam_size > 1 else 1
        allowed = self._allowed(log_probs)
        if self._lacks_constraints():
            candidates = self._best_by_progress(allowed, width)
        else:
            candidates = _best_candidates(allowed, width)
        return [
            self.live[row].extend(
                log_prob, token, row, None if attention is None else attention[row]
            )
            for log_prob, row, token in candidates
        ]

    def _lacks_constraints(self) -> bool:
        """Whether a live hypothesis lacks a constraint, and the next token is not forced."""
        lacking = any(_constraints_in(one.tokens, self.constraints)[1] for one in self.live)
        return lacking and self.length >= len(self.prefix)

    def _best_by_progress(self, total: Tensor, width: int) -> list[tuple[float, int, int]]:
        """Take the best candidates of every progress in turn, the greatest first (rule 15)."""
        progress = torch.empty(total.shape, dtype=torch.int64)
        for row, hypothesis in enumerate(self.live):
            progress[row] = _constraints_in((*hypothesis.tokens, -1), self.constraints)[0]
            for token in {token for phrase in self.constraints for token in phrase}:
                tokens = (*hypothesis.tokens, token)
                progress[row, token] = _constraints_in(tokens, self.constraints)[0]
        groups = [
            _best_candidates(torch.where(progress == one, total, -math.inf), width)
            for one in sorted(set(progress.flatten().tolist()), reverse=True)
        ]
        turns = itertools.zip_longest(*groups)
        return [one for turn in turns for one in turn if one is not None][:width]

    def retire(self, kept: Sequence[_Partial]) -> None:
        """Move hypotheses that ended into the pool (rule 3)."""
        beams = self.options.beam_size
        for hypothesis in kept[:beams] if self.options.early_stopping else kept:
            if hypothesis.tokens[-1] == END:
                self._add(hypothesis, truncated=False)

    def live_on(self, kept: Sequence[_Partial]) -> None:
        """Keep the best K that did not end (rule 4)."""
        live = [hypothesis for hypothesis in kept if hypothesis.tokens[-1] != END]
        self.live = live[: self.options.beam_size]

    def is_done(self) -> bool:
        """Whether no live hypothesis can still improve the pool (rule 5)."""
        if not self.live or self.length >= self.max_length:
            return True
        if self.options.early_stopping and len(self.pool) == self.options.beam_size:
            return True
        bound = max(one.log_prob for one in self.live) / self.options.penalty(self.max_length)
        settled = [score for score, *_ in self.pool if not bound > score]  # also where it is NaN
        return len(settled) >= self.options.num_hypotheses

    def is_loop_check_due(self) -> bool:
        """Whether live hypotheses are examined for loops after this step (rule 11)."""
        limit = max(len(self.prefix), self.options.min_length)
        return self.options.loop_guard and self.length % 8 == 0 and self.length > limit

    def drop_loops(self) -> None:
        """Drop live hypotheses that repeat a phrase or interrupt its repetition (rule 11)."""
        shared = set()
        for hypothesis in self.live:
            if repeated := _repeated(hypothesis.tokens, self.source):
                self.dropped.append(hypothesis)
                end = max(self.length - 2 * repeated // 3, len(self.prefix) + 1)
                shared.add(hypothesis.tokens[: self.length if self.constraints else end])
        self.live = [
            one
            for one in self.live
            if not any(one.tokens[: len(begin)] == begin for begin in shared)
        ]
        self.done = not self.live

    def cut_off(self) -> None:
        """Fill the pool with live hypotheses, marked as truncated (rule 6)."""
        for hypothesis in self.live[: self.options.beam_size - len(self.pool)]:
            self._add(hypothesis, truncated=True)

    def _add(self, hypothesis: _Partial, truncated: bool) -> None:
        """Add a hypothesis to the pool, which keeps the K best; earlier ones win ties."""
        score = hypothesis.log_prob / self.options.penalty(len(hypothesis.tokens))
        self.pool.append((score, hypothesis, truncated))
        self.pool.sort(key=lambda entry: -entry[0])
        del self.pool[self.options.beam_size :]

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """Return cumulative log-probabilities [live, V], minus infinity for forbidden tokens."""
        before = torch.tensor([hypothesis.log_prob for hypothesis in self.live])
        marked = self._marked(log_probs)
        # Marks do not affect tokens of constraints that a hypothesis may lack.
        if self._lacks_constraints():
            wanted = [token for phrase in self.constraints for token in phrase]
            marked[:, wanted] = log_probs[:, wanted]
        if self.length + 1 < self.options.min_length:
            marked[:, END] = -math.inf
        if self.options.samples:
            marked[0] = self._sampled(marked[0])
        total = marked + before[:, None]
        if self.length < len(self.prefix):
            forced = self.prefix[self.length]
            token = forced_token(forced)
            cost = log_probs[:, token] if token == forced else 0.0  # unscored tokens cost nothing
            total = torch.full_like(total, -math.inf)
            total[:, token] = cost + before
        elif self.constraints:
            for row, hypothesis in enumerate(self.live):
                if _constraints_in(hypothesis.tokens, self.constraints)[1]:
                    total[row, END] = -math.inf
        return total

    def _marked(self, log_probs: Tensor) -> Tensor:
        """Penalize repeated tokens and forbid others (rule 13)."""
        options, marked = self.options, log_probs.clone()
        if not options.marks_tokens:
            return marked
        size = options.no_repeat_ngram_size
        text = options.suppress_sequences
        suppressed = [] if text is None else read_sequences(text)
        if options.disable_unk:
            marked[:, UNKNOWN] = -math.inf
        for row, hypothesis in enumerate(self.live):
            tokens = hypothesis.tokens
            for token in set(tokens):
                marked[row, token] *= options.repetition_penalty
            starts = range(len(tokens) - size + 1) if size else ()
            ngrams = {tokens[start : start + size] for start in starts}
            for *first, last in [*ngrams, *suppressed]:
                if not first or tokens[-len(first) :] == tuple(first):
                    marked[row, last] = -math.inf
        return marked

    def _sampled(self, log_probs: Tensor) -> Tensor:
        """Forbid all tokens [V] but the one that is drawn (rule 14)."""
        options = self.options
        noise = noise_of(options, self.source, self.length, len(log_probs))
        values, tokens = log_probs.sort(descending=True, stable=True)
        ranks = min(len(noise.by_rank), len(values))
        key = torch.full_like(values, -math.inf)  # by rank; the others are not drawn
        key[:ranks] = values[:ranks] + torch.tensor(noise.by_rank[:ranks])
        if options.sampling_top_p < 1:
            shares = (values[:ranks] / options.sampling_temperature).softmax(0)
            key[:ranks][shares.cumsum(0) - shares >= options.sampling_top_p] = -math.inf
        rank_of = {token: rank for rank, token in enumerate(tokens.tolist())}
        for token, added in zip(noise.tail_tokens, torch.tensor(noise.tail), strict=True):
            if (rank := rank_of[token]) >= ranks:
                key[rank] = values[rank] + added
        chosen = tokens[key.argmax()]
        drawn = torch.full_like(log_probs, -math.inf)
        drawn[chosen] = log_probs[chosen]
        return drawn

    def result(self) -> list[Hypothesis]:
        """Return the n best hypotheses (rule 7)."""
        found = [self._hypothesis(*entry) for entry in self.pool]
        found += [self._hypothesis(-math.inf, one, truncated=True) for one in self.dropped]
        if self.options.loop_guard:  # without its loop a hypothesis has another score
            found = [self._without_loop(one) for one in found]
        # Truncated hypotheses may lack constraints (rule 15).
        found.sort(
            key=lambda one: (
                sum(map(len, _constraints_in(one.tokens, self.constraints)[1])),
                one.truncated,
                -one.score,
            )
        )
        return check_found(found[: self.options.num_hypotheses], len(self.source))

    def _hypothesis(self, score: float, partial: _Partial, truncated: bool) -> Hypothesis:
        attention = None
        if self.options.return_attention:
            columns = len(self.source) + self.source_end
            attention = torch.stack(partial.attention)[:, :columns].numpy()
        return Hypothesis(
            tokens=partial.tokens if truncated else partial.tokens[:-1],
            score=score,
            token_log_probs=partial.token_log_probs,
            truncated=truncated,
            attention=attention,
        )

    def _without_loop(self, found: Hypothesis) -> Hypothesis:
        """Drop the repetitions of a cut hypothesis (rule 11)."""
        repeated = _repeated(found.tokens, self.source) if found.truncated else 0
        if not repeated:
            return found
        log_probs = found.token_log_probs[:-repeated]
        return Hypothesis(
            tokens=found.tokens[:-repeated],
            score=sum(log_probs) / self.options.penalty(len(log_probs)),
            token_log_probs=log_probs,
            truncated=True,
            attention=None if found.attention is None else found.attention[:-repeated],
            looped=True,
        )


def _constraints_in(
    tokens: tuple[int, ...], constraints: Sequence[tuple[int, ...]]
) -> tuple[int, list[tuple[int, ...]]]:
    """Read a hypothesis (rule 15): its progress, and the constraints that it lacks."""
    lacking, progress = sorted(constraints, key=len, reverse=True), 0
    while tokens:
        if any(len(one) > len(tokens) and one[: len(tokens)] == tokens for one in lacking):
            return progress + len(tokens), lacking
        met = next((one for one in lacking if tokens[: len(one)] == one), None)
        if met is not None:
            lacking.remove(met)
            progress += len(met)
        tokens = tokens[1 if met is None else len(met) :]
    return progress, lacking


def _periods(tokens: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (phrase length, start, end) of every longest range that repeats a phrase."""
    found = []
    for phrase in range(1, 33):
        start = 0
        while start + phrase < len(tokens):
            end = start + phrase
            while end < len(tokens) and tokens[end] == tokens[end - phrase]:
                end += 1
            if end > start + phrase:
                found.append((phrase, start, end))
            start = max(start + 1, end - phrase + 1)
    return found


def _repeated(tokens: Sequence[int], source: Sequence[int]) -> int:
    """Return how many tokens at the end repeat the phrase before them in a loop (rule 11)."""
    copies = [(end - start) // phrase for phrase, start, end in _periods(source)]
    least = max(4, 2 * max(copies, default=1))
    for phrase, start, end in _periods(tokens):
        if end == len(tokens) and end - start >= max(least * phrase, 16):
            return end - start - phrase
    return 0


def _best_candidates(total: Tensor, width: int) -> list[tuple[float, int, int]]:
    """Return the best (log-probability, row, token); the smaller flat index wins ties (rule 8)."""
    flat = total.flatten()
    worst = flat.topk(min(width, flat.numel())).values[-1]
    indices = (flat >= worst).nonzero()[:, 0]
    values = flat[indices]
    order = values.sort(descending=True, stable=True).indices[:width]
    size = total.shape[1]
    return [
        (value, index // size, index % size)
        for value, index in zip(values[order].tolist(), indices[order].tolist(), strict=True)
        if value > -math.inf
    ]


@torch.inference_mode()
def beam_search(
    model: Model,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    target_prefixes: Sequence[Sequence[int]] | None = None,
    batch_tokens: int = 4096,
    constraints: Sequence[Sequence[Sequence[int]]] | None = None,
    heads: AttentionHeads = LAST_LAYER,
) -> list[list[Hypothesis]]:
    """Translate token sequences with the PyTorch model.

    Args:
        model: A `Transformer` in evaluation mode, or an `Ensemble`.
        sources: Tokens per sentence, without the end symbol. An empty sentence yields an empty
            hypothesis without running the model.
        options: Search options (docs/beam-search.md).
        target_prefixes: Forced first tokens per sentence, in the encoding of `forced_tokens` in
            the contract (`Translator` forces unscored tokens).
        batch_tokens: Maximum source tokens per batch, padding included.
        constraints: Phrases that the translation of each sentence must have.
        heads: Heads whose cross-attention hypotheses have, if the options ask for it.

    Returns:
        The n best hypotheses of each sentence, best first.

    Raises:
        OptionError: A prefix is as long as the maximum length.
        BackendError: The model's probabilities are not finite.
    """
    prefixes = target_prefixes if target_prefixes is not None else [()] * len(sources)
    phrases = constraints if constraints is not None else [()] * len(sources)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for rows in length_sorted_batches([len(source) + 1 for source in sources], batch_tokens):
        filled = [row for row in rows if sources[row]]
        for row in set(rows) - set(filled):
            results[row] = [Hypothesis((), 0.0)]
        if filled:
            batch = [sources[row] for row in filled]
            with cudnn_attention(model.embedding.weight.device):
                forced = [prefixes[row] for row in filled]
                wanted = [phrases[row] for row in filled]
                found = _search_batch(model, batch, options, forced, wanted, heads)
            for row, hypotheses in zip(filled, found, strict=True):
                results[row] = hypotheses
    return results


def _search_batch(
    model: Model,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    prefixes: Sequence[Sequence[int]],
    constraints: Sequence[Sequence[Sequence[int]]],
    heads: AttentionHeads,
) -> list[list[Hypothesis]]:
    device = model.embedding.weight.device
    sentences = []
    for source, prefix, phrases in zip(sources, prefixes, constraints, strict=True):
        max_length = options.max_length_for(len(source))
        if len(prefix) >= max_length:
            raise OptionError(
                f"a target prefix of {len(prefix)} tokens fills max_length {max_length}; raise "
                "max_length."
            )
        sentence = _Sentence(options, max_length, prefix, source, model.source_end)
        sentence.constraints = [tuple(phrase) for phrase in phrases]
        sentences.append(sentence)
    cache = model.start_cache(*pad([[*source, END] for source in sources], device))
    cache.recorded = heads if options.return_attention else None
    running = sentences
    tokens = torch.full((len(sources),), START, device=device)
    while running:
        log_probs = model.decode_next(tokens, cache).float().log_softmax(-1).cpu()
        attention = None if cache.attention is None else cache.attention.cpu()
        kept: list[int] = []
        first = 0
        for sentence in running:
            rows = slice(first, first + len(sentence.live))
            sentence.step(log_probs[rows], None if attention is None else attention[rows])
            if not sentence.done:
                kept += [first + hypothesis.row for hypothesis in sentence.live]
            first = rows.stop
        running = [sentence for sentence in running if not sentence.done]
        cache = cache.select(torch.tensor(kept, dtype=torch.int64, device=device))
        last = [hypothesis.tokens[-1] for sentence in running for hypothesis in sentence.live]
        tokens = torch.tensor(last, dtype=torch.int64, device=device)
    return [sentence.result() for sentence in sentences]

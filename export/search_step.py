"""Step of the beam search, as a module that is traced with the decoder.

docs/beam-search.md has the rules. The tensors are those of export/contract.py, with the letters
that it uses.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from translate_trt.runtime.bundle.contract import FREE, UNMARKED

#: More than the progress that any hypothesis makes with constraints, and than its rank.
_PROGRESS_LIMIT = 2**20


class Candidates(NamedTuple):
    """Best continuations of each beam, best first.

    A beam contributes at most 2K of the sentence's best 2K continuations. There is one more
    candidate, because the end symbol may be among them and not be allowed yet, one more for each
    marked token, whose log-probability may become too low, for each that a sample is drawn from,
    and for each token of constraints, which is looked up. Normalizing only the candidates avoids a
    second pass over the vocabulary.

    Attributes:
        log_probs: [N, K, C], C = min(2K + 1 + B + R + U, number of tokens).
        tokens: [N, K, C].
        looked_up: Log-probabilities [N, K, 1 + U + D] of the forced token, of those of constraints,
            and of the tail that a sample may be; arbitrary where there is none.
    """

    log_probs: Tensor
    tokens: Tensor
    looked_up: Tensor


def candidate_count(beams: int, changes: Changes | None, choices: int) -> int:
    """Number of candidates of a beam, C, of `choices` tokens."""
    if changes is None:
        return 2 * beams + 1
    wanted = 2 * beams + 1 + changes.marked_tokens.shape[2] + changes.sampling_noise.shape[1]
    wanted += changes.constraint_tokens.shape[1]
    count: int = torch.sym_min(wanted, choices)  # type: ignore[no-untyped-call]
    return count


def _forced_column(forced_tokens: Tensor, rows: Tensor) -> Tensor:
    """Expand forced_tokens [N] to a column to look up in each of rows [N, K, ...]: [N, K, 1]."""
    tokens = torch.maximum(forced_tokens, -2 - forced_tokens)  # `contract.forced_token`
    return tokens[:, None, None].clamp(min=0).expand(-1, rows.shape[1], -1)


def looked_up_columns(request: Request, changes: Changes | None, rows: Tensor) -> Tensor:
    """Columns [N, K, 1 + U + D] to look up in rows [N, K, ...] (`Candidates.looked_up`)."""
    forced = _forced_column(request.forced_tokens, rows)
    if changes is None:
        return forced
    others = torch.cat((changes.constraint_tokens, changes.tail_tokens), 1).clamp(min=0)
    return torch.cat((forced, others[:, None].expand(-1, rows.shape[1], -1)), 2)


class Request(NamedTuple):
    """Search options of each sentence, `Contract.request` by name, all [N]."""

    forced_tokens: Tensor
    min_lengths: Tensor
    max_lengths: Tensor
    length_penalty_alpha: Tensor
    length_penalty_beta: Tensor
    num_hypotheses: Tensor
    early_stopping: Tensor


class Changes(NamedTuple):
    """Changes of the candidates' log-probabilities, the end of `Contract.request` by name."""

    marked_tokens: Tensor  # [N, K, B]
    marked_factors: Tensor  # [N, K, B]
    sampling_noise: Tensor  # [N, R]
    sampling_temperature: Tensor  # [N]
    sampling_top_p: Tensor  # [N]
    tail_tokens: Tensor  # [N, D]
    tail_noise: Tensor  # [N, D]
    constraint_tokens: Tensor  # [N, U]
    constraint_progress: Tensor  # [N, K, U]
    other_progress: Tensor  # [N, K]


class State(NamedTuple):
    """Search state that a step hands to the next one, a part of `Contract.state` by name."""

    tokens: Tensor  # [N, K]
    log_probs: Tensor  # [N, K]
    positions: Tensor  # [N]
    done: Tensor  # [N]
    finished_scores: Tensor  # [N, K]
    finished_lengths: Tensor  # [N, K]
    finished_parents: Tensor  # [N, K]
    finished_truncated: Tensor  # [N, K]


class _Kept(NamedTuple):
    """The best 2K continuations of each sentence, in the order of rules 2 and 15, all [N, 2K]."""

    log_probs: Tensor
    parents: Tensor  # the beam that each one continues
    tokens: Tensor
    ended: Tensor  # whether the token is the end symbol


class _Pool(NamedTuple):
    """Finished hypotheses of each sentence, best first, all [N, K]."""

    scores: Tensor  # minus infinity in an empty entry
    lengths: Tensor
    parents: Tensor
    truncated: Tensor


class _CutOff(NamedTuple):
    """Live hypotheses that fill empty entries of the pool, all [N, K]."""

    fills: Tensor  # whether the entry is filled
    log_probs: Tensor
    parents: Tensor  # the live beam itself


class BeamSearchStep(nn.Module):
    """Step of the beam search: rules 2 to 6 and 13 to 15 of docs/beam-search.md, a method per rule.

    The methods have the names of the functions in runtime/cpp/kernels/beam_search.cc.
    """

    def __init__(self, end_token: int) -> None:
        super().__init__()
        self.end_token = end_token

    def forward(self, logits: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a step on tensors in the order of the graph.

        Args:
            logits: [N, K, V].
            inputs: The fields of `Request`, those of `State`, and those of `Changes`, if any.

        Returns:
            The parents [N, K], then the fields of the next `State`.
        """
        first, last = len(Request._fields), len(Request._fields) + len(State._fields)
        request, state = Request(*inputs[:first]), State(*inputs[first:last])
        changes = Changes(*inputs[last:]) if inputs[last:] else None
        log_probs = logits.log_softmax(-1)
        top, tokens = log_probs.topk(candidate_count(logits.shape[1], changes, logits.shape[2]))
        looked_up = log_probs.gather(2, looked_up_columns(request, changes, logits))
        candidates = Candidates(top, tokens, looked_up)
        parents, following = self.select(candidates, request, state, changes)
        return (parents, *following)

    def select(
        self,
        candidates: Candidates,
        request: Request,
        state: State,
        changes: Changes | None = None,
    ) -> tuple[Tensor, State]:
        """Select the next beams and update the pool of finished hypotheses.

        Returns:
            The beam [N, K] that each next beam continues, and the next state.
        """
        lengths = state.positions + 1  # [N], generated tokens once this step is over
        too_short = lengths < request.min_lengths
        candidates = self.bar(candidates, too_short)
        if changes is not None:
            candidates = self.mark(candidates, changes)
            tail = self.tail(candidates, changes, too_short)
            candidates = self.sample(candidates, tail, changes)
        kept = self.expand(candidates, request, state, changes)
        pool, new_lengths, penalty = self.retire(kept, request, state, lengths)
        live, rank = self.live_on(kept, in_order=changes is None)
        best = live[:, 0] if changes is None else live.amax(1)
        done, at_limit = self.is_done(best, pool, request, state, lengths)
        cut = self.cut_off(live, pool, state, at_limit)
        return kept.parents.gather(1, rank), State(
            tokens=kept.tokens.gather(1, rank),
            log_probs=live,
            # A sentence that is done stays at its last position while its batch goes on.
            positions=torch.where(done, state.positions, lengths),
            done=done,
            finished_scores=torch.where(cut.fills, cut.log_probs / penalty, pool.scores),
            finished_lengths=torch.where(cut.fills, new_lengths[:, : live.shape[1]], pool.lengths),
            finished_parents=torch.where(cut.fills, cut.parents, pool.parents),
            finished_truncated=pool.truncated | cut.fills,
        )

    def bar(self, candidates: Candidates, too_short: Tensor) -> Candidates:
        """Exclude the end symbol from sentences [N] that are too short (rule 10)."""
        barred = (candidates.tokens == self.end_token) & too_short[:, None, None]
        return candidates._replace(log_probs=torch.where(barred, -math.inf, candidates.log_probs))

    def mark(self, candidates: Candidates, changes: Changes) -> Candidates:
        """Multiply the log-probabilities of marked tokens by their factors (rule 13)."""
        unused = _unused(changes.other_progress[..., None])
        marks = changes.marked_tokens, changes.marked_factors
        tokens, factors = (torch.cat((x, unused.to(x.dtype)), 2)[:, :, None] for x in marks)
        is_marked = candidates.tokens[..., None] == tokens  # [N, K, C, B + 1]
        factor = torch.where(is_marked, factors, 0.0).sum(-1)  # 0 for other tokens
        values = candidates.log_probs * torch.where(factor > 0, factor, 1.0)
        # A log-probability of 0 times infinity would be NaN.
        values = torch.where(factor == math.inf, -math.inf, values)
        return candidates._replace(log_probs=values)

    def tail(self, candidates: Candidates, changes: Changes, too_short: Tensor) -> Candidates:
        """Return the tokens [N, K, D + 1] of the tail as candidates, by rules 10 and 13."""
        unused = _unused(changes.other_progress[..., None])
        tokens = changes.tail_tokens[:, None].expand(-1, candidates.tokens.shape[1], -1)
        looked_up = candidates.looked_up[..., 1 + changes.constraint_tokens.shape[1] :]
        looked_up = torch.cat((looked_up, unused.to(looked_up.dtype)), 2)
        tail = Candidates(looked_up, torch.cat((tokens, unused), 2), looked_up)
        return self.mark(self.bar(tail, too_short), changes)

    def sample(self, candidates: Candidates, tail: Candidates, changes: Changes) -> Candidates:
        """Keep only the token that is drawn, in sentences with noise (rule 14).

        A maximum of log-probabilities and Gumbel noise is a draw from their distribution (Maddison
        et al. 2014, "A* Sampling"). The token that is drawn becomes the first candidate.
        """
        unused = _unused(candidates.tokens[:, :, :1])
        noise = changes.sampling_noise[:, None].expand(-1, unused.shape[1], -1)
        # The noise of minus infinity keeps the unused rank from being drawn.
        noise = torch.cat((noise, unused.to(torch.float32) * math.inf), 2)  # [N, K, R + 1]
        # As many more candidates, for a vocabulary of fewer. No size here may be C: with a
        # shortlist, it depends on inputs that SelectBeams lacks.
        padded = torch.cat((candidates.log_probs, torch.full_like(noise, -math.inf)), 2)
        tokens = torch.cat((candidates.tokens, unused.expand_as(noise)), 2)
        values, order = padded.topk(noise.shape[2])
        tokens = tokens.gather(2, order)
        is_open = noise > -math.inf
        scaled = (
            torch.where(is_open, values, -math.inf) / changes.sampling_temperature[:, None, None]
        )
        share = (scaled - scaled[..., :1]).exp()
        before = share.cumsum(-1) - share
        top_p = changes.sampling_top_p[:, None, None]
        enough = (top_p < 1) & (before >= top_p * share.sum(-1, keepdim=True))
        key = torch.where(enough, -math.inf, values + noise)
        # Of the tail, only tokens after the last rank, whose noise is that of their rank.
        last = is_open.to(torch.int64).sum(2, keepdim=True).clamp(min=1) - 1
        worst, at_worst = values.gather(2, last), tokens.gather(2, last)
        after = (tail.log_probs < worst) | ((tail.log_probs == worst) & (at_worst < tail.tokens))
        tail_noise = changes.tail_noise[:, None].expand(-1, unused.shape[1], -1)
        tail_noise = torch.cat((tail_noise, noise[..., -1:]), 2)  # [N, K, D + 1]
        tail_key = torch.where(after, tail.log_probs + tail_noise, -math.inf)
        drawn = torch.cat((key, tail_key), 2).argmax(-1, keepdim=True)
        value, token = (
            torch.cat(both, 2).gather(2, drawn)
            for both in ((values, tail.log_probs), (tokens, tail.tokens))
        )
        first = torch.ones_like(candidates.tokens).cumsum(2) == 1
        draws = is_open[..., :1]
        return candidates._replace(
            log_probs=torch.where(
                draws, torch.where(first, value, -math.inf), candidates.log_probs
            ),
            tokens=torch.where(draws & first, token, candidates.tokens),
        )

    def expand(
        self,
        candidates: Candidates,
        request: Request,
        state: State,
        changes: Changes | None = None,
    ) -> _Kept:
        """Keep the best 2K continuations of all beams, or the best one in greedy search (rule 2).

        Of equal values TopK takes the first, and a beam's candidates ascend by token (rule 8).
        """
        beams = state.tokens.shape[1]
        values, choices = self._continuations(candidates, request, state, changes)
        # `view` and sums of tensors, not `flatten` and `index // (C + 1)`: with a shortlist, C
        # depends on its width, which is not in the part of the graph that SelectBeams replaces.
        sentences = values.shape[0]
        parents = choices * 0 + torch.arange(beams, device=choices.device)[:, None]  # [N, K, C + 1]
        if changes is None:
            best, index = values.view(sentences, -1).topk(2 * beams)  # [N, 2K]
        else:
            best, index = self.divide(values, changes)
        rank = torch.arange(2 * beams, device=best.device)
        best = torch.where(rank < beams * beams, best, -math.inf)
        parents, tokens = (x.view(sentences, -1).gather(1, index) for x in (parents, choices))
        return _Kept(best, parents, tokens, tokens == self.end_token)

    def divide(self, values: Tensor, changes: Changes) -> tuple[Tensor, Tensor]:
        """Keep the best 2K continuations, of each progress with constraints in turn (rule 15).

        Without constraints these are the best 2K of all.

        Args:
            values: [N, K, 2K + U + 1], from `_continuations`.
            changes: Changes of the sentences.

        Returns:
            Their values and indices in a sentence, [N, 2K] both.
        """
        sentences, beams, choices = values.shape
        other = changes.other_progress[..., None]
        progress = torch.cat(
            (other.expand(-1, -1, 2 * beams), changes.constraint_progress, other), 2
        )
        progress = progress.view(progress.shape[0], -1)
        # Without constraints, the best 2K are sufficient, and the following costs next to nothing.
        most = beams * choices
        wanted = 2 * beams + most * changes.constraint_tokens.shape[1]
        count: int = torch.sym_min(wanted, most)  # type: ignore[no-untyped-call]
        best, index = values.view(sentences, -1).topk(count)
        progress = progress.gather(1, index)  # [N, count]
        place = torch.arange(best.shape[1], device=best.device)
        is_better = place < place[:, None]
        is_equal = progress[:, None] == progress[..., None]  # [N, count, count]
        rank = (is_equal & is_better).to(torch.int64).sum(2)
        key = torch.where(best > -math.inf, _PROGRESS_LIMIT * rank - progress, _PROGRESS_LIMIT**2)
        chosen = (-key).topk(2 * beams).indices
        return best.gather(1, chosen), index.gather(1, chosen)

    def retire(
        self, kept: _Kept, request: Request, state: State, lengths: Tensor
    ) -> tuple[_Pool, Tensor, Tensor]:
        """Move ended hypotheses into the pool, which keeps the best K (rule 3).

        Returns:
            The pool, and the lengths [N, 2K] and length penalty [N, 1] of new hypotheses.
        """
        beams = state.tokens.shape[1]
        place = torch.arange(2 * beams, device=kept.tokens.device)
        counts = (place < beams) | ~request.early_stopping[:, None]
        enters = kept.ended & ~state.done[:, None] & counts
        penalty = _length_penalty(lengths, request)[:, None]
        new_scores = torch.where(enters, kept.log_probs / penalty, -math.inf)
        scores, rank = torch.cat((state.finished_scores, new_scores), 1).topk(beams)
        new_lengths = lengths[:, None].expand_as(kept.tokens)

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat((old, new), 1).gather(1, rank)

        pool = _Pool(
            scores,
            merge(state.finished_lengths, new_lengths),
            merge(state.finished_parents, kept.parents),
            merge(state.finished_truncated, torch.zeros_like(kept.ended)),
        )
        return pool, new_lengths, penalty

    def live_on(self, kept: _Kept, in_order: bool) -> tuple[Tensor, Tensor]:
        """Select the first K that did not end (rule 4).

        Args:
            kept: The best 2K.
            in_order: Whether log-probabilities descend, as without constraints.

        Returns:
            Log-probabilities and ranks, [N, K] both.
        """
        count = kept.tokens.shape[1]
        # Graphs of a fixed beam size have no constraints, and keep the operators that engines and
        # the torch backend run.
        if in_order:
            live, rank = torch.where(kept.ended, -math.inf, kept.log_probs).topk(count // 2)
            return live, rank
        place = torch.arange(count, device=kept.tokens.device)
        # Candidates that end fill up the beams, with a log-probability of minus infinity.
        rank = -torch.where(kept.ended, place + count, place).to(torch.float32)
        rank = rank.topk(count // 2).indices
        return torch.where(kept.ended, -math.inf, kept.log_probs).gather(1, rank), rank

    def is_done(
        self, best: Tensor, pool: _Pool, request: Request, state: State, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whether each sentence is done, and whether it is at its maximum length (rule 5).

        Args:
            best: Best log-probability of the live beams, [N].
            pool: The next pool.
            request: Search options.
            state: The state before the step.
            lengths: Generated tokens after the step, [N].
        """
        bound = best / _length_penalty(request.max_lengths, request)
        settled = (bound[:, None] <= pool.scores).to(torch.int64).sum(1)
        full = request.early_stopping & (pool.scores[:, -1] > -math.inf)
        at_limit = lengths >= request.max_lengths
        return state.done | full | (settled >= request.num_hypotheses) | at_limit, at_limit

    def cut_off(self, live: Tensor, pool: _Pool, state: State, at_limit: Tensor) -> _CutOff:
        """Fill empty entries of the pool with live hypotheses at the maximum length (rule 6)."""
        beams = live.shape[1]
        filled = pool.scores > -math.inf
        parents = torch.arange(beams, device=live.device) - filled.sum(1, keepdim=True)
        log_probs = live.gather(1, parents.clamp(min=0))
        fills = ~filled & (at_limit & ~state.done)[:, None] & (log_probs > -math.inf)
        return _CutOff(fills, log_probs, parents)

    def _continuations(
        self, candidates: Candidates, request: Request, state: State, changes: Changes | None
    ) -> tuple[Tensor, Tensor]:
        """Cumulative log-probabilities and tokens of each beam's candidates.

        The last column is for the forced token. An unscored token adds nothing.

        Returns:
            [N, K, C + 1] both or, of graphs with changes, [N, K, 2K + U + 1]: a beam's best 2K
            candidates apart from tokens of constraints, these tokens, and the forced one.
        """
        forced = request.forced_tokens[:, None, None]  # [N, 1, 1]
        is_forced = forced != FREE
        top, tokens = candidates.log_probs, candidates.tokens
        if changes is not None:
            beams = state.tokens.shape[1]
            wanted = changes.constraint_tokens[:, None]  # [N, 1, U]
            unused = _unused(tokens[:, :1, :1])
            is_wanted = tokens[..., None] == torch.cat((wanted, unused), 2)[:, :, None]
            top = torch.where(is_wanted.to(torch.int64).sum(-1) > 0, -math.inf, top)
            top, order = top.topk(2 * beams)
            wanted = wanted.expand(-1, beams, -1)
            looked_up = candidates.looked_up[..., 1 : 1 + wanted.shape[2]]
            looked_up = torch.where(wanted < 0, -math.inf, looked_up)
            top = torch.cat((top, looked_up), 2)
            tokens = torch.cat((tokens.gather(2, order), wanted.clamp(min=0)), 2)
        top = torch.where(is_forced, -math.inf, top)
        at_forced = torch.where(forced == FREE, -math.inf, 0.0)
        at_forced = torch.where(forced >= 0, candidates.looked_up[..., :1], at_forced)
        values = torch.cat((top, at_forced), 2) + state.log_probs[..., None]
        column = _forced_column(request.forced_tokens, values)
        return values, torch.cat((tokens, column), 2)


def _unused(tokens: Tensor) -> Tensor:
    """Make an entry of an axis that may be empty, which ONNX Runtime cannot reduce.

    Args:
        tokens: Any tokens [..., 1], which are all replaced.
    """
    return tokens.clamp(max=UNMARKED)


def _length_penalty(lengths: Tensor, request: Request) -> Tensor:
    """((beta + n) / (beta + 1)) ** alpha."""
    beta = request.length_penalty_beta
    return ((beta + lengths) / (beta + 1)) ** request.length_penalty_alpha

"""Fused operator SelectBeams: rules 2 to 6 of docs/beam-search.md, from candidates to next beams.

One program for each sentence. Its parts have the names of the methods of `BeamSearchStep` in
export/search_step.py, of which it computes the results without the inputs of rules 13 to 15.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from translate_trt.runtime.bundle.contract import FREE, NEXT
from translate_trt.runtime.gpu.dependence import wait_for_predecessor
from translate_trt.runtime.gpu.launch import Launch, power_of_two
from translate_trt.runtime.gpu.total_order import (
    EMPTY,
    best_keys,
    key_index,
    key_value,
    make_keys,
    order_of,
    ranks_of,
)
from translate_trt.runtime.interface.tensors import TENSORS

_FREE = tl.constexpr(FREE)

_STATE = tuple(t.name for t in TENSORS["state"] if not t.when and t.name != "tokens")

#: Inputs of the operator without `end_token` and those of rules 13 to 15, in order.
INPUTS = (
    "log_probabilities", "choices", "looked_up",
    *(t.name for t in TENSORS["request"] if not t.when), *_STATE,
)  # fmt: skip

#: Outputs, in order.
OUTPUTS = ("parents", "next_tokens", *(NEXT + name for name in _STATE))


@triton.jit
def length_penalty(length, alpha, beta):
    """((beta + n) / (beta + 1)) ** alpha (rule 3), rounded once from float64.

    The power of float32 would be another function on every device.
    """
    base = tl.div_rn(beta + length.to(tl.float32), beta + 1.0)
    return tl.exp2(alpha.to(tl.float64) * tl.log2(base.to(tl.float64))).to(tl.float32)


@triton.jit
def select_beams_kernel(
    log_probabilities, choices, looked_up,
    forced_tokens, min_lengths, max_lengths, length_penalty_alpha, length_penalty_beta,
    num_hypotheses, early_stopping,
    log_probs, positions, done,
    finished_scores, finished_lengths, finished_parents, finished_truncated,
    parents, next_tokens, next_log_probs, next_positions, next_done,
    next_finished_scores, next_finished_lengths, next_finished_parents, next_finished_truncated,
    K: tl.constexpr, C: tl.constexpr, END_TOKEN: tl.constexpr,
    BEAM_SLOTS: tl.constexpr, COLUMN_SLOTS: tl.constexpr, ENTRY_SLOTS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Run a step of one sentence. Grid: [N]. Slots are powers of two, at least K, C + 1, and 3K."""
    wait_for_predecessor(DEPENDENT)
    n = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + n)
    length = position + 1
    was_done = tl.load(done + n) != 0
    early = tl.load(early_stopping + n) != 0
    alpha, beta = tl.load(length_penalty_alpha + n), tl.load(length_penalty_beta + n)

    # Bar and expand (rules 10 and 2). The last column of a beam is for the forced token.
    forced = tl.load(forced_tokens + n)
    too_short = length < tl.load(min_lengths + n)
    beams = tl.arange(0, BEAM_SLOTS)[:, None]
    columns = tl.arange(0, COLUMN_SLOTS)[None, :]
    rows = n * K + beams
    is_candidate = (beams < K) & (columns < C)
    at = rows * C + columns
    tokens = tl.load(choices + at, is_candidate, 0)
    values = tl.load(log_probabilities + at, is_candidate, float("-inf"))
    barred = (forced != _FREE) | (too_short & (tokens == END_TOKEN))
    values = tl.where(barred, float("-inf"), values)
    unscored = tl.where(forced == _FREE, float("-inf"), 0.0)
    at_forced = tl.where(forced >= 0, tl.load(looked_up + rows, beams < K, 0.0), unscored)
    values = tl.where(columns == C, at_forced, values)
    values += tl.load(log_probs + rows, beams < K, float("-inf"))
    keys = make_keys(order_of(values), beams * (C + 1) + columns)
    keys = tl.where((beams < K) & (columns <= C), keys, EMPTY)

    # Entries: the best 2K continuations, best first, and the K hypotheses of the pool.
    entries = tl.arange(0, ENTRY_SLOTS)
    is_new = entries < 2 * K
    is_old = (entries >= 2 * K) & (entries < 3 * K)
    kept = best_keys(keys, 2 * K, ENTRY_SLOTS)
    log_prob = tl.where(is_new & (entries < K * K), key_value(kept), float("-inf"))
    index = tl.where(is_new, key_index(kept), 0)
    parent, column = index // (C + 1), index % (C + 1)
    forced_column = tl.maximum(tl.maximum(forced, -2 - forced), 0)
    token = tl.load(choices + (n * K + parent) * C + column, is_new & (column < C), 0)
    token = tl.where(column < C, token, forced_column)
    ended = token == END_TOKEN

    # Retire (rule 3). Of equal scores, the pool's own come first.
    penalty = length_penalty(length, alpha, beta)
    enters = is_new & ended & ~was_done & ((entries < K) | ~early)
    pool = n * K + entries - 2 * K
    score = tl.load(finished_scores + pool, is_old, float("-inf"))
    score = tl.where(enters, tl.div_rn(log_prob, penalty), score)
    keys = make_keys(order_of(score), (entries + K) % (3 * K))
    place = ranks_of(tl.where(entries < 3 * K, keys, EMPTY))
    stays = place < K
    finished_length = tl.load(finished_lengths + pool, is_old, 0)
    finished_parent = tl.load(finished_parents + pool, is_old, 0)
    truncated = tl.load(finished_truncated + pool, is_old, 0) != 0
    finished_length = tl.where(is_new, length, finished_length)
    finished_parent = tl.where(is_new, parent, finished_parent)

    # Live on (rule 4). Candidates that end fill up the beams.
    live = tl.where(ended, float("-inf"), log_prob)
    keys = tl.where(is_new, make_keys(order_of(live), entries), EMPTY)
    beam = ranks_of(keys)
    lives = beam < K

    # Is done (rule 5).
    max_length = tl.load(max_lengths + n)
    bound = tl.div_rn(key_value(tl.max(keys)), length_penalty(max_length, alpha, beta))
    settled = tl.sum((stays & (bound <= score)).to(tl.int32))
    is_full = tl.sum(((place == K - 1) & (score > float("-inf"))).to(tl.int32)) > 0
    at_limit = length >= max_length
    is_done = was_done | at_limit | (early & is_full) | (settled >= tl.load(num_hypotheses + n))

    # Cut off (rule 6): the live beams, in order, fill the empty entries of the pool.
    filled = stays & (score > float("-inf"))
    cut = place - tl.sum(filled.to(tl.int32))
    is_cut = lives[None, :] & (beam[None, :] == tl.maximum(cut, 0)[:, None])
    cut_log_prob = tl.sum(tl.where(is_cut, live[None, :], 0.0), 1)
    fills = stays & ~filled & at_limit & ~was_done & (cut_log_prob > float("-inf"))
    score = tl.where(fills, tl.div_rn(cut_log_prob, penalty), score)
    finished_length = tl.where(fills, length, finished_length)
    finished_parent = tl.where(fills, cut, finished_parent)

    tl.debug_barrier()  # no thread may still read what another one overwrites
    tl.store(parents + n * K + beam, parent, lives)
    tl.store(next_tokens + n * K + beam, token, lives)
    tl.store(next_log_probs + n * K + beam, live, lives)
    # A sentence that is done stays at its last position while its batch goes on.
    tl.store(next_positions + n, tl.where(is_done, position, length))
    tl.store(next_done + n, is_done)
    tl.store(next_finished_scores + n * K + place, score, stays)
    tl.store(next_finished_lengths + n * K + place, finished_length, stays)
    tl.store(next_finished_parents + n * K + place, finished_parent, stays)
    tl.store(next_finished_truncated + n * K + place, truncated | fills, stays)


def select_beams(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], end_token: int
) -> tuple[Launch, ...]:
    """Select the next beams and update the pool of finished hypotheses.

    Args:
        inputs: `INPUTS`: log_probabilities [N, K, C] and choices [N, K, C] as `top_logits` orders
            them, looked_up [N, K, 1], and tensors of the contract.
        outputs: `OUTPUTS`; that of a tensor of the state may be the input itself.
        end_token: The end symbol.
    """
    tensors = dict(zip((*INPUTS, *OUTPUTS), (*inputs, *outputs), strict=True))
    sentences, beams, candidates = inputs[0].shape
    constants = {
        "K": beams,
        "C": candidates,
        "END_TOKEN": end_token,
        "BEAM_SLOTS": power_of_two(beams),
        "COLUMN_SLOTS": power_of_two(candidates + 1),
        "ENTRY_SLOTS": power_of_two(3 * beams),
    }
    # One warp compares without barriers; of more beams, it would have too many keys.
    warps = 1 if beams <= 8 else 4
    return (Launch(select_beams_kernel, (sentences,), tensors, constants, warps),)

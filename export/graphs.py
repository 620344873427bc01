"""Modules that export traces: the encoder, and one decoding step with the beam search inside.

Their inputs and outputs are those of export/contract.py, with the letters that it uses.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.export.fused_ops.declarations import (
    BIASED,
    DOMAIN,
    RELATIVE_SLOT_BIAS,
    RELATIVE_SOURCE_BIAS,
    SHORTLIST_CANDIDATES,
    SOURCE_SHORTLIST,
    VERSION,
)
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import FREE, MASKED, NEXT, UNMARKED, Contract
from translate_trt.train.config import END
from translate_trt.train.model import (
    DecoderLayer,
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    attention_weights,
)
from translate_trt.train.shortlist.table import Shortlist


def attend(
    attention: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute `MultiHeadAttention.attend` from its matmuls, and return the weights as well.

    Args:
        attention: The layer with the output projection.
        query: [N, H, T, D], from `MultiHeadAttention.queries`.
        key: [N, H, S, D].
        value: [N, H, S, D].
        bias: Broadcast to [N, H, T, S].

    Returns:
        The sub-layer's output [N, T, d_model] and the attention weights [N, H, T, S].
    """
    weights = attention_weights(query, key, bias)
    context = (weights @ value).transpose(1, 2).flatten(-2)  # [N, T, H * D]
    return attention.output(context), weights


class EncoderGraph(nn.Module):
    """Encoder: source_ids [N, S], source_lengths [N] -> `Contract.encoder_outputs`.

    Args:
        model: The model to export.
        max_source_length: Number of positions.
        shortlist: Tokens that translations are restricted to; None for the whole vocabulary.
    """

    position_table: Tensor

    def __init__(
        self, model: Transformer, max_source_length: int, shortlist: Shortlist | None = None
    ) -> None:
        super().__init__()
        self.model = model
        positions = model.positions(0, max_source_length).detach().clone()
        self.register_buffer("position_table", positions)  # [max_source_length, d_model]
        hidden = int(not model.config.source_end)
        self.shortlist = None if shortlist is None else SentenceShortlist(shortlist, hidden)

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        size = source_ids.shape[1]
        visible = source_lengths
        if not self.model.config.source_end:
            visible = source_lengths - 1  # mask the end symbol like padding
        is_padding = torch.arange(size, device=source_ids.device) >= visible[:, None]
        bias = torch.where(is_padding, MASKED, 0.0)[:, None, None, :]  # [N, 1, 1, S]
        x = self.model.look_up(self.model.source_table, source_ids) + self.position_table[:size]
        x = self.model.source_embedding_norm(x)
        own = bias
        if self.model.source_distances is not None:
            heads = self.model.config.heads
            own = torch.onnx.ops.symbolic(
                f"{DOMAIN}::{RELATIVE_SOURCE_BIAS}",
                (bias, self.model.source_distances),
                dtype=bias.dtype,
                shape=(source_ids.shape[0], heads, size, size),
                version=VERSION,
            )
        for layer in self.model.encoder_layers:
            x = _encoder_layer(layer, x, own)
        memory = self.model.encoder_norm(x)
        layers = [cast(DecoderLayer, layer) for layer in self.model.decoder]
        shortlist = () if self.shortlist is None else (self.shortlist(source_ids, source_lengths),)
        keys_values = [x for layer in layers for x in layer.cross_attention.keys_values(memory)]
        return (bias, *shortlist, *keys_values)


class SentenceShortlist(nn.Module):
    """Shortlist of each sentence: tokens that its translation may consist of.

    train/shortlist/table.py makes the tables. Tokens ascend, for rule 8.

    Args:
        shortlist: The tables.
        hidden: Number of tokens at the end of a sentence that are not looked up.
    """

    frequent: Tensor
    translations: Tensor

    def __init__(self, shortlist: Shortlist, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        # int32 halves the size of the tables.
        self.register_buffer("frequent", torch.from_numpy(shortlist.frequent.astype(np.int32)))
        table = torch.from_numpy(shortlist.translations.astype(np.int32))
        self.register_buffer("translations", table)

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> Tensor:
        """Emit the fused operator: source_ids [N, S], source_lengths [N] -> shortlist [N, W]."""
        width = len(self.frequent) + source_ids.shape[1] * self.translations.shape[1]
        lists: Tensor = torch.onnx.ops.symbolic(
            f"{DOMAIN}::{SOURCE_SHORTLIST}",
            (source_ids, source_lengths, self.frequent, self.translations),
            attrs={"hidden": self.hidden},
            dtype=torch.int64,
            shape=(source_ids.shape[0], width),
            version=VERSION,
        )
        return lists


def _encoder_layer(layer: EncoderLayer, x: Tensor, bias: Tensor) -> Tensor:
    """Encoder layer for x [N, S, d_model] with the bias [N, 1, 1, S] or [N, H, S, S]."""
    y = layer.self_attention_norm.before(x)
    attention = layer.self_attention
    attended, _ = attend(attention, attention.queries(y), *attention.keys_values(y), bias)
    x = layer.self_attention_norm.after(x, attended)
    y = layer.feed_forward_norm.before(x)
    return layer.feed_forward_norm.after(x, layer.feed_forward(y))


class SharedSlots:
    """Caches [N, H, P, D] of dynamic P, written in place at slots that are in no beam's past.

    Beams of a sentence share most of their past, and a cache stores it once. A cache needs as many
    slots as the tree of live hypotheses has nodes, not K times its depth.

    Args:
        slots: Free slots [N, K] for the tokens of this step.
        heads: Number of heads, H.
    """

    def __init__(self, slots: Tensor, heads: int) -> None:
        self.slots = slots
        sizes = (*slots.shape, heads)
        rows = torch.arange(sizes[0], device=slots.device)[:, None, None]
        axes = (rows, torch.arange(heads, device=slots.device), slots[..., None])
        self._indices = torch.stack([axis.expand(sizes) for axis in axes], -1)  # [N, K, H, 3]

    def write(self, past: Tensor, new: Tensor) -> Tensor:
        """Return past [N, H, P, D] with new [N, H, K, D] in the slots of this step."""
        written: Tensor = torch.onnx.ops.symbolic(
            # Indices are in the order of the projection, so new needs no transpose of its own.
            "ScatterND",
            (past, self._indices, new.transpose(1, 2)),
            dtype=past.dtype,
            shape=past.shape,
            version=18,
        )
        return written

    def live(self, cache: Tensor, ancestry: Tensor) -> Tensor:
        """Return the slots of a cache that the ancestry has a column for: all of them."""
        return cache

    def extend(self, ancestry: Tensor) -> Tensor:
        """Add to each beam's ancestry [N, K, P] its own slot of this step."""
        own = self.slots[..., None] == torch.arange(ancestry.shape[2], device=ancestry.device)
        return torch.where(own, 0.0, ancestry)

    def bias(
        self, ancestry: Tensor, distances: Tensor, named: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add to an ancestry biases of distances to the tokens in its slots.

        Args:
            ancestry: [N, K, P].
            distances: `Transformer.target_distances`.
            named: Inputs of the step by name.

        Returns:
            Bias [N, H, K, P], and outputs of the step by name.
        """
        past = named["slot_positions"]
        found, written = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{RELATIVE_SLOT_BIAS}",
            (ancestry, self.slots, named["positions"], past, distances),
            dtypes=(ancestry.dtype, past.dtype),
            shapes=((ancestry.shape[0], distances.shape[1], *ancestry.shape[1:]), past.shape),
            version=VERSION,
        )
        return found, {f"{NEXT}slot_positions": written}

    def next_slots(self, ancestry: Tensor) -> tuple[Tensor, Tensor]:
        """Return free slots [N, K] for the next step, and whether fewer than K are free [N].

        Args:
            ancestry: [N, K, P] after selection.
        """
        highest = ancestry.amax(1)  # [N, P], MASKED in free slots and 0 in all others
        freest, slots = (-highest).topk(self.slots.shape[1])
        return slots, freest[:, -1] == 0.0


class StaticCaches:
    """Caches [N, H, C, D] of fixed capacity C, with K adjacent slots for each step.

    A CUDA graph replays the same addresses, so caches cannot grow, and TensorRT's cache layer
    writes adjacent slots only. Attention reads the first P slots, as many as the ancestry has: a
    step of short translations does not read the whole cache.

    Args:
        positions: Position of each sentence [N].
        beams: Beam size, K.
    """

    def __init__(self, positions: Tensor, beams: int) -> None:
        self.positions, self.beams = positions, beams

    def write(self, past: Tensor, new: Tensor) -> Tensor:
        """Return past [N, H, C, D] with new [N, H, K, D] in the slots of this step."""
        written: Tensor = torch.onnx.ops.symbolic(
            "TensorScatter",
            (past, new, self.positions * self.beams),
            attrs={"axis": 2},
            dtype=past.dtype,
            shape=past.shape,
            version=24,
        )
        return written

    def live(self, cache: Tensor, ancestry: Tensor) -> Tensor:
        """Return the slots of a cache [N, H, C, D] that the ancestry [N, K, P] has a column for."""
        return cache[:, :, : ancestry.shape[2]]

    def extend(self, ancestry: Tensor) -> Tensor:
        """Add to each beam's ancestry [N, K, P] its own slot of this step."""
        slots = torch.arange(ancestry.shape[2], device=ancestry.device)
        now = slots // self.beams == self.positions[:, None]  # [N, P]
        own = slots % self.beams == torch.arange(self.beams, device=slots.device)[:, None]  # [K, P]
        return torch.where(now[:, None] & own, 0.0, ancestry)

    def bias(
        self, ancestry: Tensor, distances: Tensor, named: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `SharedSlots.bias`; the index of a slot tells the position of its token."""
        positions = torch.arange(ancestry.shape[2], device=ancestry.device) // self.beams
        rows = (self.positions[:, None] - positions).clamp(0, len(distances) - 1)  # [N, P]
        by_head = F.embedding(rows, distances).transpose(1, 2)  # [N, H, P]
        return ancestry[:, None] + by_head[:, :, None], {}


class StepGraph(nn.Module):
    """Decoding step for one position of all beams: `Contract.step_inputs` -> `step_outputs`.

    Args:
        model: The model to export.
        max_target_length: Number of positions.
        contract: Contract of the graphs.
        attention: Cross-attention to return, if the contract has it.
        member: Label of the model in an ensemble (`member_label`).
    """

    position_table: Tensor

    def __init__(
        self,
        model: Transformer,
        max_target_length: int,
        contract: Contract,
        attention: AttentionHeads = LAST_LAYER,
        member: str = "",
    ) -> None:
        super().__init__()
        self.model, self.contract, self.member = model, contract, member
        self.attention = attention.within(model.config.decoder_layers, model.config.heads)
        positions = model.target_positions(0, max_target_length).detach().clone()
        self.register_buffer("position_table", positions)  # [max_target_length, d_model]
        self.search = BeamSearchStep(END)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        contract = self.contract
        named = {spec.name: x for spec, x in zip(contract.step_inputs, inputs, strict=True)}
        x, attention, past = self.decode(named)
        request = Request(*(named[name] for name in Request._fields))
        state = State(*(named[name] for name in State._fields))
        changes = None
        if contract.marks:
            changes = Changes(*(named[name] for name in Changes._fields))
        if contract.shortlist is None:
            logits = self.model.project(x)  # [N, K, V]
            parents, *following = self.search(logits, *request, *state, *(changes or ()))
        else:
            candidates = self._shortlist_candidates(x, named["shortlist"], request, changes)
            parents, following = self.search.select(candidates, request, state, changes)
        return (parents, *following, *past.following(parents).values(), *attention)

    def decode(
        self, named: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], RecurrentPast | AttentionPast]:
        """Run the decoder.

        Args:
            named: Inputs of the step by name.

        Returns:
            Its output [N, K, d_model], cross-attention [N, K, S] of the chosen heads if the
            contract has it, and the past that it has written to.
        """
        tokens, positions = named["tokens"], named["positions"]
        position = F.embedding(positions, self.position_table)[:, None]  # [N, 1, d_model]
        x = self.model.look_up(self.model.embedding, tokens) + position  # [N, K, d_model]
        x = self.model.embedding_norm(x)
        past = self._past(named)
        attention: tuple[Tensor, ...] = ()
        for index, layer in enumerate(self.model.decoder_layers):
            x = past.mix(index, layer, x)
            x, weights = self._rest_of_layer(index, layer, x, named)
            if self.contract.attention and index == self.attention.layer:
                heads = self.attention.heads  # to average of [N, H, K, S]
                attention = ((weights[:, list(heads)] if heads else weights).mean(1),)
        return self.model.decoder_norm(x), attention, past

    def _shortlist_candidates(
        self, x: Tensor, shortlist: Tensor, request: Request, changes: Changes | None
    ) -> Candidates:
        """Emit the fused operator that returns the best tokens of a shortlist.

        Args:
            x: [N, K, d_model].
            shortlist: [N, W].
            request: Search options.
            changes: Changes of log-probabilities, if the graph has such inputs.
        """
        columns = _looked_up_columns(request, changes, x)
        count = _candidate_count(x.shape[1], changes, shortlist.shape[1])
        rows = (x.shape[0], x.shape[1])
        bias = self.model.output_bias
        found = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{SHORTLIST_CANDIDATES if bias is None else BIASED + SHORTLIST_CANDIDATES}",
            (
                x,
                self.model.projection_weight,
                *(() if bias is None else (bias,)),
                shortlist,
                columns,
                torch.tensor(count)[None],
            ),
            dtypes=(x.dtype, torch.int64, x.dtype),
            shapes=((*rows, count), (*rows, count), columns.shape),
            version=VERSION,
        )
        return Candidates(*found)

    def _past(self, named: dict[str, Tensor]) -> RecurrentPast | AttentionPast:
        config, beams = self.model.config, self.contract.beams
        if config.is_recurrent:
            return RecurrentPast(named, self.member)
        if beams is None:
            caches: SharedSlots | StaticCaches = SharedSlots(named["slots"], config.heads)
        else:
            caches = StaticCaches(named["positions"], beams)
        return AttentionPast(named, caches, self.member, self.model.target_distances)

    def _rest_of_layer(
        self, index: int, layer: DecoderLayer, x: Tensor, named: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Run the cross-attention and the feed-forward block; the beams are the query positions.

        Args:
            index: Index of the layer.
            layer: The layer.
            x: [N, K, d_model].
            named: Inputs of the step by name.

        Returns:
            The new x, and cross-attention weights [N, H, K, S].
        """
        y = layer.cross_attention_norm.before(x)
        own = f"{self.member}{self.model.config.decoder_weights[index]}"
        cross = named[f"cross_key_{own}"], named[f"cross_value_{own}"]
        query = layer.cross_attention.queries(y)
        attended, weights = attend(layer.cross_attention, query, *cross, named["source_bias"])
        x = layer.cross_attention_norm.after(x, attended)
        y = layer.feed_forward_norm.before(x)
        return layer.feed_forward_norm.after(x, layer.feed_forward(y)), weights


class AttentionPast:
    """Past of the beams in caches of keys and values.

    Args:
        named: Inputs of the step by name.
        caches: Writer of the caches.
        member: Label of the model in an ensemble.
        distances: `Transformer.target_distances`, or None.
    """

    def __init__(
        self,
        named: dict[str, Tensor],
        caches: SharedSlots | StaticCaches,
        member: str = "",
        distances: Tensor | None = None,
    ) -> None:
        self._named, self._caches, self._member = named, caches, member
        self._ancestry = caches.extend(named["ancestry"])  # [N, K, P]
        self._bias: Tensor | None = None
        self._written: dict[str, Tensor] = {}
        if distances is not None:
            self._bias, self._written = caches.bias(self._ancestry, distances, named)

    def mix(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """Run the self-attention block of a layer for x [N, K, d_model]."""
        caches, bias = self._caches, self._bias
        bias = self._ancestry[:, None] if bias is None else bias  # [N, 1 or H, K, P]
        y = layer.self_attention_norm.before(x)
        query = layer.self_attention.queries(y)  # [N, H, K, D]
        key, value = layer.self_attention.keys_values(y)  # [N, H, K, D]
        own = f"{self._member}{index}"
        keys = caches.write(self._named[f"self_key_{own}"], key)
        values = caches.write(self._named[f"self_value_{own}"], value)
        self._written |= {f"{NEXT}self_key_{own}": keys, f"{NEXT}self_value_{own}": values}
        live_keys, live_values = (caches.live(cache, self._ancestry) for cache in (keys, values))
        attended, _ = attend(layer.self_attention, query, live_keys, live_values, bias)
        return layer.self_attention_norm.after(x, attended)

    def following(self, parents: Tensor) -> dict[str, Tensor]:
        """Return outputs by name: the past of the next step's beams, and `full` of dynamic slots.

        Args:
            parents: [N, K] beam that each beam of the next step continues.
        """
        expanded = parents[..., None].expand_as(self._ancestry)
        ancestry = self._ancestry.gather(1, expanded)
        if not isinstance(self._caches, SharedSlots):
            return {f"{NEXT}ancestry": ancestry, **self._written}
        slots, full = self._caches.next_slots(ancestry)
        found = {f"{NEXT}ancestry": ancestry, f"{NEXT}slots": slots, **self._written}
        return {**found, "full": full}


class RecurrentPast:
    """Past of the beams in the states of recurrent layers.

    Args:
        named: Inputs of the step by name.
        member: Label of the model in an ensemble.
    """

    def __init__(self, named: dict[str, Tensor], member: str = "") -> None:
        self._named, self._member = named, member
        self._states: dict[str, Tensor] = {}

    def mix(self, index: int, layer: DecoderLayer, x: Tensor) -> Tensor:
        """Run the SSRU block of a layer for x [N, K, d_model]."""
        y = layer.ssru_norm.before(x)
        name = f"ssru_state_{self._member}{index}"
        output, self._states[name] = layer.ssru.step(y, self._named[name])
        return layer.ssru_norm.after(x, output)

    def following(self, parents: Tensor) -> dict[str, Tensor]:
        """See `AttentionPast.following`."""
        rows = parents[..., None]
        return {NEXT + name: x.gather(1, rows.expand_as(x)) for name, x in self._states.items()}


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


def _candidate_count(beams: int, changes: Changes | None, choices: int) -> int:
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


def _looked_up_columns(request: Request, changes: Changes | None, rows: Tensor) -> Tensor:
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
        top, tokens = log_probs.topk(_candidate_count(logits.shape[1], changes, logits.shape[2]))
        looked_up = log_probs.gather(2, _looked_up_columns(request, changes, logits))
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

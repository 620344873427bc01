"""Modules that export traces: the encoder, and one decoding step, which ends with the beam search.

Their inputs and outputs are those of export/contract.py, with the letters that it uses.
"""

from __future__ import annotations

from typing import cast

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
from translate_trt.export.search_step import (
    BeamSearchStep,
    Candidates,
    Changes,
    Request,
    State,
    candidate_count,
    looked_up_columns,
)
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import MASKED, NEXT, Contract
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
    """Run an encoder layer for x [N, S, d_model] with the bias [N, 1, 1, S] or [N, H, S, S]."""
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
        columns = looked_up_columns(request, changes, x)
        count = candidate_count(x.shape[1], changes, shortlist.shape[1])
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

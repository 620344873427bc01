"""Graphs of an ensemble: those of every member, with one search over the mean of probabilities.

All members extend the same beams, so there is one search state, ancestry and order of slots. Each
member has its own keys, values and recurrent states (`export.contract.ensemble_contract`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from translate_trt.export.contract import member_label
from translate_trt.export.graphs import EncoderGraph, StepGraph
from translate_trt.export.search_step import BeamSearchStep, Changes, Request, State
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import NEXT, Contract
from translate_trt.train.config import END
from translate_trt.train.model import DecoderLayer, Transformer
from translate_trt.train.search import Ensemble


def members_of(model: Transformer | Ensemble) -> Sequence[Transformer]:
    """Members of an ensemble, or the model itself."""
    return model.members if isinstance(model, Ensemble) else (model,)


def labelled(model: Transformer | Ensemble) -> list[tuple[str, Transformer]]:
    """Members with the prefixes of their layers' names, "m0." and so on; none for a model alone."""
    if not isinstance(model, Ensemble):
        return [("", model)]
    return [(f"m{index}.", member) for index, member in enumerate(model.members)]


def share_tables(model: Transformer | Ensemble) -> bool:
    """Whether two members have an embedding table in common.

    What members compute alike from equal tables is then computed once.
    """
    tables = [
        {id(x): x for x in (one.source_table.weight, one.embedding.weight)}.values()
        for one in members_of(model)
    ]
    return any(
        torch.equal(x, y)
        for index, own in enumerate(tables)
        for others in tables[:index]
        for x in own
        for y in others
    )


def repeat_cross_attention(model: Transformer | Ensemble) -> bool:
    """Whether two distinct layers, of one member or of two, have the same keys or values.

    What they compute alike from equal encoder outputs is then computed once.
    """
    weights = [
        projection.weight
        for member in members_of(model)
        for layer in cast(list[DecoderLayer], list(member.decoder))
        for projection in (layer.cross_attention.key, layer.cross_attention.value)
    ]
    return any(torch.equal(x, y) for index, x in enumerate(weights) for y in weights[:index])


class EnsembleEncoderGraph(nn.Module):
    """Encoders of all members: source_ids [N, S], source_lengths [N] -> `encoder_outputs`.

    Args:
        models: The members, which agree on `source_end`.
        max_source_length: Number of positions.
    """

    def __init__(self, models: Sequence[Transformer], max_source_length: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(EncoderGraph(model, max_source_length) for model in models)

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        encoded = [member(source_ids, source_lengths) for member in self.members]
        (bias, *_), *_ = encoded
        return (bias, *(x for _, *keys_values in encoded for x in keys_values))


class EnsembleStepGraph(nn.Module):
    """Decoding step of all members: `Contract.step_inputs` -> `step_outputs`.

    Args:
        models: The members.
        max_target_length: Number of positions.
        contract: Contract of the graph.
        attention: Cross-attention to average over the members, if the contract has it.
    """

    def __init__(
        self,
        models: Sequence[Transformer],
        max_target_length: int,
        contract: Contract,
        attention: AttentionHeads = LAST_LAYER,
    ) -> None:
        super().__init__()
        self.contract, self.attention = contract, attention
        self.members = nn.ModuleList(
            StepGraph(model, max_target_length, contract, attention, member_label(index))
            for index, model in enumerate(models)
        )
        self.total = TotalProbability()
        self.search = BeamSearchStep(END)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        contract = self.contract
        named = {spec.name: x for spec, x in zip(contract.step_inputs, inputs, strict=True)}
        logits, weights, pasts = [], list[Tensor](), []
        for member in self.members:
            assert isinstance(member, StepGraph)
            x, attention, past = member.decode(named)
            logits.append(member.model.project(x))  # [N, K, V]
            weights += attention  # [N, K, S]
            pasts.append(past)
        changes = Changes._fields if contract.marks else ()
        of_search = [named[name] for name in (*Request._fields, *State._fields, *changes)]
        parents, *following = self.search(self.total(*logits), *of_search)
        outputs = {"parents": parents}
        if weights:
            outputs["attention"] = torch.stack(weights).mean(0)
        outputs |= {NEXT + name: x for name, x in zip(State._fields, following, strict=True)}
        for past in pasts:
            outputs |= past.following(parents)
        return tuple(outputs[spec.name] for spec in contract.step_outputs)


class TotalProbability(nn.Module):
    """Logits [N, K, V] of each member -> logarithms [N, K, V] of the sums of their probabilities.

    The search normalizes what it gets, and a sum divided by its total is the mean. A sum of
    exponentials by itself would be zero for tokens below 1e-45, which may be forced or scored.
    """

    def forward(self, *logits: Tensor) -> Tensor:
        log_probs = [x.log_softmax(-1) for x in logits]
        largest = functools.reduce(torch.maximum, log_probs)
        total = functools.reduce(torch.add, [(x - largest).exp() for x in log_probs])
        return largest + total.log()

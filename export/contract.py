"""Contract of a model's graphs: their inputs and outputs, as export declares them.

Letters as in `translate_trt.runtime.bundle.contract`, and L decoder layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from translate_trt.runtime.bundle.contract import Contract, ShortlistForm, TensorSpec
from translate_trt.runtime.interface.tensors import TENSORS, Tensor
from translate_trt.train.config import ModelConfig


@dataclass(frozen=True)
class GraphLayout:
    """Layout of a target's graphs: sizes and types that the model leaves open.

    Attributes:
        beams: Beam size that the graphs are made for; None for any (`Contract.beams`).
        slots: Slots of a cache; None for any number (`Contract.slots`).
        cache_type: Type of self- and cross-attention keys and values, one of CACHE_TYPES.
        shortlist: Sizes of the encoder's shortlists; None if translations are not restricted.
        marks: Whether the graphs have the inputs of rules 13 to 15: marks, samples, constraints.
    """

    beams: int | None = None
    slots: int | None = None
    cache_type: str = "float32"
    shortlist: ShortlistForm | None = None
    marks: bool = True


def member_label(index: int) -> str:
    """Label of a member of an ensemble in the names of its tensors, as in `self_key_m1_0`."""
    return f"m{index}_"


def ensemble_contract(
    configs: Sequence[ModelConfig], attention: bool = False, layout: GraphLayout = GraphLayout()
) -> Contract:
    """The contract of the graphs of a model, or of several models as an ensemble.

    Members of an ensemble search with the same beams: they share the search state, `ancestry` and
    `slots`, and have keys, values and recurrent states of their own.

    Args:
        configs: Configurations of the members; one for a model by itself.
        attention: Whether the step graph also returns cross-attention weights.
        layout: Layout of the graphs.
    """
    labels = [member_label(index) for index in range(len(configs))] if len(configs) > 1 else [""]
    members = [
        make_contract(
            config.decoder_layers, config.heads, config.d_k, config.d_v, attention, layout,
            config.distinct_decoder_layers, config.d_model if config.is_recurrent else 0, label,
            config.relative_positions > 0,
        )
        for config, label in zip(configs, labels, strict=True)
    ]  # fmt: skip
    return replace(
        members[0],
        encoder_outputs=_union(member.encoder_outputs for member in members),
        state=_union(member.state for member in members),
        results=_union(member.results for member in members),
    )


def _union(groups: Iterable[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """Tensors of several groups in order, each name once."""
    return tuple({spec.name: spec for group in groups for spec in group}.values())


def make_contract(
    decoder_layers: int,
    heads: int,
    key_size: int,
    value_size: int,
    attention: bool = False,
    layout: GraphLayout = GraphLayout(),
    cross_layers: int = 0,
    recurrent_size: int = 0,
    member: str = "",
    relative: bool = False,
) -> Contract:
    """The contract of a model with these sizes.

    Args:
        decoder_layers: Number of decoder layers, L.
        heads: Number of attention heads, H.
        key_size: Columns of a head's queries and keys.
        value_size: Columns of a head's values.
        attention: Whether the step graph also returns cross-attention weights.
        layout: Layout of the graphs.
        cross_layers: Number of layers with cross-attention keys and values of their own; 0: all.
        recurrent_size: Size of the state of layers that are recurrent; 0: they have self-attention.
        member: Label of the model in an ensemble (`member_label`).
        relative: Whether self-attention has biases of relative positions.
    """
    holds = {
        "": True,
        "shortlist": layout.shortlist is not None,
        "marks": layout.marks,
        "recurrent": recurrent_size > 0,
        "caches": recurrent_size == 0,
        "relative": relative and layout.slots is None,
        "free_slots": recurrent_size == 0 and layout.slots is None,
        "attention": attention,
    }
    sizes = {"heads": heads, "key": key_size, "value": value_size, "width": recurrent_size}
    fixed = {"K": layout.beams} if layout.beams else {}

    def specs(tensor: Tensor, layers: int) -> Iterator[TensorSpec]:
        kinds = ("key", "value") if "{kind}" in tensor.name else ("",)
        for layer in range(layers if tensor.of_layers else 1):
            for kind in kinds:
                known = {**sizes, **fixed, "size": sizes.get(kind, 0)}
                if tensor.in_place and layout.slots:
                    known["P"] = layout.slots
                axes = (int(x) if x.isdigit() else known.get(x, x) for x in tensor.axes.split())
                name = tensor.name.format(kind=kind, member=member, layer=layer)
                dtype = layout.cache_type if tensor.dtype == "cache" else tensor.dtype
                yield TensorSpec(name, dtype, tuple(axes), tensor.initial, tensor.in_place)

    layers = {"encoder_outputs": cross_layers or decoder_layers}
    groups = {
        group: tuple(
            spec
            for tensor in tensors
            if holds[tensor.when]
            for spec in specs(tensor, layers.get(group, decoder_layers))
        )
        for group, tensors in TENSORS.items()
    }
    return Contract(**groups, shortlist=layout.shortlist)

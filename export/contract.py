"""Contract of a model's graphs: their inputs and outputs, as export declares them.

Letters as in `translate_trt.runtime.bundle.contract`, and L decoder layers, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from translate_trt.runtime.bundle.contract import (
    CONSTRAINT_PROGRESS,
    CONSTRAINT_TOKENS,
    MARKED_FACTORS,
    MARKED_TOKENS,
    OTHER_PROGRESS,
    SAMPLING_NOISE,
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_P,
    TAIL_NOISE,
    TAIL_TOKENS,
    Contract,
    ShortlistForm,
    TensorSpec,
)
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
    if len(configs) == 1:
        return model_contract(configs[0], attention, layout)
    members = [
        model_contract(config, attention, layout, member_label(index))
        for index, config in enumerate(configs)
    ]
    return replace(
        members[0],
        encoder_outputs=_union(member.encoder_outputs for member in members),
        state=_union(member.state for member in members),
        results=_union(member.results for member in members),
    )


def _union(groups: Iterable[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """Tensors of several groups in order, each name once."""
    return tuple({spec.name: spec for group in groups for spec in group}.values())


def model_contract(
    config: ModelConfig,
    attention: bool = False,
    layout: GraphLayout = GraphLayout(),
    member: str = "",
) -> Contract:
    """The contract of a model's graphs.

    Args:
        config: Configuration of the model.
        attention: Whether the step graph also returns cross-attention weights.
        layout: Layout of the graphs.
        member: Label of the model in an ensemble (`member_label`).
    """
    return make_contract(
        config.decoder_layers,
        config.heads,
        config.d_k,
        config.d_v,
        attention=attention,
        layout=layout,
        cross_layers=config.distinct_decoder_layers,
        recurrent_size=config.d_model if config.is_recurrent else 0,
        member=member,
    )


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
    """
    k: str | int = layout.beams or "K"
    marks = (
        TensorSpec(MARKED_TOKENS, "int64", ("N", k, "B")),
        TensorSpec(MARKED_FACTORS, "float32", ("N", k, "B")),
        TensorSpec(SAMPLING_NOISE, "float32", ("N", "R")),
        TensorSpec(SAMPLING_TEMPERATURE, "float32", ("N",)),
        TensorSpec(SAMPLING_TOP_P, "float32", ("N",)),
        TensorSpec(TAIL_TOKENS, "int64", ("N", "D")),
        TensorSpec(TAIL_NOISE, "float32", ("N", "D")),
        TensorSpec(CONSTRAINT_TOKENS, "int64", ("N", "U")),
        TensorSpec(CONSTRAINT_PROGRESS, "int64", ("N", k, "U")),
        TensorSpec(OTHER_PROGRESS, "int64", ("N", k)),
    )
    kinds = (("key", key_size), ("value", value_size))
    shortlist = (TensorSpec("shortlist", "int64", ("N", "W")),)
    full: tuple[TensorSpec, ...] = ()
    if recurrent_size:
        past: tuple[TensorSpec, ...] = tuple(
            TensorSpec(f"ssru_state_{member}{layer}", "float32", ("N", k, recurrent_size))
            for layer in range(decoder_layers)
        )
    else:
        # 0 for slots in a beam's past, MASKED for all others.
        past = (TensorSpec("ancestry", "float32", ("N", k, "P"), "masked"),)
        if layout.slots is None:
            # Cache slots for the tokens of the live beams: K free ones.
            past += (TensorSpec("slots", "int64", ("N", k), "ascending"),)
            # Whether fewer than K slots are free, so that the next step needs a larger P.
            full = (TensorSpec("full", "bool", ("N",)),)
        past += tuple(
            TensorSpec(
                f"self_{kind}_{member}{layer}",
                layout.cache_type,
                ("N", heads, layout.slots or "P", size),
                in_place=True,
            )
            for layer in range(decoder_layers)
            for kind, size in kinds
        )
    return Contract(
        encoder_inputs=(
            TensorSpec("source_ids", "int64", ("N", "S")),
            TensorSpec("source_lengths", "int64", ("N",)),
        ),
        encoder_outputs=(
            TensorSpec("source_bias", "float32", ("N", 1, 1, "S")),
            *(shortlist if layout.shortlist is not None else ()),
            *(
                TensorSpec(
                    f"cross_{kind}_{member}{layer}", layout.cache_type, ("N", heads, "S", size)
                )
                for layer in range(cross_layers or decoder_layers)
                for kind, size in kinds
            ),
        ),
        request=(
            TensorSpec("forced_tokens", "int64", ("N",)),  # or FREE, or `unscored` of a token
            TensorSpec("min_lengths", "int64", ("N",)),
            TensorSpec("max_lengths", "int64", ("N",)),
            TensorSpec("length_penalty_alpha", "float32", ("N",)),
            TensorSpec("length_penalty_beta", "float32", ("N",)),
            TensorSpec("early_stopping", "bool", ("N",)),  # whether a full pool ends the search
            *(marks if layout.marks else ()),
        ),
        state=(
            # Last token of each live beam.
            TensorSpec("tokens", "int64", ("N", k), "start_token"),
            # Cumulative log-probabilities of the live beams.
            TensorSpec("log_probs", "float32", ("N", k), "first_lives"),
            TensorSpec("positions", "int64", ("N",)),  # tokens generated so far, until done
            TensorSpec("done", "bool", ("N",)),
            # The pool of finished hypotheses, best first, then those that were cut off (rule 6);
            # empty entries score minus infinity.
            TensorSpec("finished_scores", "float32", ("N", k), "minus_infinity"),
            TensorSpec("finished_lengths", "int64", ("N", k)),  # including the end symbol
            # The live beam that each hypothesis ended from or, if it was cut off, is.
            TensorSpec("finished_parents", "int64", ("N", k)),
            TensorSpec("finished_truncated", "bool", ("N", k)),  # whether it was cut off
            *past,
        ),
        results=(
            TensorSpec("parents", "int64", ("N", k)),
            *full,
            *((TensorSpec("attention", "float32", ("N", k, "S")),) if attention else ()),
        ),
        shortlist=layout.shortlist,
    )

"""What the graphs of a target take and give: the contract of a model, as export declares it.

Letters as in `translate_trt.runtime.bundle.contract`, and L decoder layers, H heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.runtime.bundle.contract import Contract, ShortlistForm, TensorSpec
from translate_trt.train.config import ModelConfig


@dataclass(frozen=True)
class GraphLayout:
    """How a target lays its graphs out.

    Attributes:
        beams: `Contract.beams`.
        slots: `Contract.slots`.
        cache_type: of self- and cross-attention keys and values, one of CACHE_TYPES.
        shortlist: of the lists that the encoder makes; None: any token may come next.
    """

    beams: int | None = None
    slots: int | None = None
    cache_type: str = "float32"
    shortlist: ShortlistForm | None = None


def model_contract(
    config: ModelConfig, attention: bool = False, layout: GraphLayout = GraphLayout()
) -> Contract:
    """The contract of a model's graphs.

    Args:
        config: of the model.
        attention: the step graph also returns cross-attention weights.
        layout: how the graphs are laid out.
    """
    sizes = (config.decoder_layers, config.heads, config.d_k, config.d_v)
    return make_contract(*sizes, attention=attention, layout=layout)


def make_contract(
    decoder_layers: int,
    heads: int,
    key_size: int,
    value_size: int,
    attention: bool = False,
    layout: GraphLayout = GraphLayout(),
) -> Contract:
    """The contract of a decoder of that many layers.

    Args:
        decoder_layers: L.
        heads: H.
        key_size: columns of a head's queries and keys.
        value_size: columns of a head's values.
        attention: the step graph also returns cross-attention weights.
        layout: how the graphs are laid out.
    """
    k: str | int = layout.beams or "K"
    p: str | int = layout.slots or "P"
    kinds = [
        (kind, layer, size)
        for layer in range(decoder_layers)
        for kind, size in (("key", key_size), ("value", value_size))
    ]
    shortlist = (TensorSpec("shortlist", "int64", ("N", "W")),)
    # Where the tokens of the live beams go: K free slots.
    slots = (TensorSpec("slots", "int64", ("N", k), "ascending"),)
    return Contract(
        encoder_inputs=(
            TensorSpec("source_ids", "int64", ("N", "S")),
            TensorSpec("source_lengths", "int64", ("N",)),
        ),
        encoder_outputs=(
            TensorSpec("source_bias", "float32", ("N", 1, 1, "S")),
            *(shortlist if layout.shortlist is not None else ()),
            *(
                TensorSpec(f"cross_{kind}_{layer}", layout.cache_type, ("N", heads, "S", size))
                for kind, layer, size in kinds
            ),
        ),
        request=(
            TensorSpec("forced_tokens", "int64", ("N",)),  # or FREE, or one that is `given`
            TensorSpec("min_lengths", "int64", ("N",)),
            TensorSpec("max_lengths", "int64", ("N",)),
            TensorSpec("length_penalty_alpha", "float32", ("N",)),
            TensorSpec("length_penalty_beta", "float32", ("N",)),
            TensorSpec("early_stopping", "bool", ("N",)),  # a full pool ends the search
        ),
        state=(
            # Token that each live beam ended with.
            TensorSpec("tokens", "int64", ("N", k), "start_token"),
            # Cumulative, of the live beams.
            TensorSpec("log_probs", "float32", ("N", k), "first_lives"),
            TensorSpec("positions", "int64", ("N",)),  # tokens generated so far, until done
            TensorSpec("done", "bool", ("N",)),
            # The pool of finished hypotheses, best first, behind them those that were cut off (rule
            # 6); empty places score minus infinity.
            TensorSpec("finished_scores", "float32", ("N", k), "minus_infinity"),
            TensorSpec("finished_lengths", "int64", ("N", k)),  # with the end symbol
            # The live beam that each ended from, or is.
            TensorSpec("finished_parents", "int64", ("N", k)),
            TensorSpec("finished_truncated", "bool", ("N", k)),  # cut off
            # 0 for what is in a beam's past, MASKED all else.
            TensorSpec("ancestry", "float32", ("N", k, p), "masked"),
            *(slots if layout.slots is None else ()),
            *(
                TensorSpec(
                    f"self_{kind}_{layer}", layout.cache_type, ("N", heads, p, size), in_place=True
                )
                for kind, layer, size in kinds
            ),
        ),
        results=(
            TensorSpec("parents", "int64", ("N", k)),
            # Fewer than K slots are free: the next step needs a larger P.
            *((TensorSpec("full", "bool", ("N",)),) if layout.slots is None else ()),
            *((TensorSpec("attention", "float32", ("N", k, "S")),) if attention else ()),
        ),
        shortlist=layout.shortlist,
    )

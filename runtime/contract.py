"""The two graphs' inputs and outputs: declared here once, used by export, backends and tests.

Letters: N sentences, K beams, S source tokens with the end symbol, P slots of a cache, L decoder
layers, H heads, D head size, W places of a shortlist.

The host's whole part in a step is: feed each output `next_x` back as input `x`, keep
(`next_tokens`, `parents`, `next_log_probs`) for the back-trace, look at `next_done` and `full`.

Beams are *query positions* of one sentence in both attentions. Cross-attention keys and values are
therefore never tiled K times, and a self-attention cache holds the tokens of all beams of a
sentence in its P slots. It is written in place (input `self_key_0` and output `next_self_key_0` may
be the same memory) and never reordered: `ancestry` says which slots are a beam's own past, and it
alone follows the beams when they are re-ranked (docs/adr/0002-ancestry-mask.md). A slot that is in
no beam's past any more is free for a new token, so that a cache holds what beams have in common
once (docs/adr/0003-shared-slots.md has the measurement).

Every row of every tensor with an axis N belongs to one sentence: a host may drop, swap or replace
rows between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.options import SearchOptions

#: Added to attention scores that must not count. Finite, so that no row can become NaN, and far
#: below any score, so that its exponential is exactly zero in float32 and bfloat16.
MASKED = -1e9

NEXT = "next_"

#: In `forced_tokens`: the sentence may go on with any token.
FREE = -1

#: In a place of a shortlist that no token has: the padding symbol, which is never written.
EMPTY = 0

#: Element types that caches may have.
CACHE_TYPES = ("float32", "float16", "bfloat16")


def given(token: int) -> int:
    """In `forced_tokens`: that token, whose log-probability does not count.

    Callers' prefixes and prompts (`Prompt`) are forced in this way.
    """
    return -2 - token


def forced_token(value: int) -> int:
    """The token that a value of `forced_tokens` other than FREE stands for."""
    return max(value, -2 - value)


def most_beams(choices: int) -> int:
    """Every step looks for a beam's best 2K + 1 tokens, so there must be as many to choose from."""
    return (choices - 1) // 2


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and axes (letters are dynamic) of one graph input or output."""

    name: str
    dtype: str
    axes: tuple[str | int, ...]


@dataclass(frozen=True)
class ShortlistForm:
    """How long the list of tokens is that a translation is made of, where there is one.

    Attributes:
        always: places for tokens that every sentence may use.
        each: further places for each source token, the end symbol included.
    """

    always: int
    each: int

    def places(self, source_size: int) -> int:
        """W for S source tokens."""
        return self.always + self.each * source_size


@dataclass(frozen=True)
class GraphForm:
    """How a target lays its graphs out.

    Attributes:
        beams: K, if they are made for one number of beams; None: for any.
        slots: P, if they are made for one number of slots, enough for every step; beam k of step t
            then writes slot t * K + k. None: for any number; a step writes to free slots and says
            when the next one would find too few.
        cache_type: of self- and cross-attention keys and values, one of CACHE_TYPES.
        shortlist: of the lists that the encoder makes; None: any token may come next.
    """

    beams: int | None = None
    slots: int | None = None
    cache_type: str = "float32"
    shortlist: ShortlistForm | None = None

    def choices(self, vocabulary_size: int) -> int:
        """So many tokens a beam has to choose from in any sentence (see `most_beams`)."""
        return vocabulary_size if self.shortlist is None else self.shortlist.always

    def source_sizes(self, source_size: int) -> dict[str, int]:
        """The axes that go with the length of the longest source, by their letters."""
        places = 0 if self.shortlist is None else self.shortlist.places(source_size)
        return {"S": source_size, "W": places}


@dataclass(frozen=True)
class GraphShape:
    """What the contract needs to know of a model.

    Attributes:
        decoder_layers: L.
        heads: H.
        key_size: columns of a head's queries and keys.
        value_size: columns of a head's values.
        attention: the step graph also returns cross-attention weights.
        form: how the graphs are laid out.
    """

    decoder_layers: int
    heads: int
    key_size: int
    value_size: int
    attention: bool = False
    form: GraphForm = GraphForm()

    def encoder_inputs(self) -> tuple[TensorSpec, ...]:
        """Token ids (end symbol included, padded with any valid id) and their counts."""
        return (
            TensorSpec("source_ids", "int64", ("N", "S")),
            TensorSpec("source_lengths", "int64", ("N",)),
        )

    def encoder_outputs(self) -> tuple[TensorSpec, ...]:
        """Cross-attention keys and values of every decoder layer, the padding mask, a shortlist.

        Tokens of a shortlist ascend; places without one hold EMPTY.
        """
        h, dk, dv = self.heads, self.key_size, self.value_size
        shortlist = (TensorSpec("shortlist", "int64", ("N", "W")),)
        return (
            TensorSpec("source_bias", "float32", ("N", 1, 1, "S")),
            *(shortlist if self.form.shortlist is not None else ()),
            *(
                spec
                for layer in range(self.decoder_layers)
                for spec in (
                    TensorSpec(f"cross_key_{layer}", self.form.cache_type, ("N", h, "S", dk)),
                    TensorSpec(f"cross_value_{layer}", self.form.cache_type, ("N", h, "S", dv)),
                )
            ),
        )

    def request(self) -> tuple[TensorSpec, ...]:
        """Step inputs that the caller sets: the same at every step, except the forced token."""
        return (
            TensorSpec("forced_tokens", "int64", ("N",)),  # or FREE, or one that is `given`
            TensorSpec("min_lengths", "int64", ("N",)),
            TensorSpec("max_lengths", "int64", ("N",)),
            TensorSpec("length_penalty_alpha", "float32", ("N",)),
            TensorSpec("length_penalty_beta", "float32", ("N",)),
            TensorSpec("early_stopping", "bool", ("N",)),  # a full pool ends the search
        )

    def caches(self) -> tuple[TensorSpec, ...]:
        """The part of `state` that a step writes in place."""
        h, p = self.heads, self.form.slots or "P"
        return tuple(
            TensorSpec(f"self_{kind}_{layer}", self.form.cache_type, ("N", h, p, size))
            for layer in range(self.decoder_layers)
            for kind, size in (("key", self.key_size), ("value", self.value_size))
        )

    def state(self) -> tuple[TensorSpec, ...]:
        """What a step hands to the next one, each as input `x` and output `next_x`."""
        k = "K" if self.form.beams is None else self.form.beams
        p = self.form.slots or "P"
        # Where the tokens of the live beams go: K free slots.
        slots = (TensorSpec("slots", "int64", ("N", k)),) if self.form.slots is None else ()
        return (
            TensorSpec("tokens", "int64", ("N", k)),  # token that each live beam ended with
            TensorSpec("log_probs", "float32", ("N", k)),  # cumulative, of the live beams
            TensorSpec("positions", "int64", ("N",)),  # tokens generated so far, until done
            TensorSpec("done", "bool", ("N",)),
            # The pool of finished hypotheses, best first, behind them those that were cut off (rule
            # 6); empty places score minus infinity.
            TensorSpec("finished_scores", "float32", ("N", k)),
            TensorSpec("finished_lengths", "int64", ("N", k)),  # with the end symbol
            TensorSpec(
                "finished_parents", "int64", ("N", k)
            ),  # live beam that ended, or was cut off
            TensorSpec("finished_truncated", "bool", ("N", k)),  # cut off
            TensorSpec("ancestry", "float32", ("N", k, p)),  # 0 own past, MASKED all else
            *slots,
            *self.caches(),
        )

    def step_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the step graph, in order."""
        return (*self.encoder_outputs(), *self.request(), *self.state())

    def step_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the step graph, in order.

        `attention` is that of the live beams *before* selection: row k tells what beam k looked at
        when it scored its continuations.
        """
        k = "K" if self.form.beams is None else self.form.beams
        return (
            TensorSpec("parents", "int64", ("N", k)),
            *(TensorSpec(NEXT + spec.name, spec.dtype, spec.axes) for spec in self.state()),
            # Fewer than K slots are free: the next step needs a larger P.
            *((TensorSpec("full", "bool", ("N",)),) if self.form.slots is None else ()),
            *((TensorSpec("attention", "float32", ("N", k, "S")),) if self.attention else ()),
        )

    def initial_state(
        self,
        sentences: int,
        beams: int,
        start_token: int,
        slots: int | None = None,
    ) -> dict[str, NDArray[np.generic]]:
        """State before the first step: one live hypothesis per sentence, nothing finished.

        Args:
            sentences: N.
            beams: K.
            start_token: the decoder's start symbol.
            slots: P, at least K, where the form leaves it open; None: K.
        """
        sizes: dict[str | int, int] = {"N": sentences, "K": beams, "P": slots or beams}
        state: dict[str, NDArray[np.generic]] = {}
        for spec in self.state():
            shape = tuple(sizes.get(axis, axis) for axis in spec.axes)
            # numpy has no bfloat16; zeros are the same bytes in any type of two.
            dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
            state[spec.name] = np.zeros(shape, np.dtype(dtype))  # type: ignore[arg-type]
        state["ancestry"] = np.full_like(state["ancestry"], MASKED)  # nothing is written yet
        if self.form.slots is None:
            state["slots"] = np.tile(np.arange(beams, dtype=np.int64), (sentences, 1))
        state["tokens"] = np.full((sentences, beams), start_token, dtype=np.int64)
        state["finished_scores"] = np.full((sentences, beams), -np.inf, dtype=np.float32)
        log_probs = np.full((sentences, beams), -np.inf, dtype=np.float32)
        log_probs[:, 0] = 0.0
        state["log_probs"] = log_probs
        return state


def request_values(
    options: Sequence[SearchOptions], max_lengths: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The inputs of `GraphShape.request` for sentences that are free.

    Args:
        options: of each.
        max_lengths: [N].
    """

    def values(name: str, dtype: Any) -> NDArray[Any]:
        return np.array([getattr(one, name) for one in options], dtype=dtype)

    return {
        "forced_tokens": np.full(len(options), FREE, dtype=np.int64),
        "min_lengths": values("min_length", np.int64),
        "max_lengths": max_lengths,
        "length_penalty_alpha": values("length_penalty", np.float32),
        "length_penalty_beta": values("length_penalty_beta", np.float32),
        "early_stopping": values("early_stopping", np.bool_),
    }

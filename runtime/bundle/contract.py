"""What passes between the graphs of a target and the host: inputs, outputs, and how they begin.

Export declares it (`translate_trt.export.contract`) and writes it into the manifest of a bundle;
whoever runs the graphs reads it there (`translate_trt.runtime.bundle.contract_fields`).

Letters: N sentences, K beams, S source tokens with the end symbol, P slots of a cache, W places of
a shortlist.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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

#: Element types of all inputs and outputs.
TYPES = ("int64", "bool", *CACHE_TYPES)


def unscored(token: int) -> int:
    """In `forced_tokens`: that token, whose log-probability does not count.

    Callers' prefixes and prompts (`Prompt`) are forced in this way.
    """
    return -2 - token


def forced_token(value: int) -> int:
    """The token that a value of `forced_tokens` other than FREE stands for."""
    return max(value, -2 - value)


def max_beams(choices: int) -> int:
    """Every step looks for a beam's best 2K + 1 tokens, so there must be as many to choose from."""
    return (choices - 1) // 2


def _first_lives(row: NDArray[Any], start_token: int) -> None:
    row[:] = -np.inf
    row.flat[0] = 0


def _ascend(row: NDArray[Any], start_token: int) -> None:
    row[:] = np.arange(row.size).reshape(row.shape)


#: What a sentence's part of the state is before the first step, by the name in the manifest: from
#: an array of one sentence and the decoder's start symbol.
INITIAL: dict[str, Callable[[NDArray[Any], int], None]] = {
    "zeros": lambda row, _: row.fill(0),
    "start_token": lambda row, start_token: row.fill(start_token),
    "masked": lambda row, _: row.fill(MASKED),  # nothing is written yet
    "minus_infinity": lambda row, _: row.fill(-np.inf),
    "first_lives": _first_lives,  # 0, and minus infinity for all other beams
    "ascending": _ascend,  # 0, 1, 2, ...
}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Attributes:
        name: of the input; of state, the output has `NEXT` before it.
        dtype: element type, one of `TYPES`.
        axes: letters are dynamic.
        initial: of state: one of `INITIAL`.
        in_place: of state: a step writes it where it is.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]
    initial: str = "zeros"
    in_place: bool = False

    @property
    def following(self) -> TensorSpec:
        """Of state, the output that a step hands to the next one."""
        return TensorSpec(NEXT + self.name, self.dtype, self.axes)


@dataclass(frozen=True)
class ShortlistForm:
    """How long the list of tokens is that a translation is made of, where there is one.

    Attributes:
        always: places for tokens that every sentence may use.
        each: further places for each source token, the end symbol included.
    """

    always: int
    each: int

    def width(self, source_size: int) -> int:
        """W for S source tokens."""
        return self.always + self.each * source_size


@dataclass(frozen=True)
class Contract:
    """Inputs and outputs of both graphs of a target, each in order.

    Attributes:
        encoder_inputs: token ids (end symbol included, padded with any valid id) and their counts.
        encoder_outputs: what every step takes of the source: the padding mask, keys and values of
            every decoder layer's cross-attention, and a shortlist, whose tokens ascend.
        request: step inputs that the caller sets: the same at every step, except the forced token.
        state: what a step hands to the next one, each as input `x` and output `next_x`.
        results: further outputs of the step. `attention` is that of the live beams *before*
            selection: row k tells what beam k looked at when it scored its continuations.
        shortlist: of the lists that the encoder makes; None: any token may come next.
    """

    encoder_inputs: tuple[TensorSpec, ...]
    encoder_outputs: tuple[TensorSpec, ...]
    request: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    shortlist: ShortlistForm | None = None

    @cached_property
    def beams(self) -> int | None:
        """K, if the graphs are made for one number of beams; None: for any."""
        return _size(self.state, "tokens", 1)

    @cached_property
    def slots(self) -> int | None:
        """P, if the graphs are made for one number of slots, enough for every step.

        Beam k of step t then writes slot t * K + k. None: for any number; a step writes to free
        slots and says when the next one would find too few.
        """
        return _size(self.state, "ancestry", 2)

    @property
    def attention(self) -> bool:
        """The step graph also returns cross-attention weights."""
        return any(spec.name == "attention" for spec in self.results)

    @property
    def caches(self) -> tuple[TensorSpec, ...]:
        """The part of `state` that a step writes in place."""
        return tuple(spec for spec in self.state if spec.in_place)

    @property
    def step_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the step graph, in order."""
        return (*self.encoder_outputs, *self.request, *self.state)

    @property
    def step_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the step graph, in order."""
        parents, *others = self.results
        return (parents, *(spec.following for spec in self.state), *others)

    @property
    def graphs(self) -> dict[str, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]]:
        """Inputs and outputs of both graphs, by the graph's name."""
        return {
            "encoder": (self.encoder_inputs, self.encoder_outputs),
            "step": (self.step_inputs, self.step_outputs),
        }

    def choices(self, vocabulary_size: int) -> int:
        """So many tokens a beam has to choose from in any sentence (see `max_beams`)."""
        return vocabulary_size if self.shortlist is None else self.shortlist.always

    def source_sizes(self, source_size: int) -> dict[str, int]:
        """The axes that go with the length of the longest source, by their letters."""
        width = 0 if self.shortlist is None else self.shortlist.width(source_size)
        return {"S": source_size, "W": width}

    def with_types(self, types: Mapping[str, str]) -> Contract:
        """The same with other element types in place of some."""

        def changed(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
            return tuple(replace(spec, dtype=types.get(spec.dtype, spec.dtype)) for spec in specs)

        return replace(
            self, encoder_outputs=changed(self.encoder_outputs), state=changed(self.state)
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
            slots: P, at least K, where the contract leaves it open; None: K.
        """
        sizes: dict[str | int, int] = {"N": sentences, "K": beams, "P": slots or beams}
        state: dict[str, NDArray[np.generic]] = {}
        for spec in self.state:
            shape = tuple(sizes.get(axis, axis) for axis in spec.axes)
            # numpy has no bfloat16; zeros are the same bytes in any type of two.
            dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
            state[spec.name] = np.zeros(shape, np.dtype(dtype))  # type: ignore[arg-type]
            if spec.initial != "zeros" and sentences:
                row = state[spec.name][0]
                INITIAL[spec.initial](row, start_token)
                state[spec.name][1:] = row
        return state


def _size(specs: Sequence[TensorSpec], name: str, axis: int) -> int | None:
    """That axis of a tensor, if it is a number."""
    (size,) = (spec.axes[axis] for spec in specs if spec.name == name)
    return size if isinstance(size, int) else None


def request_values(
    options: Sequence[SearchOptions], max_lengths: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The inputs of `Contract.request` for sentences that are free.

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

"""I/O contract between the graphs of a target and the host: tensors and their initial values.

Export declares the contract (`translate_trt.export.contract`) and writes it into the manifest; the
host reads it from there (`translate_trt.runtime.bundle.contract_fields`).

Axes: N sentences, K beams, S source tokens with the end symbol, P cache slots, W shortlist entries,
B marked tokens of a beam, R candidates of a beam that a sample is drawn from, U different tokens of
a sentence's constraints.
Caches of static size have C slots, of which attention reads the first P.

In each step the host feeds every output `next_x` back as input `x`, records (`next_tokens`,
`parents`, `next_log_probs`) for the back-trace, and reads `next_done` and `full`.

Beams are *query positions* of their sentence in both attentions. Cross-attention keys and values
are therefore never tiled K times, and a self-attention cache holds the tokens of all beams of a
sentence in its P slots. The cache is written in place (input `self_key_0` and output
`next_self_key_0` may share memory) and never reordered: the mask `ancestry` marks the slots of each
beam's own history, and only this mask follows the beams when they are re-ranked
(docs/adr/0002-ancestry-mask.md). A slot outside every beam's history is free for a new token, and
beams share the slots of their common history (docs/adr/0003-shared-slots.md has the measurement).

Decoders with recurrent layers have neither caches nor an ancestry: the state of each beam is one
vector per layer (`ssru_state_0`), which the step reorders by `parents`.

Members of an ensemble extend the same beams: they share the search state, `ancestry` and `slots`.
Names of their own tensors have the member's number: `self_key_m1_0` belongs to the second member.

Each row along an axis N belongs to one sentence: a host may drop, swap or replace rows between two
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.interface.tensors import TENSORS
from translate_trt.runtime.options import SearchOptions

#: Bias of masked attention scores. A finite value keeps rows from becoming NaN; its exponential is
#: exactly zero in float32 and bfloat16.
MASKED = -1e9

NEXT = "next_"

#: Value of `forced_tokens` that allows any token.
FREE = -1

#: Value of unused entries of `marked_tokens`, and of those at the end of `tail_tokens` and
#: `constraint_tokens`.
UNMARKED = -1

#: Value of unused shortlist entries: the padding symbol, which is never generated.
EMPTY = 0

#: Element types of caches.
CACHE_TYPES = ("float32", "float16", "bfloat16")

#: Element types of all inputs and outputs.
TYPES = ("int64", "bool", *CACHE_TYPES)


def unscored(token: int) -> int:
    """Encode a token for `forced_tokens` that is forced with log-probability 0.

    Target prefixes and prompts (`Prompt`) are forced in this way.
    """
    return -2 - token


def forced_token(value: int) -> int:
    """Decode a value of `forced_tokens` other than FREE."""
    return max(value, -2 - value)


def max_beams(choices: int) -> int:
    """Largest beam size K for a number of candidate tokens: a step selects 2K + 1 per beam.

    With B marked tokens, samples of R candidates and U tokens of constraints a step selects
    B + R + U more candidates, or all tokens if they are fewer.
    """
    return (choices - 1) // 2


def _first_lives(row: NDArray[Any], start_token: int) -> None:
    row[:] = -np.inf
    row.flat[0] = 0


def _ascend(row: NDArray[Any], start_token: int) -> None:
    row[:] = np.arange(row.size).reshape(row.shape)


#: Functions that fill one row of a state tensor before the first step, by their names in the
#: manifest. The second argument is the decoder's start symbol.
INITIAL: dict[str, Callable[[NDArray[Any], int], None]] = {
    "zeros": lambda row, _: row.fill(0),
    "start_token": lambda row, start_token: row.fill(start_token),
    "masked": lambda row, _: row.fill(MASKED),  # no slot is written yet
    "minus_infinity": lambda row, _: row.fill(-np.inf),
    "first_lives": _first_lives,  # 0 for the first beam, minus infinity for the others
    "ascending": _ascend,  # 0, 1, 2, ...
}


@dataclass(frozen=True)
class TensorSpec:
    """Input or output of a graph.

    Attributes:
        name: Name of the input or output; the output of a state tensor has the prefix `NEXT`.
        dtype: Element type, one of `TYPES`.
        axes: Sizes; letters stand for dynamic sizes.
        initial: Initial value of a state tensor, a key of `INITIAL`.
        in_place: True for state tensors that a step updates in place.
    """

    name: str
    dtype: str
    axes: tuple[str | int, ...]
    initial: str = "zeros"
    in_place: bool = False

    @property
    def following(self) -> TensorSpec:
        """The step output that holds the next value of this state tensor."""
        return TensorSpec(NEXT + self.name, self.dtype, self.axes)


@dataclass(frozen=True)
class ShortlistForm:
    """Size of the shortlist, the list of candidate tokens of a sentence.

    Attributes:
        always: Number of entries for tokens that every sentence may use.
        each: Number of further entries per source token, the end symbol included.
    """

    always: int
    each: int

    def width(self, source_size: int) -> int:
        """Shortlist width W for S source tokens."""
        return self.always + self.each * source_size


@dataclass(frozen=True)
class Contract:
    """Inputs and outputs of both graphs of a target, in order.

    Attributes:
        encoder_inputs: Token ids (end symbol included, padded with any valid id) and their counts.
        encoder_outputs: Source-dependent inputs of every step: the padding mask, cross-attention
            keys and values of every decoder layer, and a shortlist of ascending tokens.
        request: Step inputs set by the caller; only forced and marked tokens, the noise of samples
            and the progress of constraints change between steps.
        state: Tensors passed from step to step, each as input `x` and output `next_x`.
        results: Other step outputs. `attention` belongs to the live beams *before* selection: row
            k is the attention with which beam k scored its continuations.
        shortlist: Size of the encoder's shortlists; None if every token is a candidate.
    """

    encoder_inputs: tuple[TensorSpec, ...]
    encoder_outputs: tuple[TensorSpec, ...]
    request: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    shortlist: ShortlistForm | None = None

    @cached_property
    def beams(self) -> int | None:
        """Static beam size K of the graphs; None if it is dynamic."""
        return _size(self.state, "tokens", 1)

    @cached_property
    def slots(self) -> int | None:
        """Static number of cache slots C, enough for every step; None if it is dynamic.

        With a static number, beam k of step t writes slot t * K + k. Otherwise a step writes to
        free slots and reports when too few are left for the next step. 0 without caches.
        """
        if caches := self.caches:
            return _size(caches, caches[0].name, 2)
        return None if any(spec.name == "ancestry" for spec in self.state) else 0

    @property
    def attention(self) -> bool:
        """True if the step graph returns cross-attention weights."""
        return any(spec.name == "attention" for spec in self.results)

    @property
    def marks(self) -> bool:
        """True if the step graph has the inputs of rules 13 to 15: marks, samples, constraints."""
        return any(spec.name == "marked_tokens" for spec in self.request)

    @property
    def caches(self) -> tuple[TensorSpec, ...]:
        """State tensors that a step updates in place."""
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
        """Minimum number of candidate tokens of a beam in any sentence (see `max_beams`)."""
        return vocabulary_size if self.shortlist is None else self.shortlist.always

    def with_types(self, types: Mapping[str, str]) -> Contract:
        """Return a copy with element types of encoder outputs and state replaced."""

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
        """Create the state before the first step: one live hypothesis per sentence.

        Args:
            sentences: Number of sentences N.
            beams: Beam size K.
            start_token: The decoder's start symbol.
            slots: Number of cache slots P, at least K; None means all slots of static caches, and
                K slots of dynamic ones.
        """
        if slots is None:
            slots = beams if self.slots is None else self.slots
        sizes: dict[str | int, int] = {"N": sentences, "K": beams, "P": slots}
        state: dict[str, NDArray[np.generic]] = {}
        for spec in self.state:
            shape = tuple(sizes.get(axis, axis) for axis in spec.axes)
            # NumPy has no bfloat16; zeros are the same bytes in any two-byte type.
            dtype = "uint16" if spec.dtype == "bfloat16" else spec.dtype
            state[spec.name] = np.zeros(shape, np.dtype(dtype))  # type: ignore[arg-type]
            if spec.initial != "zeros" and sentences:
                row = state[spec.name][0]
                INITIAL[spec.initial](row, start_token)
                state[spec.name][1:] = row
        return state


def _size(specs: Sequence[TensorSpec], name: str, axis: int) -> int | None:
    """Size of one axis of a tensor; None if it is dynamic."""
    axes = next((spec.axes for spec in specs if spec.name == name), ())
    size = axes[axis] if axis < len(axes) else None
    return size if isinstance(size, int) else None


def check_tensors(what: str, found: Mapping[str, object], declared: Mapping[str, object]) -> None:
    """Refuse a graph or an engine whose inputs and outputs are not those of its contract.

    Args:
        what: The file or the engine, for the message.
        found: Kind of each input and output, such as its type, by name.
        declared: Kinds that the contract declares.

    Raises:
        BundleError: They differ.
    """
    if found != declared:
        names = found.keys() | declared.keys()
        differing = sorted(name for name in names if found.get(name) != declared.get(name))
        raise BundleError(
            f"{what} does not have the inputs and outputs that this version expects (they differ "
            f"in {', '.join(differing)}); it was exported by another version. Export the bundle "
            "again."
        )


def check_in_place(what: str, inputs: Mapping[str, str | None]) -> None:
    """Refuse a step that does not update its caches in place.

    Args:
        what: The file or the engine, for the message.
        inputs: Input that the output of each cache is written to, by the name of the cache.

    Raises:
        BundleError: The output of a cache is not an alias of its input.
    """
    for name, written in inputs.items():
        if written != name:
            raise BundleError(
                f"{what} does not write {name} in place, which this version relies on. Export the "
                "bundle again."
            )


def request_values(
    options: Sequence[SearchOptions],
    max_lengths: NDArray[np.int64],
    marked_beams: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Create the inputs of `Contract.request` without forced tokens, marks, samples or constraints.

    Args:
        options: Search options of each sentence.
        max_lengths: [N] maximum lengths.
        marked_beams: Beam size K of graphs with `Contract.marks`; None for others.
    """
    sizes = {"N": len(options), "K": marked_beams or 0}
    request: dict[str, NDArray[Any]] = {}
    for tensor in TENSORS["request"]:
        if tensor.when and marked_beams is None:
            continue
        values = np.zeros([sizes.get(axis, 0) for axis in tensor.axes.split()], tensor.dtype)
        if tensor.option:
            values[:] = [getattr(one, tensor.option) for one in options]
        request[tensor.name] = values
    request["forced_tokens"].fill(FREE)
    request["max_lengths"] = max_lengths
    return request

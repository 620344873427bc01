"""The table of tensors: inputs and outputs of a target's graphs.

Axes and groups are those of `translate_trt.runtime.bundle.contract`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Letters of sizes that are known only when a batch runs.
LETTERS = "NKSPWBRUD"

#: Letters that a target may replace by a size of its own, for graphs of static shapes.
STATIC = "KBRUD"

#: What a tensor depends on: a shortlist; inputs of rules 13 to 15; self-attention with caches;
#: slots of caches that a step selects; recurrent layers; biases of relative positions of such
#: slots; cross-attention among the results.
Condition = Literal[
    "", "shortlist", "marks", "caches", "free_slots", "recurrent", "relative", "attention"
]


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph.

    Attributes:
        name: Name; the output of a tensor of the state has the prefix `next_`. A name with {layer},
            {kind} (key or value) or {member} (of an ensemble) declares one tensor for each.
        dtype: Element type; "cache" is that of the target's caches.
        axes: Sizes with spaces between them: letters, numbers, and sizes of the model by name.
        when: Condition of its presence.
        initial: Initial value of a tensor of the state.
        in_place: Whether a step updates it in place.
        option: Property of `SearchOptions` whose values a tensor of the request holds.
    """

    name: str
    dtype: str
    axes: str
    when: Condition = ""
    initial: str = "zeros"
    in_place: bool = False
    option: str = ""

    @property
    def of_layers(self) -> bool:
        """Whether there is one for each layer, of which the host only needs the size."""
        return "{layer}" in self.name


#: Tensors by group, in order.
TENSORS = {
    "encoder_inputs": (
        Tensor("source_ids", "int64", "N S"),
        Tensor("source_lengths", "int64", "N"),
    ),
    "encoder_outputs": (
        Tensor("source_bias", "float32", "N 1 1 S"),
        Tensor("shortlist", "int64", "N W", "shortlist"),
        Tensor("cross_{kind}_{member}{layer}", "cache", "N heads S size"),
    ),
    "request": (
        Tensor("forced_tokens", "int64", "N"),  # or FREE, or `unscored` of a token
        Tensor("min_lengths", "int64", "N", option="min_length"),
        Tensor("max_lengths", "int64", "N"),
        Tensor("length_penalty_alpha", "float32", "N", option="length_penalty"),
        Tensor("length_penalty_beta", "float32", "N", option="length_penalty_beta"),
        # Rule 5: hypotheses that no live beam may beat, and whether a full pool ends the search.
        Tensor("num_hypotheses", "int64", "N", option="num_hypotheses"),
        Tensor("early_stopping", "bool", "N", option="early_stopping"),
        # Rule 13: tokens of each beam, UNMARKED in unused entries, and factors of their
        # log-probabilities. A factor of infinity bans its token.
        Tensor("marked_tokens", "int64", "N K B", "marks"),
        Tensor("marked_factors", "float32", "N K B", "marks"),
        # Rule 14: the noise of a sentence's candidates by rank, minus infinity for those that
        # cannot be drawn, two options, and tokens that may be drawn, too, with their noise. Unused
        # tokens at the end are UNMARKED.
        Tensor("sampling_noise", "float32", "N R", "marks"),
        Tensor("sampling_temperature", "float32", "N", "marks", option="sampling_temperature"),
        Tensor("sampling_top_p", "float32", "N", "marks", option="sampling_top_p"),
        Tensor("tail_tokens", "int64", "N D", "marks"),
        Tensor("tail_noise", "float32", "N D", "marks"),
        # Rule 15: the different tokens of a sentence's constraints, UNMARKED at the end, the
        # progress of each beam if it is continued by each of these, and if by any other token.
        Tensor("constraint_tokens", "int64", "N U", "marks"),
        Tensor("constraint_progress", "int64", "N K U", "marks"),
        Tensor("other_progress", "int64", "N K", "marks"),
    ),
    "state": (
        # Last token and cumulative log-probability of each live beam.
        Tensor("tokens", "int64", "N K", initial="start_token"),
        Tensor("log_probs", "float32", "N K", initial="first_lives"),
        Tensor("positions", "int64", "N"),  # tokens generated so far, until done
        Tensor("done", "bool", "N"),
        # The pool of finished hypotheses, best first, then those that were cut off (rule 6):
        # scores, minus infinity in empty entries; lengths with the end symbol; the live beam that
        # each ended from or, if it was cut off, is; and whether it was cut off.
        Tensor("finished_scores", "float32", "N K", initial="minus_infinity"),
        Tensor("finished_lengths", "int64", "N K"),
        Tensor("finished_parents", "int64", "N K"),
        Tensor("finished_truncated", "bool", "N K"),
        Tensor("ssru_state_{member}{layer}", "float32", "N K width", "recurrent"),
        # 0 for slots in a beam's past, MASKED for all others.
        Tensor("ancestry", "float32", "N K P", "caches", initial="masked"),
        # Slots for the tokens of the live beams: K free ones.
        Tensor("slots", "int64", "N K", "free_slots", initial="ascending"),
        # The position of the token in each slot, kept like a cache.
        Tensor("slot_positions", "int64", "N 1 P 1", "relative", in_place=True),
        Tensor("self_{kind}_{member}{layer}", "cache", "N heads P size", "caches", in_place=True),
    ),
    "results": (
        Tensor("parents", "int64", "N K"),
        # Whether fewer than K slots are free, so that the next step needs a larger P.
        Tensor("full", "bool", "N", "free_slots"),
        Tensor("attention", "float32", "N K S", "attention"),
    ),
}

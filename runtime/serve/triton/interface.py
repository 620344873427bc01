"""What goes in and out of the model: the configuration, the model and its tests read it here.

Every tensor has the sentences of a request as its first axis, which `shape` leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

from translate_trt.runtime.options import SearchOptions

#: Of the model's parameters in its configuration; another version's repository is refused.
FORMAT = "3"

#: Fills up rows of tokens; no token has this id.
NO_TOKEN = -1

#: The score of what fills up rows of hypotheses, below all scores; JSON has no infinity.
NO_SCORE = -3e38


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        data_type: as Triton calls it, without TYPE_.
        shape: of a sentence; -1 is any size.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]


# A sentence comes as text or as tokens. Both are inputs of one model, so that the weights are in
# memory once and all sentences wait in one queue.
TEXT = Tensor("TEXT", "STRING", (1,))
TOKENS = Tensor("TOKENS", "INT32", (-1,))  # shorter rows of a request are filled with NO_TOKEN

_DATA_TYPES: dict[Any, str] = {
    bool: "BOOL",
    int: "INT32",
    int | None: "INT32",
    float: "FP64",  # as in Python, so that 0.6 is the bundle's 0.6
    str: "STRING",
    str | None: "STRING",
}

#: By the field of SearchOptions that it sets. Attention would be a matrix per hypothesis; it is for
#: looking at, not for serving.
OPTIONS: dict[str, Tensor] = {
    name: Tensor(name.upper(), _DATA_TYPES[kind], (1,))
    for name, kind in get_type_hints(SearchOptions).items()
    if name != "return_attention"
}

INPUTS = (TEXT, TOKENS, *OPTIONS.values())

# Best hypotheses first. Rows have as many as the request's largest NUM_HYPOTHESES; what a sentence
# has fewer is filled with empty ones of NO_SCORE.
TRANSLATION = Tensor("TRANSLATION", "STRING", (-1,))
SCORE = Tensor("SCORE", "FP64", (-1,))
TRUNCATED = Tensor("TRUNCATED", "BOOL", (-1,))  # the maximum length came before the end symbol
TRANSLATION_TOKENS = Tensor("TRANSLATION_TOKENS", "INT32", (-1, -1))  # filled with NO_TOKEN
COUNT = Tensor("COUNT", "INT32", (1,))  # hypotheses that are none of those fills

OUTPUTS = (TRANSLATION, SCORE, TRUNCATED, TRANSLATION_TOKENS, COUNT)

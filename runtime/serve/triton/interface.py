"""Inputs and outputs of the Triton model, for its configuration and its implementation.

The first axis of every tensor, the sentences of a request, is not part of its `shape`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

from translate_trt.runtime.options import SearchOptions

#: Format of the parameters in the model's configuration; repositories of other formats are refused.
FORMAT = "8"

#: Padding of token rows, which is not a valid token id.
NO_TOKEN = -1

#: Padding of confidences.
NO_CONFIDENCE = -1.0

#: Padding of log-probabilities, which are not positive.
NO_LOG_PROB = 1.0

#: Score of padding hypotheses, below all real scores; JSON has no infinity.
NO_SCORE = -3e38


@dataclass(frozen=True)
class Tensor:
    """An input or output.

    Attributes:
        name: Name of the tensor.
        data_type: Triton's data type without the prefix TYPE_.
        shape: Shape per sentence; -1 is a dynamic size.
    """

    name: str
    data_type: str
    shape: tuple[int, ...]


# A request contains text or tokens. One model has both inputs: the weights are in memory once, and
# all sentences share one queue.
TEXT = Tensor("TEXT", "STRING", (1,))
TOKENS = Tensor("TOKENS", "INT32", (-1,))  # shorter rows of a request are filled with NO_TOKEN
TARGET_PREFIX = Tensor("TARGET_PREFIX", "STRING", (1,))
SCORE_PREFIX = Tensor("SCORE_PREFIX", "BOOL", (1,))  # the prefix is a whole translation
CONSTRAINTS = Tensor("CONSTRAINTS", "STRING", (1,))  # phrases between tabs
TERMINOLOGY = Tensor("TERMINOLOGY", "STRING", (1,))  # lines of a glossary
MARKUP = Tensor("MARKUP", "STRING", (1,))  # html, xml, text, or nothing
SPLIT_SENTENCES = Tensor("SPLIT_SENTENCES", "BOOL", (1,))
TRANSLATE_ALL = Tensor("TRANSLATE_ALL", "BOOL", (1,))  # also text without letters
DOCUMENT = Tensor("DOCUMENT", "BOOL", (1,))  # the text has lines, which are kept
RETURN_ALIGNMENTS = Tensor("RETURN_ALIGNMENTS", "BOOL", (1,))
RETURN_WORDS = Tensor("RETURN_WORDS", "BOOL", (1,))
RETURN_ERRORS = Tensor("RETURN_ERRORS", "BOOL", (1,))  # otherwise an error fails the request

_DATA_TYPES: dict[Any, str] = {
    bool: "BOOL",
    int: "INT32",
    int | None: "INT32",
    float: "FP64",  # the same precision as in Python: 0.6 equals the bundle's 0.6
    str: "STRING",
    str | None: "STRING",
}

#: Option tensors by field of SearchOptions. Attention, a matrix per hypothesis, is not served.
OPTIONS: dict[str, Tensor] = {
    name: Tensor(name.upper(), _DATA_TYPES[kind], (1,))
    for name, kind in get_type_hints(SearchOptions).items()
    if name != "return_attention"
}

INPUTS = (
    TEXT, TOKENS, TARGET_PREFIX, SCORE_PREFIX, CONSTRAINTS, TERMINOLOGY, MARKUP, SPLIT_SENTENCES,
    TRANSLATE_ALL, DOCUMENT, RETURN_ALIGNMENTS, RETURN_WORDS, RETURN_ERRORS, *OPTIONS.values(),
)  # fmt: skip

# Hypotheses are sorted best first, alternatives by their tokens. The number of columns is the
# request's largest NUM_HYPOTHESES or ALTERNATIVES; rows with fewer hypotheses are padded with empty
# ones of NO_SCORE.
TRANSLATION = Tensor("TRANSLATION", "STRING", (-1,))
SCORE = Tensor("SCORE", "FP64", (-1,))
TRUNCATED = Tensor("TRUNCATED", "BOOL", (-1,))  # maximum length reached before the end symbol
TRANSLATION_TOKENS = Tensor("TRANSLATION_TOKENS", "INT32", (-1, -1))  # filled with NO_TOKEN
TOKEN_LOG_PROBS = Tensor("TOKEN_LOG_PROBS", "FP32", (-1, -1))  # filled with NO_LOG_PROB
COUNT = Tensor("COUNT", "INT32", (1,))  # number of hypotheses without the padding
# Both are empty unless the request asks for them, since clients that name no outputs get all.
ALIGNMENTS = Tensor("ALIGNMENTS", "STRING", (-1,))  # in Pharaoh format
WORD_CONFIDENCES = Tensor("WORD_CONFIDENCES", "FP32", (-1, -1))  # filled with NO_CONFIDENCE
ERROR = Tensor("ERROR", "STRING", (1,))  # of a sentence, which then has no hypotheses

OUTPUTS = (
    TRANSLATION, SCORE, TRUNCATED, TRANSLATION_TOKENS, TOKEN_LOG_PROBS, COUNT, ALIGNMENTS,
    WORD_CONFIDENCES, ERROR,
)  # fmt: skip

"""Decoding options, passed through all layers as one frozen object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.interface.search_options import (
    MAX_COUNT,
    MAX_SUPPRESSED,
    OPTIONS,
    Option,
)

#: Beta of the length penalty ((beta + n) / (beta + 1)) ** alpha for n tokens, by form: "gnmt" is
#: the paper's (Wu et al. 2016, equation 14), "length" is n ** alpha as in fairseq, CTranslate2 and
#: Hugging Face.
LENGTH_PENALTY_BETA = {"gnmt": 5.0, "length": 0.0}


def whole_number(name: str, value: object) -> int:
    """Convert an integer option, which may be a NumPy integer, to a Python int.

    Raises:
        OptionError: The value is not an integer; True and 2.0 are rejected too.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{name} is {value!r}; it must be a whole number.")
    return int(value)


def check_least(least: int, **values: object) -> None:
    """Refuse values that are not whole numbers of at least `least`; None is not given.

    Raises:
        OptionError: A value is something else.
    """
    for name, value in values.items():
        if value is not None and whole_number(name, value) < least:
            raise OptionError(f"{name} is {value}; it must be at least {least}.")


def read_sequences(text: str) -> list[list[int]]:
    """Read the token sequences of `suppress_sequences`.

    Args:
        text: Tokens apart by spaces, sequences by commas, such as "12 40, 7".

    Raises:
        OptionError: The text has another form.
    """
    sequences = [part.split() for part in text.split(",")]
    problems = [
        f"{word!r} is not a token"
        for sequence in sequences
        for word in sequence
        if not re.fullmatch("[0-9]{1,9}", word)
    ] + ["a sequence has no tokens"] * (not all(sequences))
    if len(sequences) > MAX_SUPPRESSED:
        raise OptionError(
            f"suppress_sequences has {len(sequences)} sequences; it may have up to "
            f"{MAX_SUPPRESSED}."
        )
    if problems:
        raise OptionError(
            f"suppress_sequences is {text!r}; {problems[0]}. Write tokens with spaces between them "
            'and commas between sequences, such as "12 40, 7".'
        )
    return [[int(word) for word in sequence] for sequence in sequences]


def write_sequences(sequences: Iterable[Sequence[int]]) -> str | None:
    """Write token sequences as `read_sequences` reads them; None if there are none."""
    return ", ".join(" ".join(map(str, sequence)) for sequence in sequences) or None


def _checked(option: Option, value: Any) -> Any:
    """Convert numbers of NumPy to those of Python, and check type and range."""
    name = option.name
    if value is None and option.default is None:
        return None
    if option.kind == "count":
        value = whole_number(name, value)
        if value > MAX_COUNT:
            raise OptionError(f"{name} is {value}; it must be at most {MAX_COUNT}.")
    elif option.kind == "number":
        if isinstance(value, bool) or not isinstance(value, Real):
            raise OptionError(f"{name} is {value!r}; it must be a number.")
        try:
            value = float(value)
        except OverflowError as error:
            raise OptionError(f"{name} is larger than any number that is stored.") from error
    elif option.kind == "flag":
        if not isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}; it must be True or False.")
        return value
    elif not isinstance(value, str):
        raise OptionError(f"{name} is {value!r}; it must be a string.")
    elif option.kind == "text":
        return value
    if option.choices:
        fits = value in option.choices
    else:  # False for NaN
        fits = option.least <= value <= option.most and not (option.above and value == option.least)
    if not fits:
        raise OptionError(f"{name} is {value!r}; {option.wanted}.")
    return value


@dataclass(frozen=True)
class SearchOptions:
    """Options of the beam search, which docs/beam-search.md specifies.

    Raises:
        OptionError: A value has the wrong type or is out of range, or options exclude each other.
    """

    # ---- fields, made by scripts/declare.py ----
    #: Live hypotheses per sentence; 1 is greedy search.
    beam_size: int = 4
    #: Alpha of the length penalty; 0 favours short output.
    length_penalty: float = 0.6
    #: Form of the length penalty: gnmt is ((5 + n) / 6) ** alpha, as in the paper; length is n **
    #: alpha.
    length_penalty_form: str = "gnmt"
    #: Stop once beam_size hypotheses have finished, even if others may improve.
    early_stopping: bool = False
    #: Longest translation in tokens, the end symbol included; unset: the length of the source +
    #: max_extra_length.
    max_length: int | None = None
    #: Minimum length: the end symbol is not a candidate earlier.
    min_length: int = 0
    #: Best hypotheses to return, at most beam_size.
    num_hypotheses: int = 1
    #: Return the cross-attention of the layer and heads that the export chose.
    return_attention: bool = False
    #: Language of the source, by the model's own code, such as en or eng_Latn; unset: the bundle's
    #: default.
    source_language: str | None = None
    #: Language to translate into, by the model's own code; unset: the bundle's default.
    target_language: str | None = None
    #: End a translation that repeats one phrase without end, and keep the phrase once.
    loop_guard: bool = False
    #: A translation for each of the n most likely tokens after the target prefix, the most likely
    #: first; needs num_hypotheses 1.
    alternatives: int = 0
    #: Leave out alternatives whose token is less likely, except the most likely one.
    min_alternative_prob: float = 0.0
    #: Factor from 1 to 1000 of the log-probabilities of tokens that the hypothesis has.
    repetition_penalty: float = 1.0
    #: No sequence of this many tokens occurs twice in a translation; 0: allowed.
    no_repeat_ngram_size: int = 0
    #: Up to 256 sequences of token ids that no translation has: ids separated by spaces, sequences
    #: by commas, such as 12 40, 7.
    suppress_sequences: str | None = None
    #: No translation has the unknown symbol.
    disable_unk: bool = False
    #: Draw each token from the k most likely ones, up to 1024; 1: take the best, 0: draw from the
    #: whole vocabulary; needs beam_size 1 and no alternatives.
    sampling_top_k: int = 1
    #: Of these, draw from the fewest that have this share of the probability.
    sampling_top_p: float = 1.0
    #: Divides log-probabilities before drawing; less than 1 favours likely tokens.
    sampling_temperature: float = 1.0
    #: Another seed draws another translation of the same source; the same seed repeats one in any
    #: batch, order and shard.
    seed: int = 0
    #: Where max_length is unset: tokens beyond the length of the source.
    max_extra_length: int = 50
    # ---- end ----

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, _checked(option, getattr(self, name)))
        if self.suppress_sequences is not None:
            read_sequences(self.suppress_sequences)
        for name, refused, demand in self._rules():
            if refused:
                raise OptionError(f"{name} is {getattr(self, name)!r}; {demand}.")

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        # ---- rules, made by scripts/declare.py ----
        yield (
            "min_length",
            self.max_length is not None and self.min_length > self.max_length,
            f"it must be at most max_length ({self.max_length})",
        )
        yield (
            "num_hypotheses",
            self.num_hypotheses > self.beam_size,
            f"it must be at most beam_size ({self.beam_size}); raise that to get more",
        )
        yield (
            "num_hypotheses",
            self.alternatives > 0 and self.num_hypotheses > 1,
            "each of the alternatives has one; set it to 1",
        )
        yield (
            "beam_size",
            self.sampling_top_k != 1 and self.beam_size > 1,
            "to draw tokens (sampling_top_k), set it to 1",
        )
        yield (
            "alternatives",
            self.sampling_top_k != 1 and self.alternatives > 0,
            "to draw tokens (sampling_top_k), set it to 0",
        )
        yield (
            "sampling_top_p",
            self.sampling_top_k == 0 and self.sampling_top_p < 1,
            "it needs a number of candidates; set sampling_top_k to 2 or more",
        )
        yield (
            "sampling_top_p",
            self.sampling_top_k == 1 and self.sampling_top_p != 1,
            "no token is drawn; set sampling_top_k to 2 or more, or to 0 for the whole vocabulary",
        )
        yield (
            "sampling_temperature",
            self.sampling_top_k == 1 and self.sampling_temperature != 1,
            "no token is drawn; set sampling_top_k to 2 or more, or to 0 for the whole vocabulary",
        )
        # ---- end ----

    @property
    def marks_tokens(self) -> bool:
        """Whether log-probabilities of some tokens are changed (rule 13)."""
        return (
            self.repetition_penalty != 1
            or self.no_repeat_ngram_size > 0
            or self.suppress_sequences is not None
            or self.disable_unk
        )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random (rule 14)."""
        return self.sampling_top_k != 1

    @property
    def length_penalty_beta(self) -> float:
        """Beta of the length penalty for this form."""
        return LENGTH_PENALTY_BETA[self.length_penalty_form]

    def penalty(self, length: int) -> float:
        """Length penalty lp(n) of rule 3 for a hypothesis of `length` tokens."""
        beta = self.length_penalty_beta
        return float(((beta + length) / (beta + 1)) ** self.length_penalty)

    @property
    def result_count(self) -> int:
        """Maximum number of translations returned per line."""
        return self.alternatives or self.num_hypotheses

    def max_length_for(self, source_length: int) -> int:
        """Maximum number of generated tokens for a source length, which excludes the end symbol."""
        if self.max_length is not None:
            return self.max_length
        return source_length + self.max_extra_length

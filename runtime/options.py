"""Decoding options, passed through all layers as one frozen object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from translate_trt.runtime.errors import OptionError

#: Beta of the length penalty ((beta + n) / (beta + 1)) ** alpha for n tokens, by form: "gnmt" is
#: the paper's (Wu et al. 2016, equation 14), "length" is n ** alpha as in fairseq, CTranslate2 and
#: Hugging Face.
LENGTH_PENALTY_BETA = {"gnmt": 5.0, "length": 0.0}

#: Largest alpha; it keeps the penalty of the longest possible hypothesis finite in float32.
MAX_LENGTH_PENALTY = 10

#: Largest factor of `repetition_penalty`.
MAX_REPETITION_PENALTY = 1000

#: Most sequences of `suppress_sequences`; a step selects one more candidate for each.
MAX_SUPPRESSED = 256

#: Most candidates that a token is drawn from by rank; a step selects one more candidate for each.
MAX_TOP_K = 1024

#: Largest temperature of samples.
MAX_TEMPERATURE = 100

#: Largest count of an option, and largest seed of samples: that of a 32-bit integer in C.
MAX_COUNT = MAX_SEED = 2**31 - 1

#: Default of `max_extra_length`: the maximum length is that of the source plus 50 (section 6.1).
MAX_EXTRA_LENGTH = 50


def whole_number(name: str, value: object) -> int:
    """Convert an integer option, which may be a NumPy integer, to a Python int.

    Raises:
        OptionError: The value is not an integer; True and 2.0 are rejected too.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionError(f"{name} is {value!r}; it must be a whole number.")
    return int(value)


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


@dataclass(frozen=True)
class SearchOptions:
    """Options of the beam search, which docs/beam-search.md specifies.

    Raises:
        OptionError: A value has the wrong type or is out of range.
    """

    # ---- the search itself ----
    beam_size: int = 4  # live hypotheses per sentence; 1 is greedy search
    length_penalty: float = 0.6  # alpha: 0 favours short output, the paper uses 0.6
    length_penalty_form: str = "gnmt"  # "gnmt": ((5 + n) / 6) ** alpha; "length": n ** alpha
    # False: search until no live hypothesis can beat the finished ones (Wu et al. 2016).
    # True: stop once beam_size hypotheses have finished, which takes fewer steps; the rule of
    # fairseq, CTranslate2 and, under this name, Hugging Face.
    early_stopping: bool = False

    # ---- limits, in generated tokens, the end symbol included ----
    max_length: int | None = None  # None: source length + max_extra_length
    min_length: int = 0  # the end symbol is not a candidate before this many tokens

    # ---- results ----
    num_hypotheses: int = 1  # number of best hypotheses to return, at most beam_size
    return_attention: bool = False  # cross-attention of the layer and heads of the export

    # ---- languages of multilingual models; None: the bundle's default, if it has one ----
    source_language: str | None = None  # the model's own code, such as "en" or "eng_Latn"
    target_language: str | None = None  # code of the language to translate into

    # ---- against loops ----
    loop_guard: bool = False  # cut a translation that repeats one phrase without end (rule 11)

    # ---- alternatives after the target prefix (rule 12) ----
    # n > 0: one translation for each of the n most likely next tokens, most likely first.
    alternatives: int = 0
    # Leave out alternatives whose token is less likely, except the most likely one.
    min_alternative_prob: float = 0.0

    # ---- marked tokens (rule 13) ----
    # Factor of the log-probabilities of tokens that the hypothesis already has; 1: no penalty.
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # no sequence of so many tokens twice in a hypothesis; 0: allowed
    suppress_sequences: str | None = None  # sequences that no translation has (read_sequences)
    disable_unk: bool = False  # suppress the unknown symbol

    # ---- sampling (rule 14); needs beam_size = 1 ----
    # Draw each token from so many candidates; 1: take the best, 0: from the whole vocabulary.
    sampling_top_k: int = 1
    # Of these, draw from the fewest most likely ones that have this share of the probability.
    sampling_top_p: float = 1.0
    sampling_temperature: float = (
        1.0  # divides log-probabilities; less than 1 favours likely tokens
    )
    seed: int = 0  # another seed draws another translation of the same source

    # ---- maximum length without max_length ----
    # Tokens beyond the source length: 50 for translation (section 6.1 of the paper), 300 for
    # parsing (section 6.3).
    max_extra_length: int = MAX_EXTRA_LENGTH

    def __post_init__(self) -> None:
        self._check_types()
        if self.beam_size < 1:
            raise OptionError(f"beam_size is {self.beam_size}; it must be at least 1.")
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            # A negative alpha would break the stopping rule, which needs lp(n) to grow with n.
            raise OptionError(
                f"length_penalty is {self.length_penalty}; it must be a number from 0 to "
                f"{MAX_LENGTH_PENALTY}."
            )
        if self.length_penalty_form not in tuple(LENGTH_PENALTY_BETA):  # of any type
            raise OptionError(
                f"length_penalty_form is {self.length_penalty_form!r}; "
                f"choose one of {', '.join(LENGTH_PENALTY_BETA)}."
            )
        if self.max_length is not None and self.max_length < 1:
            raise OptionError(f"max_length is {self.max_length}; it must be at least 1.")
        if self.min_length < 0:
            raise OptionError(f"min_length is {self.min_length}; it must be at least 0.")
        if self.max_extra_length < 0:
            raise OptionError(
                f"max_extra_length is {self.max_extra_length}; it must be at least 0."
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise OptionError(
                f"min_length {self.min_length} is more than max_length {self.max_length}."
            )
        if not 1 <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            # Less than 1 would favour tokens that are not among a step's best candidates.
            raise OptionError(
                f"repetition_penalty is {self.repetition_penalty}; it must be a number from 1 to "
                f"{MAX_REPETITION_PENALTY}."
            )
        if self.no_repeat_ngram_size < 0:
            raise OptionError(
                f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; it must be at least 0."
            )
        if self.suppress_sequences is not None:
            read_sequences(self.suppress_sequences)
        self._check_sampling()
        if not 1 <= self.num_hypotheses <= self.beam_size:
            raise OptionError(
                f"num_hypotheses is {self.num_hypotheses}; it must be between 1 and beam_size "
                f"({self.beam_size}). Raise beam_size to get more hypotheses."
            )
        if self.alternatives < 0:
            raise OptionError(f"alternatives is {self.alternatives}; it must be at least 0.")
        if self.alternatives and self.num_hypotheses > 1:
            raise OptionError(
                f"num_hypotheses is {self.num_hypotheses}; each of the alternatives has one; "
                "set it to 1."
            )
        if not 0 <= self.min_alternative_prob <= 1:
            raise OptionError(
                f"min_alternative_prob is {self.min_alternative_prob}; it must be a number from 0 "
                "to 1."
            )

    def _check_sampling(self) -> None:
        if not 0 <= self.sampling_top_k <= MAX_TOP_K:
            raise OptionError(
                f"sampling_top_k is {self.sampling_top_k}; it must be from 1 (no sampling) to "
                f"{MAX_TOP_K}, or 0 for the whole vocabulary."
            )
        if not 0 < self.sampling_top_p <= 1:
            raise OptionError(
                f"sampling_top_p is {self.sampling_top_p}; it must be more than 0, and at most 1."
            )
        if not 0 < self.sampling_temperature <= MAX_TEMPERATURE:
            raise OptionError(
                f"sampling_temperature is {self.sampling_temperature}; it must be more than 0, and "
                f"at most {MAX_TEMPERATURE}."
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise OptionError(f"seed is {self.seed}; it must be from 0 to {MAX_SEED}.")
        if self.samples:
            for name, wanted in (("beam_size", 1), ("alternatives", 0)):
                if (value := getattr(self, name)) != wanted:
                    raise OptionError(
                        f"{name} is {value}; to draw tokens (sampling_top_k), set it to {wanted}."
                    )
            if self.sampling_top_k == 0 and self.sampling_top_p < 1:
                # The sum of the probabilities is not known at other temperatures than 1.
                raise OptionError(
                    f"sampling_top_p is {self.sampling_top_p}, and sampling_top_k is 0, the whole "
                    f"vocabulary; set sampling_top_k to {MAX_TOP_K} at most."
                )
            return
        for name in ("sampling_top_p", "sampling_temperature"):
            if (value := getattr(self, name)) != 1:
                raise OptionError(
                    f"{name} is {value}, but no token is drawn; set sampling_top_k to more than "
                    "1, or to 0 for the whole vocabulary."
                )

    def _check_types(self) -> None:
        """Convert NumPy numbers to Python numbers and reject values of other types."""
        counts = (
            "beam_size", "max_length", "min_length", "num_hypotheses", "alternatives",
            "no_repeat_ngram_size", "sampling_top_k", "seed",
            "max_extra_length",
        )  # fmt: skip
        for name in counts:
            if (value := getattr(self, name)) is not None or name != "max_length":
                count = whole_number(name, value)
                if count > MAX_COUNT and name != "seed":  # which has limits of its own
                    raise OptionError(f"{name} is {count}; it must be at most {MAX_COUNT}.")
                object.__setattr__(self, name, count)
        numbers = (
            "length_penalty", "min_alternative_prob", "repetition_penalty", "sampling_top_p",
            "sampling_temperature",
        )  # fmt: skip
        for name in numbers:
            number: object = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, Real):
                raise OptionError(f"{name} is {number!r}; it must be a number.")
            try:
                object.__setattr__(self, name, float(number))
            except OverflowError as error:
                raise OptionError(f"{name} is larger than any number that is stored.") from error
        for name in ("early_stopping", "loop_guard", "disable_unk", "return_attention"):
            if not isinstance(value := getattr(self, name), bool):
                raise OptionError(f"{name} is {value!r}; it must be True or False.")
        for name in ("source_language", "target_language", "suppress_sequences"):
            if not isinstance(value := getattr(self, name), str | None):
                raise OptionError(f"{name} is {value!r}; it must be a string.")

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

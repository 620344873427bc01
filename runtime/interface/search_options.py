"""The table of search options: names, types, defaults, ranges and meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Largest count of an option: that of a 32-bit integer in C.
MAX_COUNT = 2**31 - 1

#: Largest alpha; it keeps the penalty of the longest possible hypothesis finite in float32. A
#: negative alpha would break the stopping rule, which needs lp(n) to grow with n.
MAX_LENGTH_PENALTY = 10

#: Largest factor of `repetition_penalty`. A factor below 1 would favour tokens that are not among a
#: step's best candidates.
MAX_REPETITION_PENALTY = 1000

#: Most sequences of `suppress_sequences`; a step selects one more candidate for each.
MAX_SUPPRESSED = 256

#: Most candidates that a token is drawn from by rank; a step selects one more candidate for each.
MAX_TOP_K = 1024

#: Largest temperature of samples.
MAX_TEMPERATURE = 100

#: Default of `max_extra_length`: the maximum length is that of the source plus 50 (section 6.1);
#: 300 for parsing (section 6.3).
MAX_EXTRA_LENGTH = 50


@dataclass(frozen=True)
class Option:
    """A search option.

    Meanings and notes are parts of sentences; names of options have backticks.

    Attributes:
        name: Name in every interface, where `flag` does not say otherwise.
        kind: Type of its values: an integer, number, True or False, string, or one of `choices`.
        meaning: What it does, for all interfaces.
        default: Default; None if it is unset, which only counts and texts may be.
        least: Smallest value.
        most: Largest value.
        above: Whether `least` itself is too small.
        choices: Values of a choice, in the order of their numbers in C.
        demand: End of the message about a value out of range; "" derives it from the range.
        rule: Rules of docs/beam-search.md.
        note: More about it, for the page of options alone.
        flag: Name on the command line, if it is another one.
        metavar: Value in the help of the command line; "" takes the type.
        help: More about it, for the command line alone.
    """

    name: str
    kind: Literal["count", "number", "flag", "text", "choice"]
    meaning: str
    default: int | float | bool | str | None = None
    least: float = 0
    most: float = MAX_COUNT
    above: bool = False
    choices: tuple[str, ...] = ()
    demand: str = ""
    rule: str = ""
    note: str = ""
    flag: str = ""
    metavar: str = ""
    help: str = ""

    @property
    def wanted(self) -> str:
        """End of the message about a value out of range."""
        if self.demand:
            return self.demand
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        if self.above:
            return f"it must be more than {self.least:g}, and at most {self.most:g}"
        if self.kind == "number":
            return f"it must be a number from {self.least:g} to {self.most:g}"
        return f"it must be at least {self.least:g}"

    @property
    def on_command_line(self) -> str:
        """The flag, such as --beam-size."""
        return self.flag or "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Rule:
    """A combination of options that is refused.

    Attributes:
        option: The option that the message is about.
        refused: The combination, an expression in the common part of Python and C++;
            given(`option`) stands for an option that is set.
        demand: End of the message; {option} stands for a value.
    """

    option: str
    refused: str
    demand: str


#: All search options, in the order of tt_options.
OPTIONS = {
    option.name: option
    for option in (
        Option(
            "beam_size", "count", "live hypotheses per sentence; 1 is greedy search",
            default=4, least=1, rule="2",
            note="the time of a step grows with the square; sizes above 64 cause a warning",
        ),
        Option(
            "length_penalty", "number", "alpha of the length penalty; 0 favours short output",
            default=0.6, most=MAX_LENGTH_PENALTY, rule="3",
        ),
        Option(
            "length_penalty_form", "choice",
            "form of the length penalty: gnmt is ((5 + n) / 6) ** alpha, as in the paper; length "
            "is n ** alpha",
            default="gnmt", choices=("gnmt", "length"), rule="3",
        ),
        Option(
            "early_stopping", "flag",
            "stop once `beam_size` hypotheses have finished, even if others may improve",
            default=False, rule="3, 5", note="the rule of fairseq and CTranslate2",
        ),
        Option(
            "max_length", "count",
            "longest translation in tokens, the end symbol included; unset: the length of the "
            "source + `max_extra_length`",
            least=1, rule="6", note="up to `export --max-target-length`",
        ),
        Option(
            "min_length", "count", "minimum length: the end symbol is not a candidate earlier",
            default=0,
        ),
        Option(
            "num_hypotheses", "count", "best hypotheses to return, at most `beam_size`",
            default=1, least=1, rule="7", flag="--n-best",
            help="more than 1 implies --json, but for TSV",
        ),
        Option(
            "return_attention", "flag",
            "return the cross-attention of the layer and heads that the export chose",
            default=False, rule="7", note="not in Triton and HTTP", flag="--attention",
            help="implies --json, and needs a bundle exported with --attention",
        ),
        Option(
            "source_language", "text",
            "language of the source, by the model's own code, such as en or eng_Latn; unset: the "
            "bundle's default",
            metavar="CODE",
            note="of [multilingual models](sentences.md#models-of-several-languages)",
        ),
        Option(
            "target_language", "text",
            "language to translate into, by the model's own code; unset: the bundle's default",
            metavar="CODE",
        ),
        Option(
            "loop_guard", "flag",
            "end a translation that repeats one phrase without end, and keep the phrase once",
            default=False, rule="11", note="on in imported models",
        ),
        Option(
            "alternatives", "count",
            "a translation for each of the n most likely tokens after the target prefix, the most "
            "likely first; needs `num_hypotheses` 1",
            default=0, rule="12", metavar="N",
            help="where translations are written, more than 1 implies --json, but for TSV",
        ),
        Option(
            "min_alternative_prob", "number",
            "leave out alternatives whose token is less likely, except the most likely one",
            default=0.0, most=1, rule="12", metavar="P",
        ),
        Option(
            "repetition_penalty", "number",
            "factor from 1 to 1000 of the log-probabilities of tokens that the hypothesis has",
            default=1.0, least=1, most=MAX_REPETITION_PENALTY, rule="13",
        ),
        Option(
            "no_repeat_ngram_size", "count",
            "no sequence of this many tokens occurs twice in a translation; 0: allowed",
            default=0, rule="13",
            note="like the penalty, this may forbid what the source repeats on purpose",
        ),
        Option(
            "suppress_sequences", "text",
            "up to 256 sequences of token ids that no translation has: ids separated by spaces, "
            "sequences by commas, such as 12 40, 7",
            rule="13", metavar="TOKENS",
        ),
        Option(
            "disable_unk", "flag", "no translation has the unknown symbol",
            default=False, rule="13",
        ),
        Option(
            "sampling_top_k", "count",
            "draw each token from the k most likely ones, up to 1024; 1: take the best, 0: draw "
            "from the whole vocabulary; needs `beam_size` 1 and no `alternatives`",
            default=1, most=MAX_TOP_K, rule="14", note="0 is not possible with a shortlist",
            metavar="K",
            demand=f"it must be from 1 (no sampling) to {MAX_TOP_K}, or 0 for the whole vocabulary",
        ),
        Option(
            "sampling_top_p", "number",
            "of these, draw from the fewest that have this share of the probability",
            default=1.0, above=True, most=1, rule="14", note="not with k = 0", metavar="P",
        ),
        Option(
            "sampling_temperature", "number",
            "divides log-probabilities before drawing; less than 1 favours likely tokens",
            default=1.0, above=True, most=MAX_TEMPERATURE, rule="14", metavar="T",
        ),
        Option(
            "seed", "count",
            "another seed draws another translation of the same source; the same seed repeats one "
            "in any batch, order and shard",
            default=0, rule="14", flag="--sampling-seed", metavar="N",
        ),
        Option(
            "max_extra_length", "count",
            "where `max_length` is unset: tokens beyond the length of the source",
            default=MAX_EXTRA_LENGTH, rule="6", metavar="N",
        ),
    )
}  # fmt: skip

#: Combinations of options that are refused, the first that applies.
RULES = (
    Rule(
        "min_length",
        "given(max_length) and min_length > max_length",
        "it must be at most max_length ({max_length})",
    ),
    Rule(
        "num_hypotheses",
        "num_hypotheses > beam_size",
        "it must be at most beam_size ({beam_size}); raise that to get more",
    ),
    Rule(
        "num_hypotheses",
        "alternatives > 0 and num_hypotheses > 1",
        "each of the alternatives has one; set it to 1",
    ),
    Rule(
        "beam_size",
        "sampling_top_k != 1 and beam_size > 1",
        "to draw tokens (sampling_top_k), set it to 1",
    ),
    Rule(
        "alternatives",
        "sampling_top_k != 1 and alternatives > 0",
        "to draw tokens (sampling_top_k), set it to 0",
    ),
    # The sum of the probabilities is not known at other temperatures than 1.
    Rule(
        "sampling_top_p",
        "sampling_top_k == 0 and sampling_top_p < 1",
        "it needs a number of candidates; set sampling_top_k to 2 or more",
    ),
    *(
        Rule(
            name,
            f"sampling_top_k == 1 and {name} != 1",
            "no token is drawn; set sampling_top_k to 2 or more, or to 0 for the whole vocabulary",
        )
        for name in ("sampling_top_p", "sampling_temperature")
    ),
)

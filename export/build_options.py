"""Options of a build, validated without importing PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.targets import TARGETS, pass_names
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.manifest import SHORTLIST, Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.interface.search_options import MAX_EXTRA_LENGTH

#: Smallest limit of source tokens: the length of the example with which torch records the encoder.
SHORTEST_SOURCE = 5
# An engine's caches hold a token per beam and position: with 256 beams, a base model already needs
# more than a gigabyte per sentence.
_MOST_BEAMS = 256
_DEFAULT = "onnx-fp32"


@dataclass(frozen=True)
class BuildOptions:
    """Options of `compile_bundle`.

    Raises:
        OptionError: A value is out of range.
    """

    # The first is the bundle's default. Empty: onnx-fp32, with the shortlist if there is one.
    targets: tuple[str, ...] = ()
    # Tokens including the end symbol. Sinusoidal positions allow any length, but a model is at its
    # best up to the lengths it was trained on: None takes the training's --max-pair-length.
    max_source_length: int | None = None
    max_target_length: int | None = None  # None: max_source_length + the model's extra length
    attention: bool = False  # the step graph also returns cross-attention weights
    # Decoder layer of the returned weights, from 0, -1 the last, and heads to average. Either
    # implies `attention`. None and (): the model's alignment heads; without them, or with a layer
    # alone, all heads; with heads alone, those of the last layer.
    attention_layer: int | None = None
    attention_heads: tuple[int, ...] = ()
    # Beam size of engines; graphs for ONNX Runtime take any.
    beam_size: int = 4
    # Engines take the options of rules 13 to 15 (docs/beam-search.md), as graphs for ONNX Runtime
    # do.
    all_options: bool = False
    disabled_passes: tuple[str, ...] = ()  # names of passes to leave out
    dump: Path | None = None  # directory for every graph after every pass
    engines: EngineOptions = field(default_factory=EngineOptions)  # how engines are built
    # Shortlist table, for targets with a shortlist; None: that of the checkpoint.
    shortlist: Path | None = None

    def __post_init__(self) -> None:
        for name in self.targets:
            if name not in TARGETS:
                raise OptionError(f"no target {name!r}; choose from {', '.join(TARGETS)}.")
        if len(set(self.targets)) < len(self.targets):
            raise OptionError(f"a target is named twice in {', '.join(self.targets)}.")
        if self.shortlist is not None and self.targets and not self._with_shortlist:
            raise OptionError(
                "a shortlist table is given, but no target uses it; add "
                + " or ".join(name for name, target in TARGETS.items() if target.shortlist)
            )
        # The class is frozen: this assignment is part of its construction.
        object.__setattr__(self, "disabled_passes", pass_names(self.disabled_passes))
        object.__setattr__(self, "attention", self.attention or self.heads is not None)
        if not 1 <= self.beam_size <= _MOST_BEAMS:
            raise OptionError(
                f"beam_size is {self.beam_size}; engines are made for 1 to {_MOST_BEAMS} beams."
            )
        if self.max_source_length is not None and self.max_source_length < SHORTEST_SOURCE:
            raise OptionError(
                f"max_source_length is {self.max_source_length}; it must be at least "
                f"{SHORTEST_SOURCE}."
            )

    @property
    def heads(self) -> AttentionHeads | None:
        """Cross-attention that the options name; None for the model's default."""
        if self.attention_layer is None and not self.attention_heads:
            return None
        layer = -1 if self.attention_layer is None else self.attention_layer
        return AttentionHeads(layer, self.attention_heads)

    @property
    def _with_shortlist(self) -> list[str]:
        return [name for name in self.targets if TARGETS[name].shortlist]

    def for_model(self, shortlist: Path | None) -> BuildOptions:
        """Fill in the default targets and the shortlist of a model.

        Args:
            shortlist: The model's own shortlist, if it has one.

        Raises:
            OptionError: A target needs a shortlist, and there is none.
        """
        table = self.shortlist or shortlist
        default = _DEFAULT if table is None else f"{_DEFAULT}{SHORTLIST}"
        options = replace(self, targets=self.targets or (default,))
        if options._with_shortlist and table is None:
            raise OptionError(
                f"{options._with_shortlist[0]} needs a table: make one with translate-trt "
                "shortlist and give it with --shortlist."
            )
        return replace(options, shortlist=table if options._with_shortlist else None)

    def for_ensemble(self) -> BuildOptions:
        """Fill in the default target of an ensemble.

        Raises:
            OptionError: The options ask for a shortlist.
        """
        if self.shortlist is not None or self._with_shortlist:
            raise OptionError(
                "an ensemble has no shortlist: every member projects to the whole vocabulary. "
                f"Leave out the shortlist, and choose a target without {SHORTLIST}, such as "
                f"{_DEFAULT}."
            )
        return replace(self, targets=self.targets or (_DEFAULT,))

    def limits(
        self, trained_length: int, longest: int | None, extra: int = MAX_EXTRA_LENGTH
    ) -> Limits:
        """Compute the lengths to compile for.

        Args:
            trained_length: Length of the longest sentence in training.
            longest: Number of positions that the model has; None if there is no limit.
            extra: The model's default of `SearchOptions.max_extra_length`.

        Raises:
            OptionError: The target limit is below the default maximum, source + extra, or the
                model has too few positions.
        """
        default = trained_length if longest is None else min(trained_length, longest - extra)
        source = self.max_source_length or max(SHORTEST_SOURCE, default)
        target = source + extra if self.max_target_length is None else self.max_target_length
        if longest is not None and target > longest:
            raise OptionError(
                f"a target length of {target} does not fit the model: it has learned positions "
                f"for {longest} tokens. Lower max_source_length to {longest - extra} or less."
            )
        if target < source + extra:
            raise OptionError(
                f"max_target_length {target} is less than max_source_length {source} + {extra}, "
                "which is how long a translation may get by default; raise it."
            )
        return Limits(source, target)


def parse_heads(text: str) -> tuple[int, ...]:
    """Parse a list of attention heads, such as "0,3".

    Raises:
        OptionError: A number is missing or has other characters than digits.
    """
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise OptionError(f"attention_heads is {text!r}; write numbers from 0, as in 0,3.")
    return tuple(map(int, numbers))

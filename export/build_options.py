"""Options of a build, validated without importing PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.manifest import SHORTLIST, Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.interface.search_options import MAX_EXTRA_LENGTH
from translate_trt.runtime.settings import check_settings, setting

#: Smallest limit of source tokens: the length of the example with which torch records the encoder.
SHORTEST_SOURCE = 5
# An engine's caches hold a token per beam and position: with 256 beams, a base model already needs
# more than a gigabyte per sentence.
_MOST_BEAMS = 256
_DEFAULT = "onnx-fp32"


def parse_heads(text: str) -> tuple[int, ...]:
    """Parse a list of attention heads, such as "0,3".

    Raises:
        OptionError: A number is missing or has other characters than digits.
    """
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise OptionError(f"attention_heads is {text!r}; write numbers from 0, as in 0,3.")
    return tuple(map(int, numbers))


@dataclass(frozen=True)
class BuildOptions:
    """Options of `compile_bundle`.

    Raises:
        OptionError: A value is out of range.
    """

    targets: tuple[str, ...] = setting(
        (), "onnx-fp32, onnx-int8, onnx-fp16, or tensorrt-, tensorrt-rtx-, torch-, cuda- with "
        "fp16, bf16 or fp32; the first two also with -shortlist; may be given several times, the "
        "first is the bundle's default. Default: onnx-fp32, or onnx-fp32-shortlist if there is a "
        "shortlist.",
        flag="--target",
    )  # fmt: skip
    # Sinusoidal positions allow any length, but a model is at its best up to those of training.
    max_source_length: int | None = setting(
        None, "Longest source in tokens, end symbol included. Default: the --max-pair-length that "
        "the model was trained with.", least=SHORTEST_SOURCE,
    )  # fmt: skip
    max_target_length: int | None = setting(
        None, "Longest translation in tokens, end symbol included. Default: that of the source "
        "plus 50, or the model's own extra length.",
    )  # fmt: skip
    attention: bool = setting(
        False, "Return cross-attention with translations, which alignments and markup need: that "
        "of the model's alignment heads, or the last layer's, averaged over the heads.",
    )  # fmt: skip
    attention_layer: int | None = setting(
        None, "Decoder layer whose cross-attention is returned, from 0; -1 is the last. Implies "
        "--attention.",
    )  # fmt: skip
    attention_heads: tuple[int, ...] = setting(
        (), "Heads of the layer that are averaged, from 0, such as 0,3; without a layer, those of "
        "the last. Default: all. Implies --attention.", parse=parse_heads,
    )  # fmt: skip
    beam_size: int = setting(
        4, "Beam size of engines, torch and cuda targets; other targets take any.",
        least=1, most=_MOST_BEAMS,
    )  # fmt: skip
    all_options: bool = setting(
        False, "Engines, torch: compile penalties, banned tokens, sampling and constraints (rules "
        "13 to 15 of docs/beam-search.md) in, which other targets always have. Every step then has "
        "more operators.",
    )  # fmt: skip
    disabled_passes: tuple[str, ...] = setting(
        (), "Leave out an optimization pass, by its name in --explain; may be given several times.",
        flag="--disable-pass",
    )  # fmt: skip
    dump: Path | None = setting(
        None, "Write every graph after every pass to this directory, as ONNX.", flag="--dump-passes"
    )
    engines: EngineOptions = field(default_factory=EngineOptions)  # how engines are built
    shortlist: Path | None = setting(
        None, "Table made by translate-trt shortlist, for targets that end in -shortlist. Default: "
        "that of the checkpoint; imported models may have one.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        from translate_trt.export.targets import PASSES, TARGETS  # --help needs no passes

        check_settings(self)
        for what, names, known in (
            ("target", self.targets, TARGETS), ("pass to leave out", self.disabled_passes, PASSES)
        ):  # fmt: skip
            for name in names:
                if name not in known:
                    raise OptionError(f"no {what} {name!r}; choose from {', '.join(known)}.")
        if len(set(self.targets)) < len(self.targets):
            raise OptionError(f"a target is named twice in {', '.join(self.targets)}.")
        if self.shortlist is not None and self.targets and not self._with_shortlist:
            raise OptionError(
                "a shortlist table is given, but no target uses it; add "
                + " or ".join(name for name, target in TARGETS.items() if target.shortlist)
            )
        # The class is frozen: this assignment is part of its construction.
        object.__setattr__(self, "attention", self.attention or self.heads is not None)

    @property
    def heads(self) -> AttentionHeads | None:
        """Cross-attention that the options name; None for the model's default."""
        if self.attention_layer is None and not self.attention_heads:
            return None
        layer = -1 if self.attention_layer is None else self.attention_layer
        return AttentionHeads(layer, self.attention_heads)

    @property
    def _with_shortlist(self) -> list[str]:
        from translate_trt.export.targets import TARGETS

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

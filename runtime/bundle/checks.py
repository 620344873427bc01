"""Validation of options and tokens against a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from translate_trt.runtime.bundle.contract import max_beams
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import MAX_TOP_K, SearchOptions, read_sequences


def max_segment_length(manifest: Manifest) -> int:
    """Maximum tokens of a segment: the source limit less the end symbol and the prompt."""
    return manifest.limits.max_source_length - 1 - manifest.prompt.source_length


def check_options(manifest: Manifest, target: TargetEntry, options: SearchOptions) -> None:
    """Refuse options that a target was not compiled for.

    Raises:
        OptionError: An option is not supported; the message names the export flag that adds it.
    """
    limits, model = manifest.limits, manifest.model
    manifest.check_languages(options)
    if options.return_attention and not target.contract.attention:
        raise OptionError(
            "return_attention: this bundle's step graph does not return attention; "
            "export it again with --attention."
        )
    if options.changing_option is not None and not target.contract.marks:
        raise OptionError(
            f"{options.changing_option}: the step graph of {target.name} can neither mark nor draw "
            "tokens. Export the bundle again with --all-options, or for an onnx target."
        )
    if options.sampling_top_k == 0 and target.contract.shortlist is not None:
        raise OptionError(
            "sampling_top_k is 0, the whole vocabulary, to which the shortlist of "
            f"{target.name} does not give access; use another target, or set sampling_top_k to "
            f"{MAX_TOP_K} at most."
        )
    _check_sequences(manifest, options)
    if options.max_length is not None and options.max_length > limits.max_target_length:
        raise OptionError(
            f"max_length {options.max_length} is more than the {limits.max_target_length} "
            "tokens this bundle was exported for; export it with a larger --max-target-length."
        )
    longest = limits.max_source_length + options.max_extra_length
    if options.max_length is None and longest > limits.max_target_length:
        raise OptionError(
            f"max_extra_length {options.max_extra_length}: with sources of up to "
            f"{limits.max_source_length} tokens, that is more than the {limits.max_target_length} "
            "tokens this bundle was exported for; export it with a larger --max-target-length."
        )
    if options.min_length > limits.max_target_length:
        raise OptionError(
            f"min_length {options.min_length} is more than the {limits.max_target_length} "
            "tokens this bundle was exported for; export it with a larger --max-target-length."
        )
    beams = target.contract.beams
    if beams is not None and options.beam_size != beams:
        raise OptionError(
            f"beam_size {options.beam_size}: {target.name} was made for {beams} beams; "
            f"ask for that, or export with --beam-size {options.beam_size}."
        )
    choices = target.contract.choices(model.vocabulary_size)
    if options.beam_size > max_beams(choices):
        kind = "vocabulary" if target.contract.shortlist is None else "shortlist"
        raise OptionError(
            f"beam_size {options.beam_size} is too large for a {kind} of {choices} pieces; "
            f"at most {max_beams(choices)}."
        )
    most = max_beams(choices) if beams is None else beams
    if options.alternatives > most:
        raise OptionError(
            f"alternatives is {options.alternatives}; {target.name} finds at most {most}."
        )


def _check_sequences(manifest: Manifest, options: SearchOptions) -> None:
    """Check that suppressed tokens are in the vocabulary and not the end symbol."""
    if options.suppress_sequences is None:
        return
    size = manifest.model.vocabulary_size
    for token in (t for sequence in read_sequences(options.suppress_sequences) for t in sequence):
        if token >= size:
            raise OptionError(
                f"suppress_sequences has token {token}, outside the vocabulary of {size} pieces."
            )
        if token == manifest.model.end_token:
            raise OptionError(
                "suppress_sequences has the end symbol, which every translation needs; set "
                "min_length for longer translations."
            )


def check_tokens(
    manifest: Manifest, name: str, source: Sequence[int], target_name: str, target: Sequence[int]
) -> None:
    """Refuse tokens outside the vocabulary and sources that exceed the bundle's limit.

    Args:
        manifest: Manifest of the bundle.
        name: Name of the sentence in messages.
        source: Source tokens without the end symbol and the prompt.
        target_name: Name of its prefix or translation in messages.
        target: Forced target tokens.

    Raises:
        InputError: The tokens cannot be translated.
    """
    model, longest = manifest.model, max_segment_length(manifest)
    if len(source) > longest:
        raise InputError(
            f"{name} has {len(source)} tokens; this bundle takes up to {longest} "
            "and the end symbol. Split it, or export with a larger --max-source-length."
        )
    for side, tokens, vocabulary_size in (
        (name, source, model.input_vocabulary_size),
        (target_name, target, model.vocabulary_size),
    ):
        wrong = [token for token in tokens if not 0 <= token < vocabulary_size]
        if wrong:
            raise InputError(
                f"{side} has token {wrong[0]}, outside the vocabulary of {vocabulary_size} pieces."
            )
    if model.end_token in target:
        raise InputError(f"{target_name} contains the end symbol; leave it out.")

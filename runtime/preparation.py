"""Sentences to search for from lines and tokens, and translations from their hypotheses.

The library does the same in runtime/cpp/src/core/translator.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from translate_trt.runtime.bundle.checks import check_tokens, max_segment_length
from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.marks import suppressed_of
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.reference import Sentence
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment
from translate_trt.runtime.text.segments import split_at_offsets, split_text
from translate_trt.runtime.text.tokenizer import Tokenizer


def make_segments(
    manifest: Manifest,
    tokenizer: Tokenizer,
    name: str,
    line: str,
    target: Sequence[int],
    options: SearchOptions,
    score: bool,
    constraints: Sequence[Sequence[int]] = (),
) -> list[Sentence]:
    """Cut a line into segments and check them.

    Only the first begins with the target and has alternatives.

    Args:
        manifest: Manifest of the bundle.
        tokenizer: Its tokenizer.
        name: Name of the line in messages.
        line: Text.
        target: Tokens that the translation must begin with, or the whole translation.
        options: Checked search options.
        score: Whether the target is a whole translation.
        constraints: Tokens of the phrases that the translation must have.

    Raises:
        InputError: A line to score has several segments, or none and a translation; or a line with
            constraints has several.
        OptionError: The line begins with the code of an unknown language; or see `make_sentence`.
    """
    text, options = manifest.prompt.of_line(line, options, name)
    longest = max_segment_length(manifest)
    sources = split_text(text, tokenizer.encode_source, longest)
    if score and (len(sources) > 1 or (not sources and target)):
        problem = (
            f"has more than the {longest} tokens that this bundle takes"
            if sources
            else "is blank, and its translation is not"
        )
        raise InputError(
            f"{name} {problem}; only the translation of a single sentence has a score."
        )
    if constraints and len(sources) > 1:
        raise InputError(
            f"{name} has more than the {longest} tokens that this bundle takes, and constraints, "
            "which apply to a single sentence; split it into sentences."
        )
    others = replace(options, alternatives=0)
    return [
        make_sentence(manifest, name, source, () if number else target,
                      others if number else options, score, constraints)
        for number, source in enumerate(sources)
    ]  # fmt: skip


def make_sentence(
    manifest: Manifest,
    name: str,
    source: Sequence[int],
    target: Sequence[int],
    options: SearchOptions,
    score: bool = False,
    constraints: Sequence[Sequence[int]] = (),
) -> Sentence:
    """Check the tokens of a text and of what its translation must have, and add the prompt.

    Args:
        manifest: Manifest of the bundle.
        name: Name of the text in messages.
        source: Source tokens without the end symbol and the prompt.
        target: Tokens that the translation must begin with, or the whole translation.
        options: Checked search options.
        score: Whether the target is a whole translation.
        constraints: Tokens of the phrases that the translation must have.

    Raises:
        InputError: A token is outside the vocabulary, or a text exceeds the bundle's limit, or a
            constraint is empty.
        OptionError: The prefix, with the token of an alternative or the constraints, is as long as
            the maximum length of the translation; or options exclude constraints.
    """
    whose = f"{target_name(score)} {name}"
    check_tokens(manifest, name, source, whose, target)
    _check_constraints(manifest, name, constraints, options, score)
    if not len(source):
        if score and len(target):
            raise InputError(f"{name} is empty, and its translation is not; it has no score.")
        return Sentence((), (), options)
    prompt = manifest.prompt
    tokens = [*prompt.of_source(options), *source]
    if score:
        forced = [*prompt.of_target(options), *target, manifest.model.end_token]
        longest = manifest.limits.max_target_length
        if len(forced) > longest:
            raise InputError(
                f"{whose} has {len(forced)} tokens with the end symbol; this bundle takes up to "
                f"{longest}. Split it, or export with a larger --max-target-length."
            )
        return Sentence(tokens, forced, replace(options, max_length=len(forced)))
    suppressed = suppressed_of(options, manifest.model.unknown_token)
    forced = [*prompt.of_target(options), *map(unscored, target)]
    sentence = Sentence(tokens, forced, options, suppressed, tuple(map(tuple, constraints)))
    if len(sentence.prefix) + bool(options.alternatives) >= sentence.max_length:
        raise OptionError(
            f"{whose} has {len(sentence.prefix)} tokens, which leaves no room in the maximum "
            f"length of {sentence.max_length}; raise max_length or shorten the prefix."
        )
    wanted = sum(map(len, constraints))
    if len(sentence.prefix) + wanted >= sentence.max_length:
        raise OptionError(
            f"the constraints of {name} have {wanted} tokens, which leaves no room in the maximum "
            f"length of {sentence.max_length}; raise max_length or leave some out."
        )
    return sentence


def _check_constraints(
    manifest: Manifest,
    name: str,
    constraints: Sequence[Sequence[int]],
    options: SearchOptions,
    score: bool,
) -> None:
    """Refuse constraints that a translation cannot have, for `make_sentence`."""
    if not constraints:
        return
    if score:
        raise OptionError(f"{name} has constraints, and its translation is scored; leave them out.")
    if options.beam_size < 2:
        raise OptionError(f"beam_size is 1, and {name} has constraints; set it to at least 2.")
    whose = f"a constraint of {name}"
    for phrase in constraints:
        if not phrase:
            raise InputError(f"{whose} is empty; leave it out.")
        check_tokens(manifest, name, (), whose, phrase)


def target_name(score: bool) -> str:
    """Return the name of target tokens in messages, before the name of their text."""
    return "the translation of" if score else "the target prefix of"


def join_segments(tokenizer: Tokenizer, segments: Sequence[Sequence[Hypothesis]]) -> Translation:
    """Join the hypotheses of a line's segments: the i-th best of each give the i-th best line.

    Args:
        tokenizer: Tokenizer of the bundle.
        segments: The n best hypotheses of each segment, in order. An empty list gives an empty
            translation.
    """
    if not segments:
        return Translation((TextHypothesis("", 0.0),))
    joined = []
    for rank in range(max(map(len, segments))):
        # A segment with fewer hypotheses than requested repeats its last one.
        parts = tuple(segment[min(rank, len(segment) - 1)] for segment in segments)
        texts = tokenizer.decode_batch([part.tokens for part in parts])
        score = sum(part.score for part in parts)
        joined.append(TextHypothesis(" ".join(filter(None, texts)), score, parts))
    return Translation(tuple(joined))


def align(
    manifest: Manifest,
    tokenizer: Tokenizer,
    line: str,
    translation: Translation,
    options: SearchOptions,
) -> Translation:
    """Add the alignment of every hypothesis, from its attention.

    Args:
        manifest: Manifest of the bundle.
        tokenizer: Its tokenizer.
        line: Text of the line.
        translation: Its translation, with attention.
        options: The search options of the call. Attention that they do not ask for is removed.
    """
    text, of_line = manifest.prompt.of_line(line, options)
    before = len(line) - len(text)
    prompts = manifest.prompt.of_source(of_line), manifest.prompt.of_target(of_line)
    sources = [
        tuple((begin + before + offset, end + before + offset) for begin, end in spans)
        for offset, spans in split_at_offsets(
            text, tokenizer.source_spans, max_segment_length(manifest)
        )
    ]
    hypotheses = []
    for hypothesis in translation.hypotheses:
        target, segments = "", []
        for source, segment in zip(sources, hypothesis.segments, strict=True):
            part, spans = tokenizer.target_spans(segment.tokens[len(prompts[1]) :])
            offset = len(target) + 1 if target and part else len(target)
            target = f"{target} {part}" if target and part else target + part
            assert segment.attention is not None
            rows = slice(len(prompts[1]), len(segment.tokens))
            columns = slice(len(prompts[0]), len(prompts[0]) + len(source))
            weights = segment.attention[rows, columns]
            segments.append(AlignedSegment(source, tuple(spans), weights).shifted(0, offset))
        kept = hypothesis.segments
        if not options.return_attention:
            kept = tuple(replace(segment, attention=None) for segment in kept)
        alignment = Alignment(line, target, tuple(segments))
        hypotheses.append(replace(hypothesis, segments=kept, alignment=alignment))
    return replace(translation, hypotheses=tuple(hypotheses))

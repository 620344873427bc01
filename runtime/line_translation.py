"""Translation of lines of text: what surrounds the search for their translations.

In this order: markup is taken out, lines are split into sentences, terms are annotated or become
constraints, and the words of the results are aligned. The searches themselves are the caller's
(runtime/line_search.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from translate_trt.runtime.bundle.manifest import TargetEntry
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.line_search import LineSearch, Searches
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.preparation import align
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import aligned_with_end
from translate_trt.runtime.text.documents import SplitText, TextSplitter
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.text.markup import translate_markup
from translate_trt.runtime.text.sentences import chosen_rules
from translate_trt.runtime.text.translatable import is_translatable, untranslated

if TYPE_CHECKING:
    from translate_trt.runtime.translator import Translator


@dataclass(frozen=True)
class LineRequest:
    """Lines to translate, and the arguments of `Translator.translate`.

    Attributes:
        lines: Lines of text, or documents.
        options: Checked search options.
        targets: Text or tokens that each translation must begin with, or the whole translations.
        names: Names of the lines in error messages.
        score: Whether the targets are whole translations, which are scored.
        alignments: Whether to align the words of lines and translations.
        split_sentences: See `Translator.translate`.
        markup: See `Translator.translate`.
        terminology: Glossary to annotate the lines from, or whose phrases are constraints.
        constraints: Tokens of the phrases that each translation must have.
        translate_all: See `Translator.translate`.
    """

    lines: Sequence[str]
    options: SearchOptions
    targets: Sequence[str] | Sequence[Sequence[int]] | None = None
    names: LineNames = NUMBERED
    score: bool = False
    alignments: bool = False
    split_sentences: bool | str = False
    markup: str | None = None
    terminology: Glossary | None = None
    constraints: Sequence[Sequence[Sequence[int]]] | None = None
    translate_all: bool = False

    def check_count(self) -> None:
        """Raise InputError unless there is one target per line, or none at all."""
        kind = "translations" if self.score else "target prefixes"
        _check_count(self.targets, len(self.lines), kind)


class LineTranslator:
    """Translator of lines of text.

    Args:
        translator: Translator of the sentences.
    """

    def __init__(self, translator: Translator) -> None:
        self._translator, self._manifest = translator, translator.manifest
        self._terms = translator.terms

    def check(self, request: LineRequest) -> None:
        """Refuse what is wrong for any lines.

        Raises:
            OptionError: Arguments do not go together, the bundle lacks attention, or a package or
                the rules of a language are missing.
        """
        aligned = request.alignments or request.markup is not None
        splits = request.split_sentences is not False
        self._terms.check(request.terminology, aligned)
        if request.score and (
            splits or request.markup is not None or request.terminology is not None
        ):
            raise OptionError(
                "a given translation is of a whole line; leave split_sentences, markup and "
                "terminology out."
            )
        if request.constraints is not None and (request.markup is not None or splits):
            raise OptionError("constraints go with neither markup nor split_sentences.")
        if request.markup is not None and (request.alignments or request.targets is not None):
            raise OptionError("markup goes with neither alignments nor target prefixes.")
        if request.translate_all and request.markup is not None:
            raise OptionError(
                "translate_all is for plain lines: markup keeps text without letters as it is; "
                "leave one of the two out."
            )
        if aligned:
            check_attention(self._translator.target)
        if splits:
            self.splitter(request.split_sentences, request.options)

    def translate(self, request: LineRequest) -> Searches:
        """Translate the lines of a request, or score their translations."""
        self.check(request)
        if request.markup is not None:
            found = yield from self._marked_up(request, request.markup, whole=False)
        elif request.split_sentences is not False:
            request.check_count()
            splitter = self.splitter(request.split_sentences, request.options)
            texts = [splitter.split_line(line, request.options) for line in request.lines]
            found = yield from self._split(texts, request)
        else:
            found = yield from self._translatable(request)
        return self._looked_up(request, found)

    def translate_documents(self, request: LineRequest, unwrap: bool) -> Searches:
        """Translate documents; see `Translator.translate_document`."""
        self.check(request)
        if unwrap and request.alignments:
            raise OptionError("unwrap goes without alignments, which are of the text as it is.")
        if request.markup is not None:
            if unwrap:
                raise OptionError("unwrap is for text without markup; leave one of the two out.")
            found = yield from self._marked_up(request, request.markup, whole=True)
        else:
            splitter = self.splitter(request.split_sentences, request.options)
            found = yield from self._split(
                [splitter.split_document(text, request.options, unwrap) for text in request.lines],
                request,
            )
        return self._looked_up(request, found)

    def translate_tokens(
        self,
        source: Sequence[int],
        options: SearchOptions,
        target: Sequence[int],
        score: bool,
        constraints: Sequence[Sequence[int]],
        names: LineNames,
    ) -> Searches:
        """Translate a line that is given as tokens, or score its translation.

        Args:
            source: Tokens of the line.
            options: Checked search options.
            target: Tokens that the translation must begin with, or the whole translation.
            score: Whether the target is a whole translation.
            constraints: Tokens of the phrases that the translation must have.
            names: Name of the line in error messages.
        """
        if not source and not score:
            return [self._translator.join([])]  # the same as for a blank line
        (found,) = yield LineSearch((), options, [constraints], [target], names, score, [source])
        # The library returns tokens without text.
        return [self._translator.join([[one.segments[0] for one in found.hypotheses]])]

    def splitter(self, split_sentences: bool | str, options: SearchOptions) -> TextSplitter:
        """Return the splitter of the source language, or of the language named.

        Raises:
            OptionError: The language is unknown or a package is missing, or alternatives are
                wanted.
        """
        check_splitting(options, split_sentences)
        code = options.source_language or self._manifest.source_language
        rules = chosen_rules(split_sentences, code)
        return TextSplitter(self._manifest.prompt, rules, self._manifest.target_language)

    def _marked_up(self, request: LineRequest, markup: str, whole: bool) -> Searches:
        """Translate texts with markup; see `translate_markup`."""
        translating = translate_markup(request.lines, markup, whole, request.names)
        # Whole segments are translatable, their sentences may not be.
        is_whole = request.split_sentences is False
        of_plain = replace(request, markup=None, alignments=True, translate_all=is_whole)
        try:
            plain = next(translating)
            while True:
                names = request.names.of(plain.owners)
                found = yield from self.translate(replace(of_plain, lines=plain.texts, names=names))
                plain = translating.send(found)
        except StopIteration as end:
            translations: list[Translation] = end.value
            return translations

    def _looked_up(self, request: LineRequest, found: list[Translation]) -> list[Translation]:
        """Return translations with the terms of their lines.

        The terms of a text with markup are those of its segments: tags and references are no text.
        """
        if request.markup is None:
            return self._terms.look_up(request.lines, found, request.terminology)
        if request.terminology is None:
            return found
        return [
            replace(one, hypotheses=tuple(replace(h, terms=h.terms or ()) for h in one.hypotheses))
            for one in found
        ]

    def _split(self, texts: Sequence[SplitText], request: LineRequest) -> Searches:
        """Translate the sentences of all texts, those of the request's lines.

        The first sentence of each has the prefix and the constraints.
        """
        # The first sentences come first: only they have prefixes.
        sentences = [text.sentences[0] if text.sentences else "" for text in texts]
        rest = [sentence for text in texts for sentence in text.sentences[1:]]
        targets, constraints = request.targets, request.constraints
        if targets:
            empty = targets[0][:0]  # of the same type
            targets = [*targets, *(empty for _ in rest)]
        if constraints is not None:
            constraints = [*constraints, *(() for _ in rest)]
        names = request.names
        if rest:
            owners = (n for n, text in enumerate(texts) for _ in text.sentences[1:])
            names = names.of([*range(len(texts)), *owners])
        found = yield from self._translatable(
            replace(
                request, lines=[*sentences, *rest], targets=targets, constraints=constraints,
                names=names,
            )
        )  # fmt: skip
        others = iter(found[len(texts) :])
        joined = []
        for line, text, head in zip(request.lines, texts, found, strict=False):
            tail = itertools.islice(others, max(0, len(text.sentences) - 1))
            parts = [head, *tail] if text.sentences else []
            joined.append(text.join(parts, line if request.alignments else None))
        return joined

    def _translatable(self, request: LineRequest) -> Searches:
        """Translate lines as they are, but for those that are not translatable."""
        request.check_count()
        _check_count(request.constraints, len(request.lines), "lists of constraints")
        kept = self._kept(request)
        if not kept:
            return (yield from self._in_terms(request))
        left = [index for index in range(len(request.lines)) if index not in kept]
        targets: Any = request.targets
        constraints = request.constraints
        rest = replace(
            request,
            lines=[request.lines[index] for index in left],
            targets=targets and [targets[index] for index in left],
            constraints=constraints and [constraints[index] for index in left],
            names=request.names.of(left),
        )
        found = iter((yield from self._in_terms(rest)) if left else ())
        return [kept.get(index) or next(found) for index in range(len(request.lines))]

    def _kept(self, request: LineRequest) -> dict[int, Translation]:
        """Return lines that are not translatable as their translations, by index.

        The model translates them if something is asked of the translation: a target, constraints,
        terms.
        """
        kept: dict[int, Translation] = {}
        if request.translate_all or request.score:
            return kept
        asked = [request.targets or (), request.constraints or ()]
        for index, line in enumerate(request.lines):
            text, _ = self._manifest.prompt.of_line(line, request.options, request.names[index])
            given = [one[index] for one in asked if one]
            # A blank target has no tokens.
            if is_translatable(text) or any(
                one.strip() if isinstance(one, str) else len(one) for one in given
            ):
                continue
            if request.terminology is None or not request.terminology.find(text):
                end = untranslated(text)
                alignment = aligned_with_end(line, end) if request.alignments else None
                kept[index] = Translation((TextHypothesis(end, 0.0, (), alignment),))
        return kept

    def _in_terms(self, request: LineRequest) -> Searches:
        """Translate lines as they are, with the terms of the glossary."""
        if (terminology := request.terminology) is None:
            return (yield from self._aligned(request))
        if not request.alignments:
            split = [self._terms.split(line, request.options) for line in request.lines]
            if any(split):
                return (yield from self._in_segments(split, request))
        lines, phrases = self._terms.apply(request.lines, terminology)
        of_terms = (self._terms.phrase_tokens(own, "the glossary") for own in phrases)
        given = request.constraints or [()] * len(lines)
        constraints = [(*own, *more) for own, more in zip(of_terms, given, strict=True)]
        return (
            yield from self._aligned(
                replace(request, lines=lines, constraints=constraints, terminology=None)
            )
        )

    def _in_segments(self, split: Sequence[SplitText | None], request: LineRequest) -> Searches:
        """Translate lines of which some are too long, each segment with the terms that it has."""
        pairs = zip(split, request.constraints or [], strict=False)
        for index, (segments, phrases) in enumerate(pairs):
            if segments is not None and phrases:
                raise InputError(
                    f"{request.names[index]} is too long for the model, and has constraints, "
                    "which apply to a single sentence; split it into sentences."
                )
        texts = [
            segments or SplitText((line,), ("", ""))
            for line, segments in zip(request.lines, split, strict=True)
        ]
        # The segments of a line are not sentences.
        found = yield from self._split(texts, replace(request, translate_all=True))
        return [replace(one, sentence_count=1) for one in found]

    def _aligned(self, request: LineRequest) -> Searches:
        """Search for the translations of lines, or score them, and align them."""
        options = request.options
        if request.alignments:
            options = replace(options, return_attention=True)
        constraints = request.constraints or [()] * len(request.lines)
        found = yield LineSearch(
            request.lines, options, constraints, request.targets, request.names, request.score
        )
        if not request.alignments:
            return found
        tokenizer = self._translator.tokenizer
        return [
            align(self._manifest, tokenizer, line, translation, request.options)
            for line, translation in zip(request.lines, found, strict=True)
        ]


def check_attention(target: TargetEntry) -> None:
    """Raise OptionError unless the graphs of a target return what alignments are made from."""
    if not target.contract.attention:
        raise OptionError(
            "alignments, which markup needs as well, are made from cross-attention, which this "
            "bundle does not return; export it again with --attention."
        )


def check_splitting(options: SearchOptions, split_sentences: bool | str) -> None:
    """Raise OptionError if alternatives are wanted of lines that are split into sentences."""
    if options.alternatives and split_sentences is not False:
        raise OptionError(
            "alternatives belong to one sentence; leave out alternatives or split_sentences."
        )


def check_constraints(target: TargetEntry) -> None:
    """Raise OptionError unless the step graph of a target can enforce constraints."""
    if not target.contract.marks:
        raise OptionError(
            f"constraints: the step graph of {target.name} cannot enforce them. Export the bundle "
            "again with --all-options, or for an onnx target."
        )


def _check_count(values: Sequence[object] | None, lines: int, kind: str) -> None:
    """Raise InputError unless there is one value per line, or none at all."""
    if values is not None and len(values) != lines:
        raise InputError(f"{len(values)} {kind} for {lines} lines.")

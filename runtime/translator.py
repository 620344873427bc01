"""Public API: load a bundle and translate."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack, overload

from translate_trt.runtime.arguments import checked_iterable, checked_texts, describe, token_ids
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry, read_manifest
from translate_trt.runtime.confidence import Calibration, Word
from translate_trt.runtime.cores import share_cores
from translate_trt.runtime.errors import BackendError, InputError, OptionError, TranslateTrtError
from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.line_request import LineRequest, Phrases
from translate_trt.runtime.loaded_target import TargetLoader
from translate_trt.runtime.native import missing_library
from translate_trt.runtime.native.core import Core, LineJobs
from translate_trt.runtime.options import SearchOptions, check_least, whole_number
from translate_trt.runtime.reference import PlainTranslator
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.documents import splitter_of
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.text.tokenizer import Tokenizer


class _TextArguments(TypedDict, total=False):
    split_sentences: bool | str
    alignments: bool
    markup: str | None
    terminology: Glossary | None


class LineArguments(_TextArguments, total=False):
    """Arguments of `Translator.translate` that say what is done with each line."""

    translate_all: bool


class DocumentArguments(_TextArguments, total=False):
    """Arguments of `Translator.translate_document` that say what is done with each document."""

    unwrap: bool


class Translator:
    """A loaded bundle. Thread-safe.

    Sentences are translated in batches. Each of the `workers` runs one batch at a time on `threads`
    CPU threads. One worker with all cores answers a single request soonest; one worker per core
    with one thread each translates the most text per second (docs/performance.md).

    A `with` statement or `close` frees the model's memory at a known time. Unpickling a translator,
    as `multiprocessing` does, loads the bundle again in the receiving process.

    Attributes:
        manifest: Manifest of the bundle.
        target: Manifest entry of the loaded target.
        default_options: Options used by calls that pass none.
        source_languages: Valid values of the option `source_language` (see `Manifest`).
        target_languages: Valid values of the option `target_language`.
        workers: Number of batches translated at once.
        batch_tokens: Source tokens per batch, padding included.
        core: libtranslate_trt, if it runs this target; None if the Python `Reference` does.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        target: str | None = None,
        *,
        shortlist: bool = False,
        threads: int | None = None,
        workers: int | None = None,
        batch_tokens: int | None = None,
        cache_mib: int = 0,
        device: str | None = None,
        check_hashes: bool = True,
        trust_code: bool = False,
    ) -> None:
        """Check the bundle and load one of its targets.

        Args:
            bundle: Directory written by `translate-trt export`.
            target: Name of a target, such as "onnx-int8"; None selects the first in the manifest.
            shortlist: Use the target's shortlist variant, which only considers tokens that the
                source makes likely (docs/shortlist.md).
            threads: CPU threads per worker; None divides the cores evenly. More threads than cores
                are reduced with a warning.
            workers: Number of batches translated at once with one copy of the weights; None: 1, or
                2 for engines, whose batches need GPU memory of their own.
            batch_tokens: Source tokens per batch, padding included; None: 512, or for engines the
                tokens of the largest profile, batch x source_length.
            cache_mib: Memory in MiB for results of earlier sentences, which equal ones with equal
                options have at once; 0: none. Equal sentences of one call are translated once in
                any case.
            device: "cpu", "cuda" or "cuda:1", or "xpu" for torch targets on an Intel GPU; None uses
                a GPU only if the target is made for one.
            check_hashes: Compare every file with its SHA-256 in the manifest.
            trust_code: Allow a version-compatible engine to run the machine code it contains.

        Raises:
            BundleError: The bundle is missing, incomplete or changed, lacks the target, or has
                engines that do not run on this machine.
            BackendError: No GPU is available, or memory ran out.
            OptionError: A number is out of range.
        """
        check_least(1, threads=threads, workers=workers, batch_tokens=batch_tokens)
        check_least(0, cache_mib=cache_mib)
        threads, limited = share_cores(threads, 1 if workers is None else workers)
        self._path = Path(bundle)
        self._absolute_path = self._path.absolute()  # valid after the process changes directory
        self.manifest: Manifest = read_manifest(self._path)
        self.target: TargetEntry = self.manifest.target(target, shortlist)
        self.default_options: SearchOptions = self.manifest.search_options()
        self.source_languages: tuple[str, ...] = self.manifest.source_languages
        self.target_languages: tuple[str, ...] = self.manifest.target_languages
        self._arguments: dict[str, Any] = {
            "threads": threads, "workers": None if workers is None else limited,
            "batch_tokens": batch_tokens, "cache_mib": cache_mib, "device": device,
            "check_hashes": check_hashes, "trust_code": trust_code,
        }  # fmt: skip
        loaded = TargetLoader(
            self._path, self.manifest, self.target,
            Settings(threads, limited, device, trust_code=trust_code),
            self._arguments["workers"], batch_tokens, cache_mib, device, check_hashes,
        ).load()  # fmt: skip
        self.core: Core | None = loaded.core
        self._reference: PlainTranslator | None = loaded.reference
        self._tokenizer = loaded.tokenizer
        self.workers: int = 1 if self.core is None else self.core.workers
        self.batch_tokens: int = loaded.batch_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the source and target vocabularies."""
        return self._tokenizer()

    @cached_property
    def calibration(self) -> Calibration | None:
        """Calibration of the target's confidences (`translate-trt calibrate`); None without one.

        Raises:
            BundleError: The calibration in the manifest is damaged.
        """
        value = self.target.calibration
        return None if value is None else Calibration.from_json(self.target.name, value)

    def words(self, hypothesis: TextHypothesis) -> list[Word]:
        """Return the words of a translation with the confidence of each.

        Args:
            hypothesis: A translation of this translator. A forced prefix has log-probability 0.

        Returns:
            The words in order. Confidences are calibrated if `calibration` is not None; otherwise
            they are products of the token probabilities.
        """
        self._check_open()
        if (core := self.core) is None:
            raise BackendError(missing_library("the confidence of words"))
        return core.words(hypothesis)

    def close(self) -> None:
        """Free the model's memory as soon as the calls in progress have returned.

        Later calls raise a `TranslateTrtError`. Closing twice is allowed.
        """
        self._reference = self.core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = (
            f"threads={self._arguments['threads']}",
            f"workers={self.workers}",
            f"batch_tokens={self.batch_tokens}",
        )
        closed = " (closed)" if self._reference is None and self.core is None else ""
        name = type(self).__name__
        return f"{name}({str(self._path)!r}, {self.target.name!r}, {', '.join(numbers)}){closed}"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        opened = partial(type(self), target=self.target.name, **self._arguments)
        return opened, (str(self._absolute_path),)

    def _check_open(self) -> None:
        if self._reference is None and self.core is None:
            raise _closed_error()

    # A string is also an iterable of strings; type checkers take the first signature that fits.
    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        lines: str,
        options: SearchOptions | None = None,
        target_prefixes: str | None = None,
        *,
        constraints: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        **others: Unpack[LineArguments],
    ) -> Translation: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[str] | None = None,
        *,
        constraints: Iterable[Sequence[str]] | None = None,
        names: Sequence[str] | None = None,
        **others: Unpack[LineArguments],
    ) -> list[Translation]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: str | Iterable[str] | None = None,
        *,
        split_sentences: bool | str = False,
        alignments: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        constraints: Sequence[str] | Iterable[Sequence[str]] | None = None,
        translate_all: bool = False,
        names: Sequence[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate one line of text or several.

        A line with more tokens than the bundle allows is cut into segments, at sentence ends if
        possible, and the translations of its segments are joined.

        Args:
            lines: A string, or an iterable of strings. The translation of a blank line is empty. A
                line without letters, and one that is only a URL or an e-mail address, is its own
                translation, unless it has a prefix, constraints or terms.
            options: Search options; None uses the bundle's defaults.
            target_prefixes: Text that each translation must begin with, one per line.
            split_sentences: Translate the sentences of each line one by one, and join them with
                the line's white space: True by the rules of the source language, or a language
                code, such as "de". Needs `pip install 'translate-trt[split]'`.
            alignments: Align the words of every hypothesis with those of its line, as
                `TextHypothesis.alignment`. Needs a bundle exported with --attention.
            markup: "html" or "xml": take tags out of the text, and put them back at the words that
                they are aligned with; "text": do so with placeholders, such as {name} and %s, which
                all kinds have (docs/markup.md). Needs a bundle exported with --attention.
            terminology: Glossary whose target phrases the translations must have, or with which
                lines are annotated, for a model that was trained so (docs/terminology.md).
                `TextHypothesis.terms` tells which of them a translation has.
            constraints: Phrases that each translation must have, one list per line (rule 15 of
                docs/beam-search.md). They need a beam size of at least 2.
            translate_all: Let the model translate lines without letters and addresses as well.
            names: Name of each line in error messages, such as "a.txt, line 3"; None: "line 1 of
                this call" and so on.

        Returns:
            One `Translation` for a string, or a list of them in the order of the lines.

        Raises:
            InputError: A line is not a string or not well-formed XML, or the numbers of prefixes,
                constraints or names and lines differ.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            BackendError: The backend failed; libtranslate_trt has retried each sentence once.
        """
        texts, prefixes = _lists(lines, "target_prefixes", "prefix", target_prefixes)
        phrases: Any = constraints
        if isinstance(lines, str) and constraints is not None:
            phrases = [constraints]
        request = self.request(
            texts, options, prefixes, names=_names(names, len(texts)), alignments=alignments,
            split_sentences=split_sentences, markup=markup, terminology=terminology,
            constraints=phrases, translate_all=translate_all,
        )  # fmt: skip
        found = self.translate_request(request)
        return found[0] if isinstance(lines, str) else found

    @overload
    def translate_document(  # type: ignore[overload-overlap]
        self,
        texts: str,
        options: SearchOptions | None = None,
        *,
        names: Sequence[str] | None = None,
        **others: Unpack[DocumentArguments],
    ) -> Translation: ...

    @overload
    def translate_document(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        names: Sequence[str] | None = None,
        **others: Unpack[DocumentArguments],
    ) -> list[Translation]: ...

    def translate_document(
        self,
        texts: str | Iterable[str],
        options: SearchOptions | None = None,
        *,
        split_sentences: bool | str = True,
        unwrap: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        alignments: bool = False,
        names: Sequence[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate a text of many lines, or several, and keep their structure.

        Sentences are translated one by one. Line ends, blank lines, indentation, the white space
        between sentences, text without letters, and markers at the start of a line ("- ", "1. ",
        "# ", "> ") are those of the text.

        Args:
            texts: A whole document, with any line ends, or an iterable of documents.
            options: Search options; None uses the bundle's defaults.
            split_sentences: As in `translate`; False translates each line as a whole.
            unwrap: Join the lines of each paragraph to one line first, for texts whose lines were
                broken at a fixed width.
            markup: As in `translate`, for whole documents: elements that separate texts keep their
                places, and so does the white space between them. "text" keeps line ends.
            terminology: As in `translate`.
            alignments: As in `translate`, of the words of the whole text; not with `unwrap`.
            names: As in `translate`.

        Returns:
            One `Translation` for a string, or a list of them in the order of the texts; the score
            of a text is the sum of those of its sentences.

        Raises:
            TranslateTrtError: See `translate`.
        """
        documents = [texts] if isinstance(texts, str) else [*checked_texts("texts", "text", texts)]
        found = self.translate_request(
            self.request(
                documents, options, names=_names(names, len(documents), "text"), document=True,
                split_sentences=split_sentences, unwrap=unwrap, markup=markup,
                terminology=terminology, alignments=alignments,
            )
        )  # fmt: skip
        return found[0] if isinstance(texts, str) else found

    def translate_iter(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[str] | None = None,
        *,
        chunk_lines: int = 1024,
        split_sentences: bool | str = False,
        alignments: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        translate_all: bool = False,
    ) -> Iterator[Translation]:
        """Translate a stream of lines lazily.

        Lines are read and translated in chunks of `chunk_lines`, which bounds memory for input of
        any length: a generator, an open file or a queue.

        Args:
            lines: An iterable of strings.
            options: Search options; None uses the bundle's defaults.
            target_prefixes: Text that each translation must begin with, one per line.
            chunk_lines: Lines per chunk. Large chunks translate faster, small chunks return sooner.
            split_sentences: See `translate`.
            alignments: See `translate`.
            markup: See `translate`.
            terminology: See `translate`.
            translate_all: See `translate`.

        Yields:
            The translation of each line, in input order.

        Raises:
            InputError: A line is not a string, or the numbers of prefixes and lines differ.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            BackendError: The backend failed; libtranslate_trt has retried each sentence once.
        """
        check_least(1, chunk_lines=whole_number("chunk_lines", chunk_lines))
        request = self.request(
            (), options, alignments=alignments, split_sentences=split_sentences, markup=markup,
            terminology=terminology, translate_all=translate_all,
        )  # fmt: skip
        self.check_request(request)
        if isinstance(lines, str):
            raise InputError("lines is one string; give several, or use translate.")
        texts, prefixes = checked_texts("lines", "line", lines), None
        if target_prefixes is not None:
            prefixes = checked_texts("target_prefixes", "prefix", target_prefixes)
        return self._translate_chunks(request, texts, prefixes, chunk_lines)

    def _translate_chunks(
        self, request: LineRequest, lines: Iterator[str], prefixes: Iterator[str] | None, size: int
    ) -> Iterator[Translation]:
        first = 1
        while chunk := list(itertools.islice(lines, size)):
            begins = None if prefixes is None else list(itertools.islice(prefixes, len(chunk)))
            of_chunk = replace(request, lines=chunk, targets=begins, names=LineNames(first=first))
            yield from self.translate_request(of_chunk)
            first += len(chunk)
        if prefixes is not None and next(prefixes, None) is not None:
            raise InputError(f"there are more target prefixes than the {first - 1} lines.")

    @overload
    def score(  # type: ignore[overload-overlap]
        self,
        lines: str,
        translations: str,
        options: SearchOptions | None = None,
        *,
        alignments: bool = False,
        names: Sequence[str] | None = None,
    ) -> TextHypothesis: ...

    @overload
    def score(
        self,
        lines: Iterable[str],
        translations: Iterable[str],
        options: SearchOptions | None = None,
        *,
        alignments: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[TextHypothesis]: ...

    def score(
        self,
        lines: str | Iterable[str],
        translations: str | Iterable[str],
        options: SearchOptions | None = None,
        *,
        alignments: bool = False,
        names: Sequence[str] | None = None,
    ) -> TextHypothesis | list[TextHypothesis]:
        """Score given translations of one line of text or several (forced decoding).

        The translations are tokenized, and forced token by token through the step graph. A score
        is log P divided by the length penalty, as of a hypothesis that the search has found; with
        a length penalty of 0 it is log P. Log-probabilities of a shortlist target are normalized
        over the shortlist.

        Args:
            lines: A string, or an iterable of strings.
            translations: The translation of each line.
            options: Length penalty, languages and `return_attention`; None uses the bundle's
                defaults. Other options have no effect.
            alignments: Align the words of each line with those of its translation; see `translate`.
            names: See `translate`.

        Returns:
            One hypothesis for a string, or a list of them in the order of the lines: the
            translation as its tokens spell it, its score, the log-probability of each token and
            the end symbol, and the attention, if requested.

        Raises:
            InputError: A line or its translation has more tokens than the bundle allows, or only
                one of them is blank.
            TranslateTrtError: See `translate`.
        """
        texts, targets = _lists(lines, "translations", "translation", translations)
        request = self.request(
            texts, options, targets, names=_names(names, len(texts)), score=True,
            alignments=alignments,
        )  # fmt: skip
        scored = [one.hypotheses[0] for one in self.translate_request(request)]
        return scored[0] if isinstance(lines, str) else scored

    def translate_ids(
        self,
        sources: Iterable[Sequence[int]],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[Sequence[int]] | None = None,
        *,
        constraints: Iterable[Sequence[Sequence[int]]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate token sequences.

        Args:
            sources: Token ids of each text, without the end symbol and the model's `Prompt`.
            options: Search options; None uses the bundle's defaults.
            target_prefixes: Token ids that each translation must begin with, one list per source.
            constraints: Token ids of the phrases that each translation must have, one list of
                phrases per source (`translate`).

        Returns:
            The n best hypotheses of each source, best first, or its alternatives, most likely
            first. Their tokens include the model's target prompt, if it has one. An empty source
            has one empty hypothesis.

        Raises:
            InputError: A token is outside the vocabulary, or a source exceeds the bundle's limit.
            TranslateTrtError: See `translate`.
        """
        return self._translate_ids(sources, options, target_prefixes, constraints)

    def score_ids(
        self,
        sources: Iterable[Sequence[int]],
        translations: Iterable[Sequence[int]],
        options: SearchOptions | None = None,
    ) -> list[Hypothesis]:
        """Score given translations of token sequences; otherwise like `score`.

        Args:
            sources: Token ids of each text, without the end symbol and the model's `Prompt`.
            translations: Target token ids of each source, likewise.
            options: See `score`.

        Returns:
            The given translation of each source as a hypothesis.

        Raises:
            InputError: A token is outside the vocabulary, a source or translation exceeds the
                bundle's limits, or only a source is empty.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            BackendError: The backend failed; libtranslate_trt has retried each sentence once.
        """
        found = self._translate_ids(sources, options, translations, score=True)
        return [one for (one,) in found]

    def _translate_ids(
        self,
        sources: Iterable[Sequence[int]],
        options: SearchOptions | None,
        targets: Iterable[Sequence[int]] | None,
        constraints: Iterable[Sequence[Sequence[int]]] | None = None,
        score: bool = False,
    ) -> list[list[Hypothesis]]:
        self._check_open()
        kind = "translation" if score else "target prefix"
        tokens = [
            token_ids(f"source {n}", one)
            for n, one in enumerate(checked_iterable("sources", "token lists", sources))
        ]
        forced = phrases = None
        if targets is not None:
            name = "translations" if score else "target_prefixes"
            forced = [
                token_ids(f"the {kind} of source {n}", one)
                for n, one in enumerate(checked_iterable(name, "token lists", targets))
            ]
        if constraints is not None:
            phrases = [
                [token_ids(f"a constraint of source {n}", phrase) for phrase in own]
                for n, own in enumerate(
                    checked_iterable("constraints", "lists of token lists", constraints)
                )
            ]
        request = LineRequest(
            (), self._options(options), forced, score=score, constraints=phrases, tokens=tokens
        )
        return [
            [one.segments[0] for one in translation.hypotheses]
            for translation in self.translate_request(request)
        ]

    def check(
        self,
        options: SearchOptions,
        source: Sequence[int] | None = None,
        name: str = "the source",
        score: bool = False,
    ) -> None:
        """Validate options and tokens without translating.

        Args:
            options: Search options.
            source: Source token ids, as for `translate_ids`; None for text, which is always valid.
            name: Name of the source in error messages.
            score: The options are for `score`, where some have no effect.

        Raises:
            InputError: A token is outside the vocabulary, or the source exceeds the bundle's limit.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
        """
        tokens = None if source is None else [token_ids(name, source)]
        self.check_request(
            LineRequest(
                (), self._options(options), names=LineNames([name]), score=score, tokens=tokens
            )
        )

    def annotate(self, line: str, terminology: Glossary) -> str:
        """Annotate a line as `translate` does, for a `TranslationService` or another runtime.

        `Glossary.terms` finds the terms of the line in its translation.

        Args:
            line: Text; a language code that it begins with stays in front.
            terminology: Glossary to annotate the line from.

        Raises:
            OptionError: The model was not trained on annotated text.
        """
        if self.manifest.term_annotation is None:
            raise OptionError(
                "this model was not trained on annotated text: train one on the output of "
                "translate-trt data prepare --terminology (docs/terminology.md), or make the terms "
                "of a line constraints (Translator.required_phrases)."
            )
        code, text = self.manifest.prompt.split_language(line)
        _check_glossary(terminology)
        return code + self.manifest.term_annotation.annotate_source(text, terminology)

    def required_phrases(self, line: str, terminology: Glossary) -> list[str]:
        """Return the target phrases that a translation must have, as constraints.

        They are those of `translate` with a glossary, unless the model reads annotations.

        Args:
            line: Text; a language code that it begins with is left out.
            terminology: Glossary; of each entry the first target phrase is required.
        """
        _check_glossary(terminology)
        _, text = self.manifest.prompt.split_language(line)
        return [match.entry.targets[0] for match in terminology.find(text)]

    def request(
        self,
        lines: Sequence[str],
        options: SearchOptions | None = None,
        targets: Sequence[str] | Sequence[Sequence[int]] | None = None,
        *,
        names: LineNames = NUMBERED,
        score: bool = False,
        split_sentences: bool | str = False,
        document: bool = False,
        unwrap: bool = False,
        constraints: Iterable[Phrases] | None = None,
        alignments: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        translate_all: bool = False,
    ) -> LineRequest:
        """Make a request of lines of text.

        Args:
            lines: Lines, or documents.
            options: Search options; None uses the bundle's defaults.
            targets: Text or tokens that each translation must begin with, or whole translations.
            names: Names of the lines in error messages.
            score: Whether the targets are whole translations.
            split_sentences: As in `translate`.
            document: Whether the lines are documents, whose structure is kept.
            unwrap: As in `translate_document`.
            constraints: As in `translate`; the phrases of a line may also be token ids.
            alignments: As in `translate`.
            markup: As in `translate`.
            terminology: As in `translate`.
            translate_all: As in `translate`.

        Raises:
            InputError: The numbers of lines, targets and constraints differ.
            OptionError: Arguments do not go together.
        """
        self._check_open()
        options = self._options(options)
        phrases = None
        if constraints is not None:
            phrases = [
                _phrases(f"the constraints of {names[n]}", own)
                for n, own in enumerate(
                    checked_iterable("constraints", "lists of phrases", constraints)
                )
            ]
        _check_glossary(terminology)
        if unwrap and (alignments or markup is not None):
            raise OptionError(
                "unwrap goes with neither alignments, which are of the text as it is, nor markup."
            )
        split = None
        is_plain_document = document and markup is None
        if split_sentences is not False or is_plain_document:
            splitter = splitter_of(self.manifest, split_sentences, options)
            split = (
                partial(splitter.split_document, options=options, unwrap=unwrap)
                if is_plain_document
                else partial(splitter.split_line, options=options)
            )
        return LineRequest(
            lines, options, targets, names, score, phrases, alignments, markup, document,
            terminology, translate_all, split,
        )  # fmt: skip

    def line_request(
        self,
        source: str | Sequence[int],
        options: SearchOptions | None = None,
        target_prefix: str | Sequence[int] = "",
        *,
        name: str | None = None,
        score: bool = False,
        document: bool = False,
        constraints: Sequence[str] | Sequence[Sequence[int]] = (),
        **others: Unpack[LineArguments],
    ) -> LineRequest:
        """Make a request of one line of text or of its tokens; see `TranslationService.submit`.

        Raises:
            InputError: Source or prefix are of another type, or tokens are given with an argument
                that is about text.
            OptionError: Arguments do not go together.
        """
        if isinstance(source, str):
            targets: Any = [target_prefix]
            if not isinstance(target_prefix, str):
                of_line = f"the target prefix of {name or 'the line'}"
                targets = [token_ids(of_line, target_prefix)]
            return self.request(
                [source], options, targets if score or targets[0] else None,
                names=_names(None if name is None else [name], 1), score=score, document=document,
                constraints=[constraints] if len(constraints) else None, **others,
            )  # fmt: skip
        values = {**others, "document": document}
        for argument, what in (
            ("split_sentences", "can be split into sentences"),
            ("document", "can be a document"),
            ("alignments", "has words to align"),
            ("markup", "has markup"),
            ("terminology", "has terms"),
        ):
            if values.get(argument) not in (None, False):
                raise InputError(f"only text {what}; leave {argument} out.")
        self._check_open()
        name = name or "the line"
        if isinstance(target_prefix, str):
            target_prefix = self.tokenizer.encode_target(target_prefix)
        phrases: Any = None
        if len(constraints):
            phrases = [_phrases("the constraints of the line", constraints)]
        return LineRequest(
            (), self._options(options), [token_ids(f"the target prefix of {name}", target_prefix)],
            LineNames([name]), score, phrases, tokens=[token_ids(name, source)],
        )  # fmt: skip

    def check_request(self, request: LineRequest) -> None:
        """Check lines and options without translating.

        Raises:
            InputError: A line cannot be translated.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
        """
        self._check_open()
        if (core := self.core) is not None:
            core.check_request(request)
        elif (reference := self._reference) is not None:
            reference.check(request)

    def translate_request(self, request: LineRequest) -> list[Translation]:
        """Translate the lines of a request; see `translate_requests`."""
        return self.translate_requests([request])[0]

    def translate_requests(self, requests: Sequence[LineRequest]) -> list[list[Translation]]:
        """Translate the lines of requests at the same time.

        Raises:
            InputError: A line cannot be translated.
            OptionError: The bundle was not compiled for an option, or its value is out of range.
            BackendError: The backend failed; libtranslate_trt has retried each sentence once.
        """
        if (core := self.core) is not None:
            all_jobs = [LineJobs(core, request) for request in requests]
            running = all_jobs
            while running:
                submitted = [(jobs, job) for jobs in running if (job := jobs.submit()) is not None]
                for jobs, job in submitted:
                    jobs.receive(job)
                running = [jobs for jobs, _ in submitted]
            return [jobs.translations for jobs in all_jobs]
        if (reference := self._reference) is None:  # closed by another thread
            raise _closed_error()
        return [reference.translate(request) for request in requests]

    def _options(self, options: SearchOptions | None) -> SearchOptions:
        """Return the options of a call, whose languages are the bundle's if it names none."""
        if options is None:
            return self.default_options
        if not isinstance(options, SearchOptions):
            raise OptionError(f"options is {describe(options)}; write SearchOptions(...).")
        defaults = self.default_options
        if options.source_language is None and defaults.source_language is not None:
            options = replace(options, source_language=defaults.source_language)
        if options.target_language is None and defaults.target_language is not None:
            options = replace(options, target_language=defaults.target_language)
        return options


def _lists(
    lines: str | Iterable[str], name: str, one: str, others: str | Iterable[str] | None
) -> tuple[list[str], list[str] | None]:
    """Return lines, and the texts that belong to them, as lists; a string is one line."""
    if not isinstance(lines, str):
        given = None if others is None else list(checked_texts(name, one, others))
        return list(checked_texts("lines", "line", lines)), given
    if isinstance(others, str | None):
        return [lines], None if others is None else [others]
    raise InputError(f"lines is one string, and so must {name} be.")


def _names(names: Sequence[str] | None, lines: int, noun: str = "line") -> LineNames:
    """Check the names of the lines of a call."""
    if names is not None:
        names = list(checked_texts("names", "name", names))
        if len(names) != lines:
            raise InputError(f"{len(names)} names for {lines} {noun}s.")
    return LineNames(names, noun=noun)


def _phrases(name: str, phrases: Any) -> Phrases:
    """Check phrases that are given as texts, or all as token ids."""
    phrases = list(checked_iterable(name, "phrases", phrases))
    if phrases and not any(isinstance(phrase, str) for phrase in phrases):
        return [token_ids(f"a phrase of {name}", phrase) for phrase in phrases]
    return list(checked_texts(name, "phrase", phrases))


def _check_glossary(terminology: object) -> None:
    """Raise OptionError if an argument is neither a glossary nor None."""
    if terminology is not None and not isinstance(terminology, Glossary):
        raise OptionError(f"terminology is {describe(terminology)}; write Glossary.read(PATH).")


def _closed_error() -> TranslateTrtError:
    return TranslateTrtError("the translator was closed; make another Translator.")

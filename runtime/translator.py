"""The public API: a bundle in, translations out."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, overload

from translate_trt.runtime import native
from translate_trt.runtime.arguments import checked_iterable, checked_texts, shown, token_ids
from translate_trt.runtime.backends import Settings, load_engines, load_graphs
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import PACKAGES, check_engines
from translate_trt.runtime.bundle.checks import check_options, check_tokens, longest_text
from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.bundle.manifest import Manifest, TargetEntry, read_manifest, verify_files
from translate_trt.runtime.cores import share_cores
from translate_trt.runtime.errors import (
    BackendError,
    BundleError,
    InputError,
    OptionError,
    TranslateTrtError,
)
from translate_trt.runtime.native import Core
from translate_trt.runtime.options import MANY_BEAMS, SearchOptions, whole_number
from translate_trt.runtime.reference import Reference, Sentence
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.segments import split_text
from translate_trt.runtime.text.tokenizer import Tokenizer

log = logging.getLogger("translate_trt")

_EMPTY = Hypothesis((), 0.0)


class Translator:
    """A loaded bundle. Several threads may call it at once.

    In a `with` statement, or by `close`, its memory is given back at a known time. A copy that is
    pickled, as `multiprocessing` does, opens the bundle again where it arrives.

    Sentences are translated in batches; each of the `workers` runs one at a time, on `threads`
    processor threads. One worker with all cores answers a single request soonest; as many workers
    as cores, of one thread each, translate most text per second (docs/performance.md).

    Attributes:
        manifest: what the bundle says of itself.
        target: the entry of the target in use.
        default_options: what is used where no options are given.
        source_languages: what options may call the source's language (see `Manifest`).
        target_languages: the same of the target's.
        workers: batches translated at once.
        core: libtranslate_trt, where it translates; None: `Reference` does.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        target: str | None = None,
        *,
        shortlist: bool = False,
        threads: int | None = None,
        workers: int = 1,
        batch_tokens: int = 512,
        device: str | None = None,
        check_hashes: bool = True,
        trust_code: bool = False,
    ) -> None:
        """Check the bundle and load one of its targets.

        Args:
            bundle: directory made by `translate-trt export`.
            target: such as "onnx-int8"; None takes the manifest's first.
            shortlist: take the target that is like it, but makes translations of tokens alone that
                their source makes likely (docs/shortlist.md).
            threads: of each worker; None shares out the cores. More than there are are lowered to
                that, with a warning.
            workers: batches translated at once, by one copy of the weights.
            batch_tokens: source tokens in a batch, padding included.
            device: "cpu", "cuda" or "cuda:1"; None: a GPU where the target needs one.
            check_hashes: compare every file with its SHA-256 in the manifest.
            trust_code: run the machine code that a version-compatible engine brings.

        Raises:
            BundleError: the bundle is missing, incomplete or changed, or has no such target, or
                its engines do not run here.
            BackendError: there is no GPU to run it on, or too little memory.
            OptionError: a number is out of range.
        """
        for name, value in (
            ("threads", threads),
            ("workers", workers),
            ("batch_tokens", batch_tokens),
        ):
            if value is not None and whole_number(name, value) < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1.")
        threads, workers = share_cores(threads, workers)
        path = self._path = Path(bundle)
        self._place = path.absolute()  # wherever the process goes
        self.manifest: Manifest = read_manifest(path)
        self.target: TargetEntry = self.manifest.target(target, shortlist)
        model = self.manifest.model
        self.default_options: SearchOptions = self.manifest.search_options()
        self.source_languages: tuple[str, ...] = self.manifest.source_languages
        self.target_languages: tuple[str, ...] = self.manifest.target_languages
        self.workers = workers
        settings = Settings(threads, workers, device, trust_code=trust_code)
        self._arguments: dict[str, Any] = {
            "threads": threads, "workers": workers, "batch_tokens": batch_tokens, "device": device,
            "check_hashes": check_hashes, "trust_code": trust_code,
        }  # fmt: skip
        self._warned_of_beams = False
        self._reference: Reference | None = None
        self.core: Core | None = None
        has_engines = self.target.backend in PACKAGES
        # ONNX Runtime on GPUs is not tried: packages that Python loads bring CUDA's libraries.
        on_core = has_engines or (self.target.backend == "onnxruntime" and settings.gpu is None)
        library = native.library() if on_core else None
        engines = None
        if has_engines:
            if library is None:
                raise BackendError(
                    f"{self.target.name} runs on libtranslate_trt, and here is {native.status()}. "
                    "Choose an onnx target to do without."
                )
            verify_files(path, self.manifest, self.target.name, hashes=check_hashes)
            engines = self._load_engines(settings)
            check_hashes = False
        if library is not None:
            self.core = Core(
                library, path, self.target.name, threads=threads, workers=workers,
                batch_tokens=batch_tokens, device=None if has_engines else device,
                check_hashes=check_hashes, engines=engines,
            )  # fmt: skip
            return
        if on_core:
            native.report_fallback()
        verify_files(path, self.manifest, self.target.name, hashes=check_hashes)
        self._check_tokenizer()
        graphs = load_graphs(self.target.backend, self._files(), self.target.contract, settings)
        self._reference = Reference(
            graphs, self.target.contract, model.start_token, model.end_token, model.source_end,
            batch_tokens, workers,
        )  # fmt: skip

    def _files(self) -> dict[str, Path]:
        """The target's files by role."""
        return {role: entry.locate(self._path) for role, entry in self.target.files.items()}

    def _load_engines(self, settings: Settings) -> Engines:
        """Both engines of the target.

        Raises:
            BundleError: they do not run here.
            BackendError: there is no GPU, or what it takes to use one is not installed.
        """
        records = (
            check_engines(self.target, self._path, settings.gpu or 0)
            if self.target.engine is not None
            else {}
        )
        return load_engines(self._files(), self.target.contract, settings, records)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        sides = self.manifest.tokenizer
        # Errors call the bundle what it was called; later the process may be elsewhere.
        path = self._path if self.core is None else self._place
        return Tokenizer(sides["source"].locate(path), sides["target"].locate(path))

    def _check_tokenizer(self) -> None:
        model = self.manifest.model
        for pieces, expected in (
            (self.tokenizer.source_vocabulary_size, model.source_pieces),
            (self.tokenizer.vocabulary_size, model.vocabulary_size),
        ):
            if pieces != expected:
                raise BundleError(
                    f"the tokenizer has {pieces} pieces, the model {expected}; they do not belong "
                    "together. Export the bundle again."
                )

    def close(self) -> None:
        """Give the model's memory back, once calls that are under way have ended.

        Later calls raise a `TranslateTrtError`; to close again does nothing.
        """
        self._reference = self.core = None

    def __enter__(self) -> Translator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        numbers = (f"{name}={self._arguments[name]}" for name in ("threads", "workers"))
        closed = " (closed)" if self._is_closed() else ""
        name = type(self).__name__
        return f"{name}({str(self._path)!r}, {self.target.name!r}, {', '.join(numbers)}){closed}"

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        opened = partial(type(self), target=self.target.name, **self._arguments)
        return opened, (str(self._place),)

    def _is_closed(self) -> bool:
        return self._reference is None and self.core is None

    def _check_open(self) -> None:
        if self._is_closed():
            raise _closed_error()

    # A string is an iterable of strings, too; the first signature that fits is taken.
    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        lines: str,
        options: SearchOptions | None = None,
        target_prefixes: str | None = None,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[str] | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: str | Iterable[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate a line of text, or several.

        A line of more tokens than the bundle allows is cut in segments, at ends of sentences where
        it has any, and their translations are joined.

        Args:
            lines: a text, or any iterable of texts; an empty or blank one gives an empty
                translation.
            options: None takes the bundle's defaults.
            target_prefixes: text that each translation must begin with.

        Returns:
            Of one text its `Translation`; of several a list of them in the order of the lines.

        Raises:
            InputError: something that is no text, or not as many prefixes as lines.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            BackendError: the backend failed; libtranslate_trt has tried each sentence once more.
        """
        if isinstance(lines, str):
            if target_prefixes is not None and not isinstance(target_prefixes, str):
                raise InputError("lines is one string, and so must target_prefixes be.")
            prefixes = None if target_prefixes is None else [target_prefixes]
            return self._translate([lines], options, prefixes)[0]
        texts, prefixes = list(checked_texts("lines", "line", lines)), None
        if target_prefixes is not None:
            prefixes = list(checked_texts("target_prefixes", "prefix", target_prefixes))
        return self._translate(texts, options, prefixes)

    def translate_iter(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[str] | None = None,
        *,
        chunk_lines: int = 1024,
    ) -> Iterator[Translation]:
        """Translate lines of any number as they are asked for.

        Lines are read, translated and kept `chunk_lines` at a time, so that memory does not grow
        with their number. They may come from a generator, a file that is open, or a queue.

        Args:
            lines: an iterable of texts.
            options: None takes the bundle's defaults.
            target_prefixes: as many texts that the translations must begin with.
            chunk_lines: more of them are translated faster, fewer come back sooner.

        Yields:
            The translation of each line, in their order.

        Raises:
            InputError: something that is no text, or not as many prefixes as lines.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            BackendError: the backend failed; libtranslate_trt has tried each sentence once more.
        """
        if whole_number("chunk_lines", chunk_lines) < 1:
            raise OptionError(f"chunk_lines is {chunk_lines}; it must be at least 1.")
        self._check_open()
        self._checked(options)
        if isinstance(lines, str):
            raise InputError("lines is one string; give several, or use translate.")
        given, prefixes = checked_texts("lines", "line", lines), None
        if target_prefixes is not None:
            prefixes = checked_texts("target_prefixes", "prefix", target_prefixes)
        return self._translate_chunks(given, options, prefixes, chunk_lines)

    def _translate_chunks(
        self,
        lines: Iterator[str],
        options: SearchOptions | None,
        prefixes: Iterator[str] | None,
        size: int,
    ) -> Iterator[Translation]:
        first = 1
        while chunk := list(itertools.islice(lines, size)):
            begins = None if prefixes is None else list(itertools.islice(prefixes, len(chunk)))
            yield from self._translate(chunk, options, begins, first)
            first += len(chunk)
        if prefixes is not None and next(prefixes, None) is not None:
            raise InputError(f"there are more target prefixes than the {first - 1} lines.")

    def _translate(
        self,
        lines: Sequence[str],
        options: SearchOptions | None,
        target_prefixes: Sequence[str] | None = None,
        first: int = 1,
    ) -> list[Translation]:
        """Translate lines, of which errors call the first by that number."""
        self._check_open()
        options = self._checked(options)
        if target_prefixes is not None and len(target_prefixes) != len(lines):
            raise InputError(f"{len(target_prefixes)} target prefixes for {len(lines)} lines.")
        if (core := self.core) is not None:
            return core.submit(lines, options, target_prefixes, first=first).result()
        prefixes = self._prefix_tokens(target_prefixes, len(lines))
        segments = [
            self._segments(f"line {number} of this call", line, prefix, options)
            for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True), first)
        ]
        found = iter(self._search([segment for line in segments for segment in line]))
        return [self.join([next(found) for _ in line]) for line in segments]

    def translate_ids(
        self,
        sources: Iterable[Sequence[int]],
        options: SearchOptions | None = None,
        target_prefixes: Iterable[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate token sequences.

        Args:
            sources: token ids of each text, without the end symbol and what the model wants before
                it (`Prompt`).
            options: None takes the bundle's defaults.
            target_prefixes: target token ids that each translation must begin with.

        Returns:
            For each source, in order, its n best hypotheses, best first; their tokens begin with
            the model's prompt, if it has one. A source without tokens has one empty hypothesis.

        Raises:
            InputError: a token outside the vocabulary, or a source longer than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
            BackendError: the backend failed; libtranslate_trt has tried each sentence once more.
        """
        self._check_open()
        sources = list(checked_iterable("sources", "token lists", sources))
        prefixes: list[Sequence[int]] = [()] * len(sources)
        if target_prefixes is not None:
            prefixes = list(checked_iterable("target_prefixes", "token lists", target_prefixes))
        if len(prefixes) != len(sources):
            raise InputError(f"{len(prefixes)} target prefixes for {len(sources)} sources.")
        options = self._checked(options)
        given = [token_ids(f"source {n}", one) for n, one in enumerate(sources)]
        begins = [
            token_ids(f"the target prefix of source {n}", one) for n, one in enumerate(prefixes)
        ]
        if (core := self.core) is not None:
            found = core.submit_ids(given, options, begins).result()
            return [[one.segments[0] for one in line.hypotheses] for line in found]
        segments = [
            self._sentence(f"source {n}", source, prefix, options)
            for n, (source, prefix) in enumerate(zip(given, begins, strict=True))
        ]
        return self._search(segments)

    def check(
        self,
        options: SearchOptions,
        source: Sequence[int] | None = None,
        name: str = "the source",
    ) -> None:
        """Raise what translating with these options would, without translating.

        Args:
            options: of a call to come.
            source: of `translate_ids`, source token ids; None: text, which is never refused.
            name: what an error calls the source.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
        """
        options = self._checked(options)
        if source is not None:
            self._sentence(name, token_ids(name, source), (), options)

    # ---- of `TranslationService` ----

    def prepare(
        self, source: str | Sequence[int], options: SearchOptions, prefix: str | Sequence[int]
    ) -> list[Sentence]:
        """The sentences that a line of text, or the tokens of one, is translated as.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
        """
        self._check_open()
        options = self._checked(options)
        if isinstance(prefix, str):
            (prefix,) = self._prefix_tokens([prefix] if prefix else None, 1)
        else:
            prefix = token_ids("the target prefix of the line", prefix)
        if isinstance(source, str):
            return self._segments("the line", source, prefix, options)
        tokens = token_ids("the line", source)
        return [self._sentence("the line", tokens, prefix, options)] if tokens else []

    def translate_prepared(self, segments: Sequence[Sentence]) -> Translation:
        """Translate what `prepare` made of a line.

        Raises:
            BackendError: the backend failed, or found nothing.
        """
        self._check_open()
        return self.join(self._search(segments))

    def join(self, segments: list[list[Hypothesis]]) -> Translation:
        """The n best of a line from those of its segments, the i-th best of each together.

        Args:
            segments: of each in order, its n best; a line without any has an empty translation.
        """
        if not segments:
            return Translation((TextHypothesis("", 0.0),))
        joined = []
        for rank in range(max(map(len, segments))):
            # A segment may have found fewer hypotheses than asked for: its last stands in.
            parts = tuple(segment[min(rank, len(segment) - 1)] for segment in segments)
            texts = self.tokenizer.decode_batch([part.tokens for part in parts])
            score = sum(part.score for part in parts)
            joined.append(TextHypothesis(" ".join(filter(None, texts)), score, parts))
        return Translation(tuple(joined))

    def _search(self, segments: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """The n best of each segment; of one without tokens an empty one."""
        if (reference := self._reference) is None:  # closed since
            raise _closed_error()
        found = iter(reference.translate([one for one in segments if len(one.tokens)]))
        return [next(found) if len(one.tokens) else [_EMPTY] for one in segments]

    def _segments(
        self, name: str, line: str, prefix: Sequence[int], options: SearchOptions
    ) -> list[Sentence]:
        """Cut a line into segments and check them; only the first begins with the prefix."""
        text, options = self.manifest.prompt.of_line(line, options)
        sources = split_text(text, self.tokenizer.encode_source, longest_text(self.manifest))
        return [
            self._sentence(name, source, () if number else prefix, options)
            for number, source in enumerate(sources)
        ]

    def _sentence(
        self, name: str, source: Sequence[int], prefix: Sequence[int], options: SearchOptions
    ) -> Sentence:
        """A text's tokens and forced prefix with what the model wants before them, checked.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: the prefix leaves no room for a translation.
        """
        check_tokens(self.manifest, name, source, prefix)
        if not len(source):
            return Sentence((), (), options)
        prompt = self.manifest.prompt
        forced = [*prompt.of_target(options), *map(unscored, prefix)]
        sentence = Sentence([*prompt.of_source(options), *source], forced, options)
        if len(forced) >= sentence.max_length:
            raise OptionError(
                f"the target prefix of {name} has {len(forced)} tokens, which leaves no room in "
                f"the maximum length of {sentence.max_length}; raise max_length or shorten the "
                "prefix."
            )
        return sentence

    def _prefix_tokens(self, prefixes: Sequence[str] | None, lines: int) -> list[list[int]]:
        if prefixes is None:
            return [[] for _ in range(lines)]
        return self.tokenizer.encode_target_batch(prefixes)

    def _checked(self, options: SearchOptions | None) -> SearchOptions:
        """The options, or the bundle's; languages that they do not say are the bundle's."""
        defaults = self.default_options
        if options is None:
            options = defaults
        elif not isinstance(options, SearchOptions):
            raise OptionError(f"options is {shown(options)}; write SearchOptions(...).")
        languages = {
            name: getattr(defaults, name)
            for name in ("source_language", "target_language")
            if getattr(options, name) is None
        }
        options = replace(options, **languages)
        check_options(self.manifest, self.target, options)
        if options.beam_size > MANY_BEAMS and not self._warned_of_beams:
            self._warned_of_beams = True
            log.warning(
                "beam_size %d: time and memory of a step grow with the square of the beam; more "
                "than %d beams seldom find anything better.",
                options.beam_size,
                MANY_BEAMS,
            )
        return options


def _closed_error() -> TranslateTrtError:
    return TranslateTrtError("the translator was closed; make another Translator.")

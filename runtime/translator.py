"""The public API: a bundle in, translations out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from translate_trt.runtime.backends import Settings, load_backend
from translate_trt.runtime.bundle import Manifest, TargetEntry, read_manifest, verify_files
from translate_trt.runtime.contract import GraphShape, given, most_beams
from translate_trt.runtime.engines import check_engines
from translate_trt.runtime.errors import BundleError, InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.pieces import split_text
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.search import Search, Sentence
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.runtime.workers import available_cores, search_all

_EMPTY = Hypothesis((), 0.0)

#: Source tokens without the end symbol, and forced first tokens as `Sentence` has them.
Piece: TypeAlias = tuple[Sequence[int], Sequence[int]]


class Translator:
    """A loaded bundle. Several threads may call it at once.

    Sentences are translated in batches; each of the `workers` runs one at a time, on `threads`
    processor threads. One worker with all cores answers a single request soonest; as many workers
    as cores, of one thread each, translate most text per second (docs/performance.md).

    Attributes:
        manifest: what the bundle says of itself.
        target: the entry of the target in use.
        tokenizer: text to tokens and back.
        default_options: what is used where no options are given.
        source_languages: what options may call the source's language (see `Manifest`).
        target_languages: the same of the target's.
        workers: batches translated at once.
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
            threads: of each worker; None shares out the cores.
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
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; it must be at least 1.")
        path = Path(bundle)
        self.manifest: Manifest = read_manifest(path)
        self.target: TargetEntry = self.manifest.target(target, shortlist)
        verify_files(path, self.manifest, self.target.name, hashes=check_hashes)
        sides = self.manifest.tokenizer
        self.tokenizer = Tokenizer(sides["source"].locate(path), sides["target"].locate(path))
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
        self.default_options: SearchOptions = self.manifest.search_options()
        self.source_languages: tuple[str, ...] = self.manifest.source_languages
        self.target_languages: tuple[str, ...] = self.manifest.target_languages
        self._batch_tokens, self.workers = batch_tokens, workers
        self._shape = GraphShape(
            model.decoder_layers,
            model.heads,
            model.key_size,
            model.value_size,
            "attention" in self.target.features,
            self.target.form,
        )
        settings = Settings(
            threads or max(1, available_cores() // workers),
            workers,
            device,
            trust_code=trust_code,
        )
        records = (
            check_engines(self.target, path, settings.gpu or 0)
            if self.target.engine is not None
            else None
        )
        files = {role: entry.locate(path) for role, entry in self.target.files.items()}
        self._backend = load_backend(self.target.backend, files, self._shape, settings, records)

    def translate(
        self,
        lines: Sequence[str],
        options: SearchOptions | None = None,
        target_prefixes: Sequence[str] | None = None,
    ) -> list[Translation]:
        """Translate lines of text.

        A line of more tokens than the bundle allows is cut in pieces, at ends of sentences where
        it has any, and their translations are joined.

        Args:
            lines: one text each; an empty or blank one gives an empty translation.
            options: None takes the bundle's defaults.
            target_prefixes: text that each translation must begin with.

        Returns:
            One `Translation` per line, in the order of the lines.

        Raises:
            OptionError: an option this bundle was not compiled for, or out of its limits.
            BackendError: the backend failed, and failed again with the same sentences.
        """
        options = self._checked(options)
        prefixes = self._prefix_tokens(target_prefixes, len(lines))
        pieces = [
            self._pieces(f"line {number} of this call", line, prefix, options)
            for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True), 1)
        ]
        found = iter(self._search([piece for line in pieces for piece in line], options))
        return [self.join([next(found) for _ in line]) for line in pieces]

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions | None = None,
        target_prefixes: Sequence[Sequence[int]] | None = None,
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
            BackendError: the backend failed, and failed again with the same sentences.
        """
        prefixes = [()] * len(sources) if target_prefixes is None else target_prefixes
        if len(prefixes) != len(sources):
            raise InputError(f"{len(prefixes)} target prefixes for {len(sources)} sources.")
        options = self._checked(options)
        pieces = [
            self._piece(f"source {index}", source, prefix, options)
            for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True))
        ]
        return self._search(pieces, options)

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
            self._piece(name, source, (), options)

    # ---- of `TranslationService`, which runs searches itself ----

    def prepare(
        self,
        source: str | Sequence[int],
        options: SearchOptions,
        target_prefix: str | Sequence[int] = "",
    ) -> list[Piece]:
        """What a line is translated as: source tokens and forced first tokens of each piece.

        Those of the model's prompt are among both.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: an option this bundle was not compiled for, or out of its limits.
        """
        options = self._checked(options)
        prefix = target_prefix
        if isinstance(prefix, str):
            prefix = self._prefix_tokens([prefix], 1)[0] if prefix else []
        if isinstance(source, str):
            return self._pieces("the line", source, prefix, options)
        return [self._piece("the line", source, prefix, options)] if len(source) else []

    def new_search(self, options: SearchOptions) -> Search:
        """A batch that sentences of these options can be translated in."""
        model = self.manifest.model
        return Search(
            self._backend, options, self._batch_tokens, model.start_token, model.end_token
        )

    def join(self, pieces: list[list[Hypothesis]]) -> Translation:
        """The n best of a line from those of its pieces, the i-th best of each together.

        Args:
            pieces: of each in order, its n best; a line without any has an empty translation.
        """
        if not pieces:
            return Translation((TextHypothesis("", 0.0),))
        joined = []
        for rank in range(max(map(len, pieces))):
            # A piece may have found fewer hypotheses than asked for: its last stands in.
            parts = tuple(piece[min(rank, len(piece) - 1)] for piece in pieces)
            texts = self.tokenizer.decode_batch([part.tokens for part in parts])
            score = sum(part.score for part in parts)
            joined.append(TextHypothesis(" ".join(filter(None, texts)), score, parts))
        return Translation(tuple(joined))

    def _search(self, pieces: Sequence[Piece], options: SearchOptions) -> list[list[Hypothesis]]:
        """The n best of each piece; of one without tokens an empty one."""
        waiting = [
            Sentence(index, source, forced)
            for index, (source, forced) in enumerate(pieces)
            if len(source)
        ]
        search = partial(self.new_search, options)
        found = search_all(search, waiting, self.workers) if waiting else {}
        return [found.get(index, [_EMPTY]) for index in range(len(pieces))]

    def _pieces(
        self, name: str, line: str, prefix: Sequence[int], options: SearchOptions
    ) -> list[Piece]:
        """A line in as many pieces as it needs, the first of which alone begins with the prefix."""
        text, options = self.manifest.prompt.of_line(line, options)
        sources = split_text(text, self.tokenizer.encode_source, self._longest_text)
        return [
            self._piece(name, source, () if number else prefix, options)
            for number, source in enumerate(sources)
        ]

    def _piece(
        self, name: str, source: Sequence[int], prefix: Sequence[int], options: SearchOptions
    ) -> Piece:
        """A text's tokens and forced prefix with what the model wants before them, checked.

        Raises:
            InputError: a token outside the vocabulary, or more tokens than the bundle allows.
            OptionError: the prefix leaves no room for a translation.
        """
        self._check_tokens(name, source, prefix)
        if not len(source):
            return (), ()
        prompt = self.manifest.prompt
        forced = [*prompt.of_target(options), *map(given, prefix)]
        piece = [*prompt.of_source(options), *source], forced
        longest = options.max_length_for(len(piece[0]))
        if len(piece[1]) >= longest:
            raise OptionError(
                f"the target prefix of {name} has {len(piece[1])} tokens, which leaves no room in "
                f"the maximum length of {longest}; raise max_length or shorten the prefix."
            )
        return piece

    @property
    def _longest_text(self) -> int:
        """Tokens of the longest text that is translated in one piece."""
        return self.manifest.limits.max_source_length - 1 - self.manifest.prompt.source_length

    def _prefix_tokens(self, prefixes: Sequence[str] | None, lines: int) -> list[list[int]]:
        if prefixes is None:
            return [[] for _ in range(lines)]
        if len(prefixes) != lines:
            raise InputError(f"{len(prefixes)} target prefixes for {lines} lines.")
        return self.tokenizer.encode_target_batch(prefixes)

    def _checked(self, options: SearchOptions | None) -> SearchOptions:
        """The options, or the bundle's; languages that they do not say are the bundle's."""
        defaults = self.default_options
        options = options or defaults
        languages = {
            name: getattr(defaults, name)
            for name in ("source_language", "target_language")
            if getattr(options, name) is None
        }
        options = replace(options, **languages)
        self._check_options(options)
        return options

    def _check_options(self, options: SearchOptions) -> None:
        limits, model = self.manifest.limits, self.manifest.model
        self.manifest.check_languages(options)
        if options.return_attention and not self._shape.attention:
            raise OptionError(
                "return_attention: this bundle's step graph does not return attention; "
                "export it again with --attention."
            )
        if options.max_length is not None and options.max_length > limits.max_target_length:
            raise OptionError(
                f"max_length {options.max_length} is more than the {limits.max_target_length} "
                "tokens this bundle was exported for; export it with a larger --max-target-length."
            )
        beams = self.target.form.beams
        if beams is not None and options.beam_size != beams:
            raise OptionError(
                f"beam_size {options.beam_size}: {self.target.name} was made for {beams} beams; "
                f"ask for that, or export with --beam-size {options.beam_size}."
            )
        choices = self.target.form.choices(model.vocabulary_size)
        if options.beam_size > most_beams(choices):
            kind = "vocabulary" if self.target.form.shortlist is None else "shortlist"
            raise OptionError(
                f"beam_size {options.beam_size} is too large for a {kind} of {choices} pieces; "
                f"at most {most_beams(choices)}."
            )

    def _check_tokens(self, name: str, source: Sequence[int], prefix: Sequence[int]) -> None:
        model = self.manifest.model
        if len(source) > self._longest_text:
            raise InputError(
                f"{name} has {len(source)} tokens; this bundle takes up to {self._longest_text} "
                "and the end symbol. Split it, or export with a larger --max-source-length."
            )
        for side, tokens, pieces in (
            (name, source, model.source_pieces),
            (f"the target prefix of {name}", prefix, model.vocabulary_size),
        ):
            wrong = [token for token in tokens if not 0 <= token < pieces]
            if wrong:
                raise InputError(
                    f"{side} has token {wrong[0]}, outside the vocabulary of {pieces} pieces."
                )
        if model.end_token in prefix:
            raise InputError(f"the target prefix of {name} contains the end symbol; leave it out.")

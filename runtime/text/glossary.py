"""Glossaries: source phrases with their target phrases, found in texts and in translations.

The rules are those of docs/terminology.md; libtranslate_trt applies them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from ctypes import byref, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

from translate_trt.runtime.io.lines import display_name, open_input, read_lines
from translate_trt.runtime.native import abi, required_library
from translate_trt.runtime.native.values import as_text, as_texts, handle, text_of


@dataclass(frozen=True)
class Entry:
    """A source phrase of a glossary and its target phrases, the preferred one first."""

    source: str
    targets: tuple[str, ...]


class Match(NamedTuple):
    """Characters `begin` to `end` of a text that an entry's source phrase matches."""

    begin: int
    end: int
    entry: Entry


@dataclass(frozen=True)
class Term:
    """A phrase of a glossary in a source text, looked for in the translation.

    Attributes:
        source: The phrase as it stands in the source text.
        targets: Target phrases of the glossary.
        translation: The target phrase that the translation has; None if it has none of them.
    """

    source: str
    targets: tuple[str, ...]
    translation: str | None

    @property
    def found(self) -> bool:
        """True if the translation has one of the target phrases."""
        return self.translation is not None


@dataclass
class Recall:
    """Number of terms in source texts, and of those found in the translations."""

    terms: int = 0
    found: int = 0

    def add(self, terms: Iterable[Term]) -> None:
        """Count the terms of a translation."""
        for term in terms:
            self.terms += 1
            self.found += term.found

    def __str__(self) -> str:
        if not self.terms:
            return "no terms in the source"
        share = 100 * self.found / self.terms
        return f"{self.found:,} of {self.terms:,} terms in the translations ({share:.1f} %)"


class Glossary:
    """Phrases and their translations.

    Attributes:
        ignore_case: Whether phrases match in any case.
        handle: The library's glossary.
    """

    def __init__(self, entries: Iterable[Entry], ignore_case: bool = False) -> None:
        """Index the entries; those with the same source phrase become one.

        Args:
            entries: The entries, each with at least one target phrase.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: A phrase is blank, or an entry has no target phrase.
            BackendError: libtranslate_trt is not built.
        """
        given = [(entry.source, *entry.targets) for entry in entries]
        counts = (c_size_t * len(given))(*map(len, given))
        phrases = as_texts([phrase for entry in given for phrase in entry])
        self._make("tt_glossary_new", ignore_case, phrases, counts, len(given))

    def _make(self, call: str, ignore_case: bool, *arguments: Any) -> None:
        self.ignore_case, self.handle = ignore_case, c_void_p()
        self._calls = required_library("glossaries")
        make = getattr(self._calls, call)
        make(*arguments, bool(ignore_case), byref(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._calls.tt_glossary_free(self.handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.entries, self.ignore_case)

    @classmethod
    def read(cls, path: str | os.PathLike[str], ignore_case: bool = False) -> Self:
        """Read a glossary: a source phrase and its target phrases per line, separated by tabs.

        Args:
            path: A file in UTF-8, plain or compressed with gzip or zstd.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: The file cannot be read, has no entries, or a line is no entry.
            BackendError: libtranslate_trt is not built.
        """
        path = os.fspath(path)
        name = display_name(path)
        with open_input(path) as stream:
            return cls.parse(read_lines(stream, name), name, ignore_case)

    @classmethod
    def parse(cls, lines: Iterable[str], name: str, ignore_case: bool = False) -> Self:
        """Parse the lines of a glossary file; see `read`.

        Args:
            lines: Lines without their ends.
            name: Name in error messages.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: There are no entries, or a line is no entry.
            BackendError: libtranslate_trt is not built.
        """
        content = "\n".join(lines).encode(errors="replace")
        made = cls.__new__(cls)
        text = abi.Text(content, len(content))
        made._make("tt_glossary_parse", ignore_case, text, name.encode(errors="replace"))
        return made

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries, one of each source phrase."""
        calls = self._calls
        found = []
        for entry in range(calls.tt_glossary_size(self.handle)):
            source, *targets = (
                text_of(calls.tt_glossary_phrase(self.handle, entry, index))
                for index in range(calls.tt_glossary_phrases(self.handle, entry))
            )
            found.append(Entry(source, tuple(targets)))
        return found

    def find(self, text: str) -> list[Match]:
        """Return the source phrases in a text: the leftmost, longest ones, without overlaps."""
        return [match for match, _ in self.matched_terms(text, "")]

    def terms(self, source: str, translation: str) -> list[Term]:
        """Return the terms of a source text, each with its target phrase in the translation."""
        return [term for _, term in self.matched_terms(source, translation)]

    def matched_terms(self, source: str, translation: str) -> list[tuple[Match, Term]]:
        """Return the terms of a source text with their positions in it.

        Every term has an occurrence of its own in the translation; terms of long target phrases
        come first, so that "York" is not found in the "New York" of another term.
        """
        calls = self._calls
        with self._terms(calls.tt_glossary_terms, as_text(source), as_text(translation)) as terms:
            found = []
            for index in range(calls.tt_terms_size(terms)):
                one, span = calls.tt_terms_term(terms, index), calls.tt_terms_span(terms, index)
                match = Match(span.begin, span.end, self.entries[one.entry])
                found.append((match, self.term(one)))
            return found

    def annotated(
        self, text: str, translation: str | None, appends: bool, symbols: str
    ) -> str | None:
        """Annotate a text with target phrases (`TermAnnotation`).

        Args:
            text: Source text.
            translation: Its translation, of which only the phrases that it has are added; None
                adds the preferred target phrase of each source phrase.
            appends: Whether source phrases stay.
            symbols: The three symbols of the annotation.

        Returns:
            The annotated text; None if no phrase is annotated.
        """
        calls = self._calls
        target = None if translation is None else byref(as_text(translation))
        with self._terms(
            calls.tt_glossary_annotate, as_text(text), target, appends, as_text(symbols)
        ) as terms:
            found = [
                calls.tt_terms_term(terms, index) for index in range(calls.tt_terms_size(terms))
            ]
            if not any(translation is None or one.found for one in found):
                return None
            return text_of(calls.tt_terms_annotated(terms))

    def term(self, found: abi.Term) -> Term:
        """Convert a term of the library."""
        translation = text_of(found.translation) if found.found else None
        return Term(text_of(found.source), self.entries[found.entry].targets, translation)

    def _terms(self, make: Any, *arguments: Any) -> AbstractContextManager[c_void_p]:
        return handle(self._calls.tt_terms_free, make, self.handle, *arguments)

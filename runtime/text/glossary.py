"""Glossaries: source phrases with their target phrases, found in texts and in translations.

The rules are those of docs/terminology.md.
"""

from __future__ import annotations

import bisect
import itertools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import display_name, open_input, read_lines

_REPLACEMENT = "\ufffd"  # what `read_lines` makes of bytes that are not UTF-8
# Scripts that are written without spaces between words: Thai to Myanmar, Khmer, Tai scripts,
# Balinese and Javanese, then Chinese and Japanese. Korean has spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9df"
    "\u2e80-\u2fdf\u3005-\u3007\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_NOT_SINGLE_SPACES = re.compile(r"\s{2,}|[^\S ]")
# Characters with more marks are rare; their marks are sorted here.
_FEW_MARKS = 32


class _JoiningCharacters(dict[str, bool]):
    """Cache of the characters between which no word ends: letters, digits, marks and "_"."""

    def __missing__(self, character: str) -> bool:
        in_word = character == "_" or unicodedata.category(character)[0] in "LMN"
        self[character] = found = in_word and not is_unspaced(character)
        return found


_JOINING = _JoiningCharacters()


def joins(character: str) -> bool:
    """Return True for a letter, digit, mark or "_", between two of which no word ends."""
    return _JOINING[character]


def is_unspaced(character: str) -> bool:
    """Return True for a character of a script that is written without spaces between words."""
    return _UNSPACED.match(character) is not None


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
        entries: The entries; each source phrase has one.
        ignore_case: Whether phrases match in any case.
    """

    def __init__(self, entries: Iterable[Entry], ignore_case: bool = False) -> None:
        """Index the entries; those with the same source phrase become one.

        Args:
            entries: The entries, each with at least one target phrase.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: A phrase is blank, or an entry has no target phrase.
        """
        self.ignore_case = ignore_case
        sources: dict[str, str] = {}
        targets: dict[str, dict[str, None]] = {}
        for entry in entries:
            if not (entry.targets and all(map(str.strip, (entry.source, *entry.targets)))):
                raise InputError(f"{entry} has a blank phrase or no target phrase.")
            key = _fold(entry.source.strip(), ignore_case).text
            sources.setdefault(key, entry.source)
            targets.setdefault(key, {}).update(dict.fromkeys(entry.targets))
        self._by_phrase = {
            key: Entry(source, tuple(targets[key])) for key, source in sources.items()
        }
        self.entries = [*self._by_phrase.values()]
        by_word: dict[str, list[str]] = {}
        for phrase in self._by_phrase:
            by_word.setdefault(phrase[: _first_end(phrase, 0)], []).append(phrase)
        # The phrases that begin with a word.
        self._beginning_with = {word: _Phrases(found) for word, found in by_word.items()}

    @classmethod
    def read(cls, path: str | os.PathLike[str], ignore_case: bool = False) -> Glossary:
        """Read a glossary: a source phrase and its target phrases per line, separated by tabs.

        Args:
            path: A file in UTF-8, plain or compressed with gzip or zstd.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: The file cannot be read, has no entries, or a line is no entry.
        """
        path = os.fspath(path)
        name = display_name(path)
        with open_input(path) as stream:
            return cls.parse(read_lines(stream, name), name, ignore_case)

    @classmethod
    def parse(cls, lines: Iterable[str], name: str, ignore_case: bool = False) -> Glossary:
        """Parse the lines of a glossary file; see `read`.

        Args:
            lines: Lines without their ends.
            name: Name in error messages.
            ignore_case: Whether phrases match in any case, on both sides.

        Raises:
            InputError: There are no entries, or a line is no entry.
        """
        entries = list(_parse(lines, name))
        if not entries:
            raise InputError(
                f"{name} has no entries; write a source phrase, a tab and a target phrase per line."
            )
        return cls(entries, ignore_case)

    def find(self, text: str) -> list[Match]:
        """Return the source phrases in a text: the leftmost, longest ones, without overlaps."""
        folded, at, matches = _fold(text, self.ignore_case), 0, []
        while at < len(folded.text):
            first_end = _first_end(folded.text, at)
            match = self._longest(folded, at, folded.text[at:first_end])
            if match is None:
                at = first_end
            else:
                end, entry = match
                matches.append(Match(folded.offsets[at], folded.offsets[end], entry))
                at = end
        return matches

    def _longest(self, folded: _Folded, begin: int, first: str) -> tuple[int, Entry] | None:
        """Return the end and the entry of the longest phrase at a position; None without one."""
        if (phrases := self._beginning_with.get(first)) is None or not folded.is_edge(begin):
            return None
        for phrase in phrases.at(folded.text, begin):
            if folded.is_edge(end := begin + len(phrase)):
                return end, self._by_phrase[phrase]
        return None

    def terms(self, source: str, translation: str) -> list[Term]:
        """Return the terms of a source text, each with its target phrase in the translation."""
        return [term for _, term in self.matched_terms(source, translation)]

    def matched_terms(self, source: str, translation: str) -> list[tuple[Match, Term]]:
        """Return the terms of a source text with their positions in it.

        Every term has an occurrence of its own in the translation; terms of long target phrases
        come first, so that "York" is not found in the "New York" of another term.
        """
        matches = self.find(source)
        if not matches:
            return []
        folded = _fold(translation, self.ignore_case)
        occurrences = _FreeOccurrences(folded)
        found: list[str | None] = [None] * len(matches)
        # By source phrase, which identifies an entry.
        entries = {match.entry.source: match.entry for match in matches}
        longest = {source: max(map(len, entry.targets)) for source, entry in entries.items()}
        phrases = {
            source: [_fold(target.strip(), self.ignore_case).text for target in entry.targets]
            for source, entry in entries.items()
        }
        for n in sorted(range(len(matches)), key=lambda n: -longest[matches[n].entry.source]):
            for phrase in phrases[matches[n].entry.source]:
                if (begin := occurrences.take(phrase)) is not None:
                    end = begin + len(phrase)
                    found[n] = translation[folded.offsets[begin] : folded.offsets[end]]
                    break
        return [
            (match, Term(source[match.begin : match.end], match.entry.targets, one))
            for match, one in zip(matches, found, strict=True)
        ]


def _parse(lines: Iterable[str], name: str) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{name}, line {number}"
        if _REPLACEMENT in line:
            raise InputError(f"{where} is not valid UTF-8; convert the file to UTF-8.")
        source, *targets = (cell.strip() for cell in line.split("\t"))
        if not source:
            raise InputError(f"{where} has no source phrase before the first tab; add it.")
        targets = list(filter(None, targets))  # spreadsheets end short rows with tabs
        if not targets:
            raise InputError(
                f"{where} has no target phrase; write the source phrase, a tab and a target phrase "
                "(further ones after further tabs), or begin a comment with #."
            )
        yield Entry(source, tuple(targets))


class _Folded(NamedTuple):
    """A text in which equivalent phrases are equal strings.

    Attributes:
        text: The folded text.
        offsets: Position in the original of each character and of the end; -1 inside of what is
            one character of the original with its marks.
    """

    text: str
    offsets: Sequence[int]

    def is_edge(self, at: int) -> bool:
        """Return True if a phrase may begin or end at a position."""
        if self.offsets[at] < 0:
            return False
        inside = 0 < at < len(self.text)
        return not (inside and _JOINING[self.text[at - 1]] and _JOINING[self.text[at]])


class _Phrases:
    """Phrases with the same first word, found at a position of a text."""

    def __init__(self, phrases: Iterable[str]) -> None:
        self._sorted = sorted(phrases)
        self._most = max(map(len, self._sorted))
        # Index of the longest other phrase that begins each phrase; -1 without one.
        self._beginnings: list[int] = []
        for index, phrase in enumerate(self._sorted):
            # A phrase that begins this one also begins the one before it, or is that one.
            beginning = index - 1
            while beginning >= 0 and not phrase.startswith(self._sorted[beginning]):
                beginning = self._beginnings[beginning]
            self._beginnings.append(beginning)

    def at(self, text: str, begin: int) -> Iterator[str]:
        """Iterate over the phrases that a text has at a position, the longest one first.

        In sorted order, all phrases between one of these and the text begin with it.
        """
        rest = text[begin : begin + self._most]
        index = bisect.bisect_right(self._sorted, rest) - 1
        while index >= 0:
            if rest.startswith(phrase := self._sorted[index]):
                yield phrase
            index = self._beginnings[index]


class _FreeOccurrences:
    """Occurrences of phrases in a text, each of which is taken once, without overlaps."""

    def __init__(self, text: _Folded) -> None:
        self._text, self._taken = text, bytearray(len(text.text))
        # Position after which each phrase occurs next, if at all; those before stay taken.
        self._next: dict[str, int] = {}

    def take(self, phrase: str) -> int | None:
        """Return the first free occurrence of a phrase between edges, which is free no more."""
        text, begin = self._text, self._next.get(phrase, 0)
        while (begin := text.text.find(phrase, begin)) >= 0:
            end = begin + len(phrase)
            free = self._taken.find(1, begin, end) < 0
            if free and text.is_edge(begin) and text.is_edge(end):
                self._taken[begin:end] = b"\1" * len(phrase)
                self._next[phrase] = end
                return begin
            begin += 1
        self._next[phrase] = len(text.text)
        return None


def _fold(text: str, ignore_case: bool) -> _Folded:
    """Fold white space to single spaces, composed characters to NFC, and optionally the case."""
    if text.isascii() and not _NOT_SINGLE_SPACES.search(text):
        return _Folded(text.lower() if ignore_case else text, range(len(text) + 1))
    parts, offsets, at = [], [], 0
    while at < len(text):
        end = at + 1
        if text[at].isspace():
            while end < len(text) and text[end].isspace():
                end += 1
            part = " "
        else:
            while end < len(text) and unicodedata.category(text[end])[0] == "M":
                end += 1
            part = _nfc(text[at:end])
            if ignore_case:
                part = _nfc(part.casefold())
        parts.append(part)
        offsets += [at, *itertools.repeat(-1, len(part) - 1)]
        at = end
    return _Folded("".join(parts), [*offsets, len(text)])


def _nfc(text: str) -> str:
    """Normalize to NFC, in time that does not grow with the square of a run of marks.

    Python sorts the marks of a character by insertion, which is fast if they are sorted.
    """
    if len(text) > _FEW_MARKS:
        decomposed = itertools.chain.from_iterable(unicodedata.normalize("NFD", c) for c in text)
        runs = itertools.groupby(decomposed, lambda c: unicodedata.combining(c) > 0)
        text = "".join(
            "".join(sorted(run, key=unicodedata.combining) if marks else run) for marks, run in runs
        )
    return unicodedata.normalize("NFC", text)


def _first_end(text: str, at: int) -> int:
    """Return the end of the word at a position, or of its character if no word is there."""
    end = at + 1
    if _JOINING[text[at]]:
        while end < len(text) and _JOINING[text[end]]:
            end += 1
    return end

"""Translation memories: translations of earlier texts, used before the model."""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import pathname2url
from xml.etree import ElementTree

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.files.translation import Origin, Translated
from translate_trt.runtime.text.languages import base_of

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Elements of TMX that hold codes of a format and not text.
_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))
# What may differ in two texts with the same translation: numbers and placeholders.
_VARIABLE = re.compile(
    r"\$?\{\{?[^{}]*\}?\}|%\(\w+\)[a-zA-Z]|%(?:\d+\$)?[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z]|"
    r"\d+(?:[.,:/\u202f\xa0]\d+)*"
)
_MARK = "\ufffc"


class _Pair(NamedTuple):
    source: str
    target: str


class TranslationMemory:
    """Pairs of texts, found by equal or similar sources.

    Texts that differ in numbers and placeholders alone are equal, if the translation has them as
    the source does; it gets those of the text.

    Args:
        pairs: Sources and their translations; of equal sources the last counts.
        similarity: Least similarity of a match, from 0 to 1, where 1 is equal: 1 minus the
            Levenshtein distance over the length of the longer text.

    Raises:
        OptionError: The similarity is out of range, or `rapidfuzz` is missing.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], similarity: float = 1.0) -> None:
        if not 0 < similarity <= 1:
            raise OptionError(f"memory_similarity is {similarity}; it must be above 0, at most 1.")
        self._similarity = similarity
        self._by_text: dict[str, str] = {}
        self._by_form: dict[str, _Pair] = {}
        for source, target in pairs:
            self._by_text[source] = target
            self._by_form[_form(source)] = _Pair(source, target)
        self._forms = sorted(self._by_form, key=len) if similarity < 1 else []
        self._lengths = [*map(len, self._forms)]
        if similarity < 1:
            try:
                from rapidfuzz import process
                from rapidfuzz.distance import Levenshtein
            except ModuleNotFoundError as error:
                raise OptionError(
                    "similar texts of a memory need rapidfuzz: pip install 'translate-trt[files]', "
                    "or leave memory_similarity at 1."
                ) from error
            self._extract, self._scorer = process.extractOne, Levenshtein.normalized_similarity

    @classmethod
    def read(
        cls,
        path: Path,
        source_language: str | None,
        target_language: str | None,
        similarity: float = 1.0,
    ) -> TranslationMemory:
        """Read the pairs of two languages from a file.

        Args:
            path: TMX, or a SQLite database with the tables `sources` (sid, text, lang) and
                `targets` (sid, text, lang), as the Translate Toolkit's `build_tmdb` makes it.
            source_language: Language code; regions are ignored ("en" finds "en-US").
            target_language: Likewise.
            similarity: See the class.

        Raises:
            InputError: The file cannot be read, or has no pair of these languages.
            OptionError: A language is unknown.
        """
        if source_language is None or target_language is None:
            missing = "source_language" if source_language is None else "target_language"
            raise OptionError(f"a memory has pairs of many languages; give {missing}.")
        languages = base_of(source_language), base_of(target_language)
        try:
            with path.open("rb") as file:
                is_database = file.read(16).startswith(b"SQLite format 3")
            read = _database_pairs if is_database else _tmx_pairs
            memory = cls(read(path, *languages), similarity)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}.") from error
        except (sqlite3.Error, ElementTree.ParseError) as error:
            raise InputError(
                f"{path} is neither TMX nor a SQLite database with the tables sources and targets: "
                f"{error}."
            ) from error
        if not len(memory):
            raise InputError(f"{path} has no pair of {languages[0]} and {languages[1]}.")
        return memory

    def __len__(self) -> int:
        return len(self._by_text)

    def find(self, text: str, kind: str) -> Translated | None:
        """Return the translation of an equal or similar text; None if there is none.

        Args:
            text: Text of a segment.
            kind: Kind of the segment; only plain text has matches, since memories of other tools
                have other tags.
        """
        if kind != "text":
            return None
        if (target := self._by_text.get(text)) is not None:
            return Translated(target, Origin("exact"))
        form = _form(text)
        similarity, pair = 1.0, self._by_form.get(form)
        if pair is None and self._forms:
            first = bisect_left(self._lengths, int(len(form) * self._similarity))
            last = bisect_right(self._lengths, int(len(form) / self._similarity) + 1)
            best = self._extract(
                form, self._forms[first:last], scorer=self._scorer, score_cutoff=self._similarity
            )
            if best is not None:
                pair, similarity = self._by_form[best[0]], best[1]
        if pair is None:
            return None
        translation = _with_variables(pair, text)
        if translation is None:
            return None
        return Translated(translation, Origin("exact" if similarity == 1 else "fuzzy", similarity))


def _form(text: str) -> str:
    """Return a text with one character for each number and placeholder, and single spaces."""
    return " ".join(_VARIABLE.sub(_MARK, text).split())


def _with_variables(pair: _Pair, text: str) -> str | None:
    """Return a pair's translation with the numbers and placeholders of another source.

    None if the translation does not have those of its own source, each as often.
    """
    old, new = _VARIABLE.findall(pair.source), _VARIABLE.findall(text)
    if old == new:
        return pair.target
    if len(old) != len(new) or sorted(old) != sorted(_VARIABLE.findall(pair.target)):
        return None
    waiting: dict[str, list[str]] = {}
    for before, after in zip(old, new, strict=True):
        waiting.setdefault(before, []).append(after)
    return _VARIABLE.sub(lambda found: waiting[found[0]].pop(0), pair.target)


def _tmx_pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    for _, element in ElementTree.iterparse(path):
        if _name(element) != "tu":
            continue
        texts: dict[str, str] = {}
        for variant in element.findall("{*}tuv"):
            language = variant.get(_LANGUAGE) or variant.get("lang") or ""
            if (segment := variant.find("{*}seg")) is not None:
                texts.setdefault(base_of(language), "".join(_text_of(segment)).strip())
        if texts.get(source) and texts.get(target):
            yield texts[source], texts[target]
        element.clear()


def _name(element: ElementTree.Element) -> str:
    """Return the name of an element; some programs write the namespace of TMX 1.4."""
    return element.tag.rpartition("}")[2]


def _text_of(element: ElementTree.Element) -> Iterator[str]:
    if _name(element) not in _CODES:
        yield element.text or ""
        for child in element:
            yield from _text_of(child)
            yield child.tail or ""


def _database_pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    query = (
        "SELECT s.text, t.text FROM sources s JOIN targets t ON t.sid = s.sid "
        "WHERE (s.lang = ?1 OR s.lang LIKE ?1 || '-%' OR s.lang LIKE ?1 || '\\_%' ESCAPE '\\') "
        "AND (t.lang = ?2 OR t.lang LIKE ?2 || '-%' OR t.lang LIKE ?2 || '\\_%' ESCAPE '\\') "
        "ORDER BY t.tid"
    )
    database = sqlite3.connect(f"file:{pathname2url(str(path))}?mode=ro", uri=True)
    try:
        for found_source, found_target in database.execute(query, (source, target)):
            yield str(found_source).strip(), str(found_target).strip()
    finally:
        database.close()

"""Labelled bracketing scores of parse trees, as the program EVALB computes them.

Parsers are compared by these scores (Sekine and Collins 1997; the paper's Table 4 has F1 on all
sentences). `COLLINS` has the rules of the parameter file of published results. Each tree is
a line of bracketings, such as "(S (NP (PRP It)) (VP (VBZ works)) (. .))".
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeGuard

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.text.bracketings import (
    TRACE,
    Closing,
    Event,
    Opening,
    Word,
    category,
    read_bracketing,
    render,
)

_QUOTES = frozenset(("'", '"', "/"))


@dataclass(frozen=True)
class Rules:
    """Rules of a parameter file of EVALB.

    Attributes:
        deleted: Labels whose brackets do not count; words with such a tag are removed.
        unmeasured: Tags of words that do not count in the length of a sentence.
        equal_labels: Pairs of labels that count as equal.
        equal_words: Pairs of words that count as equal.
        quote_tags: Tags that a quotation mark may have; see `_restore_quotes`.
        cutoff: Longest sentence of the second summary, in words.
    """

    deleted: frozenset[str] = frozenset()
    unmeasured: frozenset[str] = frozenset()
    equal_labels: frozenset[frozenset[str]] = frozenset()
    equal_words: frozenset[frozenset[str]] = frozenset()
    quote_tags: frozenset[str] = frozenset()
    cutoff: int = 40


#: COLLINS.prm, and the quotation marks of EVALB's new.prm: without these, a mark that one side
#: tags as punctuation makes the whole sentence an error.
COLLINS = Rules(
    deleted=frozenset(("TOP", "-NONE-", ",", ":", "``", "''", ".")),
    unmeasured=frozenset(("-NONE-",)),
    equal_labels=frozenset((frozenset(("ADVP", "PRT")),)),
    quote_tags=frozenset(("``", "''", "POS", "NN", "CD", "VBZ", ":")),
)


class Status(IntEnum):
    """Status of a sentence."""

    SCORED = 0
    ERROR = 1  # the words differ, or the brackets are not balanced
    SKIPPED = 2  # no words


@dataclass(frozen=True)
class SentenceScore:
    """Counts of one sentence; all but length and words are zero unless it was scored.

    Attributes:
        length: Words of the gold tree, without those that are not measured.
        status: Whether it was scored.
        matched: Brackets of both trees.
        gold: Brackets of the gold tree.
        test: Brackets of the other tree.
        crossing: Brackets of the other tree that overlap a bracket of the gold tree, neither
            inside the other.
        words: Words of the gold tree that are left.
        tags: Words with the same tag in both trees.
    """

    length: int
    status: Status
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0

    @property
    def complete(self) -> bool:
        """Whether all brackets are equal."""
        return self.matched == self.gold == self.test


@dataclass(frozen=True)
class Summary:
    """Scores of a test set, as percentages where EVALB has them.

    Attributes:
        sentences: Number of sentences.
        errors: Sentences that were not scored since the words differ.
        skipped: Sentences without words.
        recall: Share of the gold brackets that were found.
        precision: Share of the brackets that are right.
        f1: Harmonic mean of both.
        complete: Share of the sentences whose brackets are all equal.
        crossing: Mean number of crossing brackets of a sentence.
        not_crossing: Share of the sentences without crossing brackets.
        at_most_two: Share of the sentences with at most two.
        tagging: Share of the words with the right tag.
    """

    sentences: int
    errors: int
    skipped: int
    recall: float
    precision: float
    f1: float
    complete: float
    crossing: float
    not_crossing: float
    at_most_two: float
    tagging: float


@dataclass
class _Bracket:
    start: int
    label: str
    end: int = -1


@dataclass(frozen=True)
class _Quote:
    """Quotation mark: its position among the words, and the brackets around and after it."""

    tag: str
    word: str
    position: int
    following: int  # number of the first bracket that opens after it
    around: tuple[int, ...]


@dataclass
class _Brackets:
    """Words, tags and brackets of a line, without deleted words."""

    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    brackets: list[_Bracket] = field(default_factory=list)
    quotes: list[_Quote] = field(default_factory=list)
    length: int = 0


def score_lines(
    test: Sequence[str], gold: Sequence[str], rules: Rules = COLLINS
) -> list[SentenceScore]:
    """Score trees, one per line, against the gold trees of the same lines.

    Raises:
        InputError: A gold line is not a tree; errors of the other side only have a status.
    """
    found = []
    for number, (right, line) in enumerate(zip(gold, test, strict=True), start=1):
        try:
            expected = _read(right, rules)
        except ValueError as error:
            raise InputError(f"line {number} of the gold trees: {error}.") from None
        found.append(_score(line, expected, rules))
    return found


def with_tags_of(gold: str, test: str) -> str:
    """Return a tree with the tags of the gold tree; unchanged if it has other words or is none.

    Tags decide which words are punctuation, so a sentence in which a parser tags one of them
    otherwise has other words for EVALB, and does not count. With gold tags, all sentences count.
    Traces are no words here, on either side.
    """
    try:
        events, gold_events = list(read_bracketing(test)), list(read_bracketing(gold))
    except ValueError:
        return test
    words, found = _words(gold_events), _words(events)
    if [word.text for word in found] != [word.text for word in words]:
        return test
    tagged = iter(words)
    return render(next(tagged) if _is_word(event) else event for event in events)


def _words(tree: Sequence[Event]) -> list[Word]:
    return [event for event in tree if _is_word(event)]


def _is_word(event: Event) -> TypeGuard[Word]:
    return isinstance(event, Word) and event.tag != TRACE


def summarize(scores: Sequence[SentenceScore]) -> Summary:
    """Summarize the scores of sentences; zeros if none was scored."""
    scored = [one for one in scores if one.status is Status.SCORED]
    statuses = Counter(one.status for one in scores)
    matched, gold = sum(one.matched for one in scored), sum(one.gold for one in scored)
    test, count = sum(one.test for one in scored), len(scored)
    return Summary(
        len(scores), statuses[Status.ERROR], statuses[Status.SKIPPED],
        recall=_percent(matched, gold),
        precision=_percent(matched, test),
        f1=_percent(2 * matched, gold + test),
        complete=_percent(sum(one.complete for one in scored), count),
        crossing=_percent(sum(one.crossing for one in scored), count) / 100,
        not_crossing=_percent(sum(one.crossing == 0 for one in scored), count),
        at_most_two=_percent(sum(one.crossing <= 2 for one in scored), count),
        tagging=_percent(sum(one.tags for one in scored), sum(one.words for one in scored)),
    )  # fmt: skip


def short(scores: Sequence[SentenceScore], rules: Rules = COLLINS) -> list[SentenceScore]:
    """Return the scores of the sentences that are not longer than the cut-off."""
    return [one for one in scores if one.length <= rules.cutoff]


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _read(line: str, rules: Rules) -> _Brackets:
    """Read the brackets of a line.

    Raises:
        ValueError: They are not balanced, or a bracket has more than a tag and a word.
    """
    found = _Brackets()
    open_brackets: list[int] = []
    for event in read_bracketing(line):
        match event:
            case Opening(label):
                open_brackets.append(len(found.brackets))
                found.brackets.append(_Bracket(len(found.words), label))
            case Word(tag, word):
                _add_word(found, tag, word, open_brackets, rules)
            case Closing():
                found.brackets[open_brackets.pop()].end = len(found.words)
    return found


def _add_word(
    found: _Brackets, tag: str, word: str, open_brackets: Sequence[int], rules: Rules
) -> None:
    found.length += tag not in rules.unmeasured
    if tag in rules.quote_tags and word in _QUOTES:
        found.quotes.append(
            _Quote(tag, word, len(found.words), len(found.brackets), tuple(open_brackets))
        )
    if tag not in rules.deleted:
        found.words.append(word)
        found.tags.append(tag)


def _score(line: str, gold: _Brackets, rules: Rules) -> SentenceScore:
    """Score a line; see `SentenceScore`."""
    try:
        test = _read(line, rules)
    except ValueError:
        return SentenceScore(gold.length, Status.ERROR, words=len(gold.words))
    if not test.words:
        return SentenceScore(gold.length, Status.SKIPPED, words=len(gold.words))
    if len(gold.words) != len(test.words):
        gold, test = _restore_quotes(gold, test, rules)
    same_words = len(gold.words) == len(test.words) and all(
        _equal(one, other, rules.equal_words)
        for one, other in zip(gold.words, test.words, strict=True)
    )
    if not same_words:
        return SentenceScore(gold.length, Status.ERROR, words=len(gold.words))
    right, found = _counted(gold, rules), _counted(test, rules)
    tags = zip(gold.tags, test.tags, strict=True)
    return SentenceScore(
        gold.length, Status.SCORED, _matches(right, found, rules), len(right), len(found),
        sum(any(_cross(one, other) for one in right) for other in found), len(gold.words),
        sum(_equal(one, other, rules.equal_labels) for one, other in tags),
    )  # fmt: skip


def _restore_quotes(gold: _Brackets, test: _Brackets, rules: Rules) -> tuple[_Brackets, _Brackets]:
    """Put back deleted quotation marks that the other side has with a tag that is kept.

    A tagger that takes a mark for something else would otherwise make the words differ.
    """
    gold, test = copy.deepcopy(gold), copy.deepcopy(test)
    for index in range(len(test.quotes)):
        for number in range(len(gold.quotes)):
            one, other = gold.quotes[number], test.quotes[index]
            if one.position != other.position or one.tag == other.tag:
                continue
            if one.tag in rules.deleted and other.tag not in rules.deleted:
                _insert(gold, number)
            elif other.tag in rules.deleted and one.tag not in rules.deleted:
                _insert(test, index)
    return gold, test


def _insert(side: _Brackets, number: int) -> None:
    """Insert a quotation mark among the words again; brackets and later marks move."""
    quote = side.quotes[number]
    side.words.insert(quote.position, quote.word)
    side.tags.insert(quote.position, quote.tag)
    for bracket in side.brackets[quote.following :]:
        bracket.start += 1
        bracket.end += 1
    for around in quote.around:
        side.brackets[around].end += 1
    side.quotes[number:] = [
        dataclasses.replace(one, position=one.position + 1) for one in side.quotes[number:]
    ]


def _counted(side: _Brackets, rules: Rules) -> list[_Bracket]:
    """Return the brackets that count, with labels without functions ("NP-SBJ" is NP)."""
    found = []
    for bracket in side.brackets:
        label = category(bracket.label)
        if bracket.start == bracket.end:
            continue
        if any(_equal(label, deleted, rules.equal_labels) for deleted in rules.deleted):
            continue
        found.append(_Bracket(bracket.start, label, bracket.end))
    return found


def _matches(gold: Sequence[_Bracket], test: Sequence[_Bracket], rules: Rules) -> int:
    """Count the brackets of both sides; each counts once."""
    left = list(test)
    matched = 0
    for one in gold:
        for index, other in enumerate(left):
            if (one.start, one.end) == (other.start, other.end) and _equal(
                one.label, other.label, rules.equal_labels
            ):
                del left[index]
                matched += 1
                break
    return matched


def _cross(one: _Bracket, other: _Bracket) -> bool:
    return one.start < other.start < one.end < other.end or (
        other.start < one.start < other.end < one.end
    )


def _equal(one: str, other: str, pairs: frozenset[frozenset[str]]) -> bool:
    return one == other or frozenset((one, other)) in pairs

"""Positions in a translation of the tags of its source text.

Every element keeps one range of the translation, inside that of the element that it is in, and
apart from those beside it. So the tags of well-formed markup are well-formed at their new places,
whatever the alignment is.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.text.alignment import Alignment
from translate_trt.runtime.text.tokenizer import Span

#: Punctuation marks that have no space before them.
CLOSING = frozenset(".,;:!?)]}\u2026\u3002\uff0c\uff01\uff1f")

# A word with its apostrophes and hyphens, or another character.
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*|\S")
# A mass is in billionths, rounded. Otherwise rounding errors, which depend on the order of
# additions, would break ties.
_BILLION = 1e9
# Characters beside a tag in which its neighbouring word is looked for. Without a limit, the time
# for many tags beside a long word would grow with the square of the text's length.
_NEAR = 200
# Scripts without spaces between words, in which a unit is a token: Thai to Khmer, kana, ideographs.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


class Side(Enum):
    """Neighbour of an element that has no text, on one of its sides."""

    EDGE = auto()  # of the element around it, whose own sides count; or of no interest
    SPACE = auto()
    WORD = auto()
    APART = auto()  # a punctuation mark, or the end of the text


@dataclass(eq=False)
class Element:
    """An element, or anything else that keeps its place in the text, such as a comment.

    Attributes:
        opening: Start tag, or the whole of what has no content.
        closing: End tag.
        begin: Position in the plain text.
        end: End of its content in the plain text.
        children: Elements inside it, in order.
        before: What is before it in the text, if it has no text. Others without text, such as
            images, count as nothing.
        after: What is after it, likewise.
        keeps_before: Whether it has the same before it in the translation: it is seen although it
            has no text, as an image, and is the first of several such.
        keeps_after: Whether it has the same after it, likewise.
        is_copy: Whether its content is a copy in the translation, which `opening` replaces.
    """

    opening: str
    closing: str
    begin: int
    end: int
    children: list[Element] = field(default_factory=list)
    before: Side = Side.EDGE
    after: Side = Side.EDGE
    keeps_before: bool = False
    keeps_after: bool = False
    is_copy: bool = False


@dataclass(frozen=True)
class _Placed:
    """An element at its place.

    Attributes:
        element: The element.
        begin: Twice the number of units before it, at the end of the last of these; plus 1 if it
            is beyond the white space, at the begin of the next unit.
        end: Likewise; an element with units begins at the begin of the first, and ends at the end
            of the last.
    """

    element: Element
    begin: int
    end: int


class Mass(NamedTuple):
    """Attention of consecutive units to a part of the plain text.

    Other units do not attend to it, so that time and memory of all elements grow with the text, and
    not with its square.

    Attributes:
        first: Index of the first unit that attends to it.
        values: [units] attention of each, up to the last that attends; whole billionths.
    """

    first: int
    values: NDArray[np.float64]

    @property
    def end(self) -> int:
        """Index after the last unit."""
        return self.first + len(self.values)

    def of(self, unit: int) -> float:
        """Return the attention of a unit."""
        return float(self.values[unit - self.first]) if self.first <= unit < self.end else 0.0


class _Block(NamedTuple):
    """Attention of consecutive units to a sentence of the plain text.

    Attributes:
        first: Index of the first unit.
        offset: Begin of the sentence.
        edges: [edges] begins and ends of its tokens, from 0 to its length, ascending.
        sums: [units, edges] attention to all characters of the sentence before each.
    """

    first: int
    offset: int
    edges: NDArray[np.int64]
    sums: NDArray[np.float64]

    @property
    def end(self) -> int:
        """End of the sentence."""
        return self.offset + int(self.edges[-1])

    def before(self, position: int, rows: slice) -> NDArray[np.float64]:
        """Return the attention of units to all characters before a position, [units]."""
        within = min(max(position - self.offset, 0), int(self.edges[-1]))
        edge = int(np.searchsorted(self.edges, within, "right")) - 1
        found: NDArray[np.float64] = self.sums[rows, edge]
        if within > self.edges[edge]:
            begin, end = self.edges[edge : edge + 2].tolist()
            found = found + (within - begin) / (end - begin) * (self.sums[rows, edge + 1] - found)
        return found


class _Copied(NamedTuple):
    """Units that are copies, each of which attends to its source in equal parts.

    Attributes:
        units: [copies] index of each.
        begins: [copies] begin of its source, ascending.
        ends: [copies] end of its source, ascending.
    """

    units: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def within(self, span: Span, low: int, high: int) -> _Copied:
        """Return those of the units from `low` to `high` whose source is partly in a span."""
        first, last = (
            np.searchsorted(self.ends, span[0], "right"),
            np.searchsorted(self.begins, span[1]),
        )
        found = _Copied(*(part[first:last] for part in self))
        chosen = (low <= found.units) & (found.units < high)
        return _Copied(*(part[chosen] for part in found))

    def before(self, position: int) -> NDArray[np.float64]:
        """Return the attention of each to all characters before a position, [copies]."""
        sizes = self.ends - self.begins
        characters = np.clip(position - self.begins, 0, sizes)
        steps = 1.0 / np.maximum(sizes, 1)
        return np.where((characters == sizes) & (sizes > 0), 1.0, characters * steps)


class Units:
    """Words and punctuation marks of a translation, and their attention to the source.

    Args:
        alignment: Alignment of the plain text and its translation.
        copies: Spans of the source and of the translation that are copies of each other. Each is
            one unit.
        cuts: Positions in the plain text where elements begin or end.
    """

    def __init__(
        self, alignment: Alignment, copies: Iterable[tuple[Span, Span]], cuts: Iterable[int]
    ) -> None:
        self.source, self.text = alignment.source, alignment.target
        self._copies = {target: source for source, target in copies}
        self._cut_copies(cuts)
        token_starts = {
            begin for segment in alignment.segments for begin, _ in map(self._bare, segment.target)
        }
        self.spans: list[Span] = []
        for begin, end in self._words():
            starts: list[int] = []
            if (begin, end) not in self._copies and _WITHOUT_SPACES.search(self.text, begin, end):
                starts = sorted(token_starts.intersection(range(begin + 1, end)))
            self.spans += pairwise([begin, *starts, end])
        # Sentences and copies are apart from each other, so their ends are in order, too.
        self._blocks = sorted(self._attention(alignment), key=lambda block: block.offset)
        self._begins_of_blocks = [block.offset for block in self._blocks]
        self._ends_of_blocks = [block.end for block in self._blocks]
        self._unit_of_copy = {
            self._copies[span]: unit
            for unit, span in reversed([*enumerate(self.spans)])
            if span in self._copies
        }
        copied = sorted((*source, unit) for source, unit in self._unit_of_copy.items())
        begins, ends, units = np.array(copied, np.int64).reshape(-1, 3).T
        self._copied = _Copied(units, begins, ends)
        self._indices: dict[str, NDArray[np.int64]] = {}  # of the units, by their text

    def __len__(self) -> int:
        return len(self.spans)

    def mass(self, span: Span, low: int, high: int) -> Mass:
        """Return the attention of the units from `low` to `high` to a span of the plain text."""
        parts: list[tuple[int, NDArray[np.float64]]] = []
        blocks = slice(
            bisect_right(self._ends_of_blocks, span[0]),
            bisect_left(self._begins_of_blocks, span[1]),
        )
        for block in self._blocks[blocks]:
            begin, end = max(low, block.first), min(high, block.first + len(block.sums))
            if begin < end:
                rows = slice(begin - block.first, end - block.first)
                parts.append((begin, block.before(span[1], rows) - block.before(span[0], rows)))
        copied = self._copied.within(span, low, high)
        edges = [edge for first, part in parts for edge in (first, first + len(part))]
        if len(copied.units):
            edges += [int(copied.units.min()), int(copied.units.max()) + 1]
        begin, end = min(edges, default=0), max(edges, default=0)
        found = np.zeros(end - begin)
        for first, part in parts:
            found[first - begin : first - begin + len(part)] += part
        found[copied.units - begin] += copied.before(span[1]) - copied.before(span[0])
        found = np.rint(_BILLION * found)
        attending = np.flatnonzero(found)
        if not len(attending):
            return Mass(low, found[:0])
        first, last = int(attending[0]), int(attending[-1]) + 1
        return Mass(begin + first, found[first:last])

    def copy_of(self, element: Element) -> int | None:
        """Return the unit that is a copy of the content of an element."""
        return self._unit_of_copy.get((element.begin, element.end))

    def indices_of(self, word: str, low: int, high: int) -> NDArray[np.int64]:
        """Return the indices of the units from `low` to `high` that are a word."""
        if not self._indices:
            by_text: dict[str, list[int]] = {}
            for unit, span in enumerate(self.spans):
                by_text.setdefault(self.text[slice(*span)], []).append(unit)
            self._indices = {text: np.array(units) for text, units in by_text.items()}
        found = self._indices.get(word, np.zeros(0, np.int64))
        first, last = np.searchsorted(found, (low, high))
        return found[first:last]

    def position(self, stream: int) -> int:
        """Return the character at a position of `_Placed`."""
        index, before = divmod(stream, 2)
        if before:
            return self.spans[index][0] if index < len(self.spans) else len(self.text)
        return self.spans[index - 1][1] if index > 0 else 0

    def _bare(self, span: Span, source: bool = False) -> Span:
        """Return a span without white space at its ends."""
        text = (self.source if source else self.text)[slice(*span)]
        bare = text.strip()
        begin = span[0] + text.index(bare)
        return begin, begin + len(bare)

    def _words(self) -> list[Span]:
        words, end = [], 0
        for begin, after in sorted(self._copies):
            words += [word.span() for word in _WORD.finditer(self.text, end, begin)]
            words.append((begin, after))
            end = after
        return words + [word.span() for word in _WORD.finditer(self.text, end)]

    def _cut_copies(self, cuts: Iterable[int]) -> None:
        """Cut words of the translation where the same words of the source are cut: H<sub>2</sub>O.

        A word that occurs once in each text is a copy, and so are its parts.
        """
        wanted = sorted(set(cuts))
        if not wanted:
            return
        words = [word.span() for word in _WORD.finditer(self.source)]
        here = Counter(self.source[slice(*span)] for span in words)
        there: dict[str, list[Span]] = {}
        for span in self._words():
            there.setdefault(self.text[slice(*span)], []).append(span)
        for begin, end in words:
            inside = wanted[bisect_right(wanted, begin) : bisect_left(wanted, end)]
            word = self.source[begin:end]
            found = there.get(word, [])
            if inside and here[word] == len(found) == 1 and found[0] not in self._copies:
                shift = found[0][0] - begin
                for first, last in pairwise([begin, *inside, end]):
                    self._copies[first + shift, last + shift] = first, last

    def _attention(self, alignment: Alignment) -> Iterator[_Block]:
        """Iterate over the attention of all units."""
        begins, ends = [begin for begin, _ in self.spans], [end for _, end in self.spans]
        for segment in alignment.segments:
            sources = [self._bare(span, source=True) for span in segment.source]
            if not sources:
                continue
            offset, size = sources[0][0], max(0, sources[-1][1] - sources[0][0])
            # The attention to a token is that to its characters, in equal parts, so the sums at the
            # ends of tokens are enough. A token may have any number of characters, such as
            # invisible ones. A token of spaces has the character before it.
            begins_of = np.array([min(begin, end - 1) for begin, end in sources]) - offset
            tokens = np.stack([begins_of, np.array(sources)[:, 1] - offset]).clip(0, size)
            edges = np.unique(np.append(tokens, (0, size)))
            sizes = (tokens[1] - tokens[0])[:, None]
            shares = (edges - tokens[0][:, None]).clip(0, sizes) / np.maximum(sizes, 1)
            units = []
            for begin, end in map(self._bare, segment.target):
                first = bisect_right(ends, begin)
                last = max(bisect_left(begins, end), first + 1)
                units.append((first, min(last, len(self.spans))))
            first, last = (choose(part, default=0) for choose, part in (
                (min, [unit for unit, _ in units]), (max, [unit for _, unit in units])
            ))  # fmt: skip
            sums = np.zeros((max(0, last - first), len(edges)))
            of_tokens = np.zeros((len(segment.weights), len(edges)))
            np.cumsum(segment.weights @ np.diff(shares, axis=1), axis=1, out=of_tokens[:, 1:])
            for (begin, end), of_token in zip(units, of_tokens, strict=True):
                sums[begin - first : end - first] += of_token
            for unit in range(first, last):
                if self.spans[unit] in self._copies:
                    sums[unit - first] = 0.0
            yield _Block(first, offset, edges, sums)


def place_tags(
    elements: Sequence[Element], units: Units, render_text: Callable[[int, int], str]
) -> str | None:
    """Return a translation with the tags of its source at the places of the words they are at.

    Args:
        elements: Elements of the plain text, in order.
        units: Words of the translation.
        render_text: Returns the characters between two positions of the translation, encoded.

    Returns:
        The text; None if a copy is not where the element is that it must be in.
    """
    root = Element("", "", 0, len(units.source), list(elements))
    parts: list[str] = []
    # Elements to open, and strings to write, last first.
    pending: list[_Placed | str] = [_Placed(root, 0, 2 * len(units) + 1)]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        element, begin, end = item.element, item.begin, item.end
        if element.is_copy:
            parts.append(element.opening)
            continue
        children = _placed_children(item, units)
        if children is None:
            return None
        left, right = _missing_spaces(element, units, begin)
        content: list[_Placed | str] = [left + element.opening]
        cursor, last = begin, None
        for child in (*children, None):
            text = _between(units, cursor, end if child is None else child.begin, render_text)
            # No space is beside what touches a word in the source.
            if last is not None and last.keeps_after and last.after is Side.WORD:
                text = text.lstrip()
            if child is None:
                content += [text, element.closing + right]
                break
            last, cursor = child.element, child.end
            if last.keeps_before and last.before is Side.WORD:
                text = text.rstrip()
            content += [text, child]
        pending += reversed(content)
    return "".join(parts)


def _between(units: Units, begin: int, end: int, render_text: Callable[[int, int], str]) -> str:
    return render_text(units.position(begin), units.position(end)) if begin < end else ""


def _missing_spaces(element: Element, units: Units, stream: int) -> tuple[str, str]:
    """Return the spaces that an element without text has beside it in the source, if missing.

    What touches no word in the source, as before a full stop, touches none in the translation,
    unless its words have no spaces between them.
    """
    text, position = units.text, units.position(stream)
    before, after = text[max(0, position - 1) : position], text[position : position + 1]
    left = before.strip() if element.before is Side.SPACE else _apart(element.before, before)
    is_word = after.strip() and after not in CLOSING
    right = is_word if element.after is Side.SPACE else _apart(element.after, after)
    return (
        " " if element.keeps_before and left else "",
        " " if element.keeps_after and right else "",
    )


def _apart(side: Side, character: str) -> bool:
    """Return whether a space separates an element from the word with a character."""
    return side is Side.APART and character.isalnum() and not _WITHOUT_SPACES.match(character)


def _placed_children(parent: _Placed, units: Units) -> list[_Placed] | None:
    """Place the children of an element inside its range, in the order of the translation.

    Returns:
        The children; None if the range does not have the copy of a child.
    """
    children = parent.element.children
    if not children:
        return []
    low, high = parent.begin // 2, parent.end // 2
    taken = np.full(max(0, high - low), -1)  # index of the child that has a unit
    placed: dict[int, _Placed] = {}
    for index, child in enumerate(children):
        if child.is_copy:
            unit = units.copy_of(child)
            if unit is None or not low <= unit < high:
                return None
            taken[unit - low] = index
            placed[index] = _Placed(child, 2 * unit + 1, 2 * unit + 2)
    masses = {
        index: units.mass((child.begin, child.end), low, high)
        for index, child in enumerate(children)
        if units.source[child.begin : child.end].strip() and low < high and index not in placed
    }
    whole = units.mass((parent.element.begin, parent.element.end), low, high)
    for index, (first, last) in _ranges(masses, whole, taken, low).items():
        placed[index] = _Placed(children[index], 2 * first + 1, 2 * last)
    runs = _Runs(taken)
    for index, child in enumerate(children):
        if index not in placed:
            at = _point(child, parent, units, runs, low)
            placed[index] = _Placed(child, at, at)
    order = sorted(placed, key=lambda index: (placed[index].begin, placed[index].end, index))
    return [placed[index] for index in order]


class _Runs:
    """Runs of units that the same child has.

    Args:
        taken: Index of the child that has each unit, or -1.
    """

    def __init__(self, taken: NDArray[np.int64]) -> None:
        self.count = len(taken)
        self._is_taken = taken >= 0
        self._begins = np.flatnonzero(np.diff(taken, prepend=-2))

    def last_of(self, unit: int, forwards: bool) -> int:
        """Return the last unit, in a direction, of the run of a unit; itself if no child has it."""
        if not self._is_taken[unit]:
            return unit
        run = int(np.searchsorted(self._begins, unit, "right"))
        if not forwards:
            return int(self._begins[run - 1])
        return int(self._begins[run]) - 1 if run < len(self._begins) else self.count - 1


def _ranges(
    masses: Mapping[int, Mass], whole: Mass, taken: NDArray[np.int64], low: int
) -> dict[int, tuple[int, int]]:
    """Choose the units of each child with text, as a range.

    A unit is worth more to a child the more its attention to the child exceeds that to anything
    else in the parent. Children choose in the order of what they gain. Each has a unit at least,
    if one is left.

    Args:
        masses: Attention to each child.
        whole: Attention to the parent.
        taken: Child that has a unit, or -1, from `low` on; receives the choice.
        low: First unit of the parent.
    """
    # The largest attention of each unit to a child or the rest, and the second largest.
    largest, second = np.zeros(len(taken)), np.zeros(len(taken))
    largest[whole.first - low : whole.end - low] = whole.values
    spans = {index: slice(mass.first - low, mass.end - low) for index, mass in masses.items()}
    for index, mass in masses.items():
        largest[spans[index]] -= mass.values
    for index, mass in masses.items():
        span = spans[index]
        second[span] = np.maximum(second[span], np.minimum(largest[span], mass.values))
        largest[span] = np.maximum(largest[span], mass.values)
    gains = {}
    for index, mass in masses.items():
        top, next_ = largest[spans[index]], second[spans[index]]
        gains[index] = mass.values - np.where(mass.values == top, next_, top)
    found = {}
    free = 0  # units before it are taken
    for index in sorted(gains, key=lambda one: -float(np.maximum(gains[one], 0).sum())):
        chosen = _best_range(gains[index], taken[spans[index]].tolist())
        if chosen is None:
            while free < len(taken) and taken[free] >= 0:
                free += 1
            if free == len(taken):
                continue
            first, last = free, free + 1
        else:
            first, last = (spans[index].start + edge for edge in chosen)
        taken[first:last] = index
        found[index] = low + first, low + last
    return found


def _best_range(gain: NDArray[np.float64], taken: Sequence[int]) -> tuple[int, int] | None:
    """Return the range of free units of the largest sum, or the best free unit; None for none."""
    best, chosen, total, first = 0.0, None, 0.0, 0
    for unit, value in enumerate(gain.tolist()):
        if taken[unit] >= 0:
            total, first = 0.0, unit + 1
            continue
        if total <= 0:
            total, first = 0.0, unit
        total += value
        if total > best:
            best, chosen = total, (first, unit + 1)
    if chosen is None:
        free = [unit for unit in range(len(gain)) if taken[unit] < 0]
        if free:
            unit = max(free, key=lambda one: float(gain[one]))
            chosen = unit, unit + 1
    return chosen


def _point(child: Element, parent: _Placed, units: Units, runs: _Runs, low: int) -> int:
    """Choose the place of a child without units: beside a word that is beside it in the source."""
    if not runs.count:
        return parent.begin
    source, begin, end = units.source, parent.element.begin, parent.element.end
    before = [word.span() for word in _last_word(source, begin, child.begin)]
    after = [word.span() for word in _first_word(source, child.end, end)]
    high = low + runs.count
    choices = []
    for words, follows in ((before, True), (after, False)):
        for word in words:
            mass = units.mass(word, low, high)
            side = child.before if follows else child.after
            gap = source[word[1] : child.begin] if follows else source[child.end : word[0]]
            # The plain text has the space before an element after it.
            touches = not gap or (not follows and child.before is Side.SPACE and gap.isspace())
            same = units.indices_of(source[slice(*word)], low, high)
            is_mark = not any(map(str.isalnum, source[slice(*word)]))
            unit = _best_unit(mass, same, is_mark, (low, high), follows)
            choices.append((touches and side is not Side.SPACE, mass.of(unit), follows, unit))
    if not choices:
        return parent.begin if child.begin <= begin else parent.end
    _, _, follows, unit = max(choices)
    # Not inside a sibling that has the unit.
    unit = low + runs.last_of(unit - low, follows)
    return 2 * (unit + 1) if follows else 2 * unit + 1


def _best_unit(
    mass: Mass, same: NDArray[np.int64], is_mark: bool, limits: tuple[int, int], last: bool
) -> int:
    """Return the unit of the largest mass; of several, one that is the word, or is at one end.

    A punctuation mark whose like the translation has is there, whatever it attends to.

    Args:
        mass: Attention to the word.
        same: Units that are the word.
        is_mark: Whether the word is a punctuation mark.
        limits: First unit, and the unit after the last.
        last: Whether the last of several units is returned, not the first.
    """
    attending = same[np.searchsorted(same, mass.first) : np.searchsorted(same, mass.end)]
    values = mass.values[attending - mass.first]
    is_mark = is_mark and bool(len(same))
    most = float((values if is_mark else mass.values).max(initial=0.0))
    if most > 0:  # otherwise, all units are equal
        same = attending[values == most]
        if not len(same):
            same = mass.first + np.flatnonzero(mass.values == most)
    if not len(same):
        return limits[1] - 1 if last else limits[0]
    return int(same[-1 if last else 0])


def _last_word(text: str, begin: int, end: int) -> list[re.Match[str]]:
    return list(_WORD.finditer(text, max(begin, end - _NEAR), end))[-1:]


def _first_word(text: str, begin: int, end: int) -> list[re.Match[str]]:
    found = _WORD.search(text, begin, min(end, begin + _NEAR))
    return [] if found is None else [found]

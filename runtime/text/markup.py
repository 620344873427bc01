"""Translation of texts with markup: tags leave the text before translation and return after it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import Alignment
from translate_trt.runtime.text.markup_tokens import (
    CDATA,
    DECLARATION,
    MARKUP,
    PARAGRAPH_BREAK,
    Token,
    encode_text,
    read_tokens,
)
from translate_trt.runtime.text.tag_placement import CLOSING, Element, Side, Units, place_tags
from translate_trt.runtime.text.tokenizer import Span
from translate_trt.runtime.text.translatable import is_translatable

_Result = TypeVar("_Result")


class PlainTexts(NamedTuple):
    """Texts to translate, and the index of the text with markup that each is from."""

    texts: list[str]
    owners: list[int]


#: Yields plain texts, and receives their translations with alignments.
Translating = Generator[PlainTexts, Sequence[Translation], _Result]

# Elements of HTML that separate texts, and other elements that a sentence does not go across.
_SEPARATING = """
    address article aside base basefont blockquote body br caption center col colgroup dd details
    dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6
    head header hgroup hr html iframe legend li link main menu meta nav noframes noscript object
    ol optgroup option p param pre search section select source summary table tbody td textarea
    tfoot th thead title tr track ul video
"""
_WITHOUT_END = "area base basefont br col embed frame hr img input link meta param source track wbr"
_BLOCKS, _VOID = frozenset(_SEPARATING.split()), frozenset(_WITHOUT_END.split())
# Blocks that a paragraph may contain.
_IN_PARAGRAPHS = """
    base basefont br iframe link meta noscript object optgroup option param select source textarea
    title track video
"""
# Elements whose end tag may be omitted, and the start tags that end them.
_ENDED_BY = {
    name: frozenset(starts.split())
    for names, starts in (
        ("li", "li"),
        ("dt dd", "dt dd"),
        ("rt rp", "rt rp"),
        ("optgroup", "optgroup"),
        ("option", "option optgroup"),
        ("caption", "col colgroup tbody tfoot thead tr"),
        ("tbody tfoot thead", "tbody tfoot thead"),
        ("tr", "tr tbody tfoot thead"),
        ("td th", "td th tr tbody tfoot thead"),
        ("head", "body"),
        ("body html", ""),
    )
    for name in names.split()
} | {"p": _BLOCKS.difference(_IN_PARAGRAPHS.split())}
# Elements whose content is no markup; others that are not seen; whose content is not text; of code.
_RAW = frozenset({"script", "style"})
_UNSEEN = _RAW | {"template"}
_NOT_TEXT = _UNSEEN | {"audio", "canvas", "math", "svg"}
_UNTRANSLATED = _NOT_TEXT | {
    "code", "iframe", "kbd", "object", "pre", "samp", "select", "textarea", "var", "video",
}  # fmt: skip
# Tags without content that are seen.
_OBJECTS = frozenset({"img", "input", "embed", CDATA})
# White space between tags, as both kinds of markup define it, and no-break spaces.
_SPACES = " \t\r\n\f\xa0"
# One such character, as it is or, except in texts without markup, as a reference. Texts of XML have
# no references that only HTML has.
_SPACE = re.compile(
    rf"[{_SPACES}] | &nbsp;? | &(?:NonBreakingSpace|NewLine|Tab);"
    r"| &\#0*+(?:9|10|12|13|32|160)(?![0-9]);?"
    r"| &\#[xX]0*+(?:[9aAcCdD]|20|[aA]0)(?![0-9a-fA-F]);?",
    re.VERBOSE,
)
# Two words with a no-break space between them, and with another space. The first may end in a
# symbol, as in "Dr.", and each may be one. Time is linear: no word is tried from inside.
_NO_BREAK_PAIR, _PAIR = (
    re.compile(rf"(?<!\w)(\w++[^\w\s]?+|[^\w\s]){space}(?=(\w++|[^\w\s]))") for space in "\xa0 "
)
# Placeholders of message catalogues: {{name}}, ${name}, {0}, %(name)s, %1$s, %.2f, %%. A percent
# sign without a name may be one of text, as in "100%", and has no letter or digit beside it.
# Messages with cases, as in {n, plural, one {day} other {days}}, are placeholders to their end.
# The quantifiers are possessive: both of the first two match zeros, in quadratic time otherwise.
_CONVERSION = r"[-+0\#]*+[0-9]*+(?:\.[0-9]++)?(?:hh?|ll?)?[sdiufFeEgGxXoc@]"
_PLACEHOLDERS = re.compile(
    r"(?P<cases> \{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,)"
    r"| \{\{[^{}\n]*\}\} | \$\{[^{}\n]*\} | \{[\w.:!+,\#-]*\} | %%"
    rf"| %(?:\(\w+\)|[0-9]+\$){_CONVERSION} | (?<![\w%])%{_CONVERSION}(?!\w)",
    re.VERBOSE,
)
# Most elements of a segment in each other: placing tags takes time for all words in each of them.
_MOST_NESTED = 100
# Longest text of an element that is shown to the model.
_LONGEST_SHOWN = 80


def text_without_tags(text: str) -> str:
    """Return the text of HTML: without tags, comments, styles and scripts."""
    parts, element = [], ""
    for token in read_tokens(text, "html"):
        if token.kind == "text" and element not in _RAW:
            parts.append(token.text)
        element = token.name if token.kind == "start" else ""
    return " ".join(parts)


def translate_markup(
    texts: Sequence[str], markup: str, whole: bool, names: LineNames
) -> Translating[list[Translation]]:
    """Translate texts with markup.

    Args:
        texts: Documents, or fragments of them.
        markup: One of MARKUP.
        whole: Texts are documents: their elements decide what a sentence does not go across. Of
            other texts of XML, no element does.
        names: Names of the texts in error messages.

    Yields:
        Plain texts to translate, of all texts together. The caller sends their translations.

    Returns:
        The translations of the texts.

    Raises:
        InputError: A text is not well-formed XML.
        OptionError: There is no such markup.
    """
    if markup not in MARKUP:
        raise OptionError(f"markup is {markup!r}; choose one of {', '.join(MARKUP)}.")
    documents = [
        _Document(read_tokens(text, markup, names[index]), markup, whole)
        for index, text in enumerate(texts)
    ]
    segments = [(owner, one) for owner, found in enumerate(documents) for one in found.segments]
    yield from _translate_segments(segments, shown=True)
    # Where the model did not copy what it was shown, it gets the text without it.
    incomplete = [(owner, one) for owner, one in segments if not one.complete]
    yield from _translate_segments(incomplete, shown=False)
    return [document.joined() for document in documents]


def _translate_segments(segments: Sequence[tuple[int, _Segment]], shown: bool) -> Translating[None]:
    """Translate segments, each with the index of its text."""
    plain = [segment.plain(shown) for _, segment in segments]
    texts = PlainTexts([], [])
    for (owner, _), one in zip(segments, plain, strict=True):
        if one.text:
            texts.texts.append(one.text)
            texts.owners.append(owner)
    found = iter((yield texts) if texts.texts else ())
    for (_, segment), one in zip(segments, plain, strict=True):
        segment.receive(one, next(found) if one.text else Translation((TextHypothesis("", 0.0),)))


@dataclass
class _Item:
    """A part of a segment.

    Attributes:
        kind: "text", "open", "close", "leaf" for a part without content that is translated, or
            "cut" for what separates segments.
        raw: Characters of the text with markup.
        text: Text of a text, or of a leaf that is shown to the model.
        silent: Whether a leaf leaves no trace in the text, as a comment.
        is_tag: Whether a leaf must stay in its element.
    """

    kind: str
    raw: str
    text: str = ""
    silent: bool = False
    is_tag: bool = True


@dataclass
class _Plain:
    """A segment without tags, as the model gets it.

    Attributes:
        text: The text, with single spaces.
        elements: Its elements, in order, and leaves, but not the placeholders that are shown.
        shown: Text and span of the leaves that are shown, in order.
    """

    text: str = ""
    elements: list[Element] = field(default_factory=list)
    shown: list[tuple[str, Span]] = field(default_factory=list)


class _Segment:
    """Text with inline tags, which is translated as one.

    Attributes:
        hypotheses: Texts with tags, and what they were made from; None for a text that lacks what
            was shown to the model.
        sentence_count: Number of sentences of the text.
    """

    def __init__(self, items: list[_Item], markup: str) -> None:
        self._markup = markup
        self._fixed = "".join(item.raw for item in items)
        first, last = 0, len(items)
        while first < last and _is_edge(items[first], markup):
            first += 1
        while first < last and _is_edge(items[last - 1], markup):
            last -= 1
        self._before = "".join(item.raw for item in items[:first])
        self._after = "".join(item.raw for item in items[last:])
        middle = items[first:last]
        if middle and middle[0].kind == "text":
            raw = middle[0].raw
            self._before += raw[: _spaces_before(raw, markup)]
            middle[0] = _Item("text", "", middle[0].text.lstrip(_SPACES))
        if middle and middle[-1].kind == "text":
            raw = items[last - 1].raw
            self._after = raw[_end_of_text(raw, markup) :] + self._after
            middle[-1] = _Item("text", "", middle[-1].text.rstrip(_SPACES))
        self._items = [part for item in middle for part in self._without_placeholders(item)]
        self._left, self._right = _neighbours(self._items, True), _neighbours(self._items, False)
        texts = (item.text for item in self._items if item.kind == "text")
        whole = "".join(texts)
        self._has_text = is_translatable(whole)
        self._no_break_pairs = {found.groups() for found in _NO_BREAK_PAIR.finditer(whole)}
        self.hypotheses: list[tuple[str | None, TextHypothesis]] = []
        self.sentence_count = 0

    @property
    def complete(self) -> bool:
        """Whether every hypothesis has a text."""
        return all(text is not None for text, _ in self.hypotheses)

    def _without_placeholders(self, item: _Item) -> Iterator[_Item]:
        """Cut a text at its placeholders."""
        if item.kind != "text":
            yield item
            return
        end = 0
        for first, last in _placeholders(item.text):
            if first > end:
                yield _Item("text", "", item.text[end:first])
            found = item.text[first:last]
            shown = found if len(found) <= _LONGEST_SHOWN else ""
            yield _Item("leaf", encode_text(found, self._markup), shown, is_tag=False)
            end = last
        if end < len(item.text):
            yield _Item("text", "", item.text[end:])

    def plain(self, shown: bool) -> _Plain:
        """Return the text without tags, with or without what is shown to the model.

        A segment whose own text is not translatable has no such text.
        """
        plain = _Plain()
        if not self._has_text:
            return plain
        root = Element("", "", 0, 0)
        stack, writer = [root], _Writer()
        opened: list[int] = []  # items of the start tags in the stack
        last_seen = -1  # last leaf that is seen, but not shown
        for index, item in enumerate(self._items):
            at = writer.length
            if item.kind == "open":
                element = Element(item.raw, "", at, at)
                stack[-1].children.append(element)
                stack.append(element)
                opened.append(index)
            elif item.kind == "close":
                element, first = stack.pop(), opened.pop()
                element.closing, element.end = item.raw, at
                if at == element.begin and self._set_sides(
                    element, first, index, last_seen > first
                ):
                    writer.after_leaf = True
            elif item.kind == "text":
                writer.write(item.text)
            elif item.text and shown:
                begin = writer.write(item.text)
                span = begin, writer.length
                plain.shown.append((item.text, span))
                if item.is_tag:
                    leaf = Element(item.raw, "", *span, is_copy=True)
                    stack[-1].children.append(leaf)
            else:
                leaf = Element(item.raw, "", at, at)
                if not item.silent:
                    writer.after_leaf, last_seen = True, index
                self._set_sides(leaf, index, index, not item.silent)
                stack[-1].children.append(leaf)
        plain.text, plain.elements = writer.text, root.children
        return plain

    def _set_sides(self, element: Element, first: int, last: int, has_object: bool) -> bool:
        """Set what an element without text, of the items from first to last, has beside it.

        An element without anything that is seen may be an icon if a space is beside it.

        Returns:
            Whether it is seen.
        """
        (element.before, follows), (element.after, precedes) = self._left[first], self._right[last]
        is_seen = has_object or (
            self._items[first].kind == "open" and Side.SPACE in (element.before, element.after)
        )
        element.keeps_before, element.keeps_after = (
            is_seen and not follows,
            is_seen and not precedes,
        )
        return is_seen

    def receive(self, plain: _Plain, translation: Translation) -> None:
        """Put the tags back into the hypotheses that have no text yet."""
        self.sentence_count = translation.sentence_count if plain.text else 0
        for rank, hypothesis in enumerate(translation.hypotheses):
            if rank < len(self.hypotheses) and self.hypotheses[rank][0] is not None:
                continue
            text: str | None = self._fixed
            if plain.text and (text := self._with_tags(plain, hypothesis)) is not None:
                text = f"{self._before}{text}{self._after}"
            self.hypotheses[rank : rank + 1] = [(text, hypothesis)]
        # A second translation may have fewer hypotheses than the first.
        del self.hypotheses[max(1, len(translation.hypotheses)) :]

    def _with_tags(self, plain: _Plain, hypothesis: TextHypothesis) -> str | None:
        """Return a hypothesis with tags; None if it lacks what was shown to the model."""
        alignment = hypothesis.alignment or Alignment(plain.text, hypothesis.text)
        if self._no_break_pairs:
            alignment = replace(alignment, target=_PAIR.sub(self._with_no_break, alignment.target))
        copies = _copies(plain, alignment.target)
        if copies is None:
            return None
        units = Units(alignment, copies, _edges(plain.elements))
        return place_tags(
            plain.elements,
            units,
            lambda begin, end: encode_text(alignment.target[begin:end], self._markup),
        )

    def _with_no_break(self, pair: re.Match[str]) -> str:
        """Return the first word of a pair, and the space that the pair has in the source."""
        return f"{pair[1]}\xa0" if pair.groups() in self._no_break_pairs else pair[0]


class _Writer:
    """Builder of a text with single spaces.

    Attributes:
        length: Length of the text so far.
        after_leaf: Whether something that is not shown was here.
    """

    def __init__(self) -> None:
        self.length = 0
        self.after_leaf = False
        self._parts: list[str] = []
        self._space = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    def write(self, text: str) -> int:
        """Append a text; return the position of its first character."""
        words = text.split()
        self._space = self._space or text[:1].isspace()
        if words:
            last, first = self._parts[-1][-1] if self._parts else "", words[0][0]
            # Without what was between them, two words are still two, and a comma follows its word.
            joins = self.after_leaf and last.isalnum() and first.isalnum()
            apart = self._space and not (self.after_leaf and first in CLOSING)
            self._parts.append(f"{' ' if last and (apart or joins) else ''}{' '.join(words)}")
            self.length += len(self._parts[-1])
            self.after_leaf, self._space = False, text[-1:].isspace()
        return self.length - len(" ".join(words))


def _neighbours(items: Sequence[_Item], forwards: bool) -> list[tuple[Side, bool]]:
    """Return what is before each item of a segment, or after it.

    Returns:
        The nearest text or edge, and whether anything without text, but not silent, is between.
    """
    found: list[tuple[Side, bool]] = []
    side, is_beyond = Side.APART, False
    around: list[Side] = []  # of the elements that the item is in
    starts = "open" if forwards else "close"
    for item in items if forwards else reversed(items):
        found.append((side, is_beyond))
        if item.kind == "text" or (item.kind == "leaf" and item.text):
            character = item.text[-1 if forwards else 0]
            is_word = item.kind == "leaf" or character.isalnum()
            side = Side.WORD if is_word else Side.SPACE if character.isspace() else Side.APART
            is_beyond = False
        elif item.kind == "leaf":
            is_beyond = is_beyond or not item.silent
        elif item.kind == starts:
            around.append(side)
            side, is_beyond = Side.EDGE, False
        else:
            outside = around.pop()
            if side is Side.EDGE:
                side, is_beyond = outside, True
            elif is_beyond:
                side, is_beyond = Side.WORD, False
    return found if forwards else found[::-1]


def _placeholders(text: str) -> Iterator[Span]:
    """Iterate over the placeholders of a text."""
    at, ends = 0, None
    while found := _PLACEHOLDERS.search(text, at):
        end: int | None = found.end()
        if found["cases"] is not None:
            ends = _ends_of_braces(text) if ends is None else ends
            end = ends.get(found.start())
        if end is None:
            at = found.start() + 1
        else:
            yield found.start(), end
            at = end


def _ends_of_braces(text: str) -> dict[int, int]:
    """Return the position after the closing brace by that of the opening one."""
    ends, stack = {}, []
    for found in re.finditer("[{}]", text):
        if found[0] == "{":
            stack.append(found.start())
        elif stack:
            ends[stack.pop()] = found.end()
    return ends


def _spaces_before(raw: str, markup: str) -> int:
    """Return the length of the white space that a text begins with."""
    if markup == "text":
        return len(raw) - len(raw.lstrip(_SPACES))
    at = 0
    while found := _SPACE.match(raw, at):
        at = found.end()
    return at


def _end_of_text(raw: str, markup: str) -> int:
    """Return the position of the white space that a text ends with."""
    if markup == "text":
        return len(raw.rstrip(_SPACES))
    end = len(raw)
    while end:
        begin = end - 1 if raw[end - 1] in _SPACES else raw.rfind("&", 0, end)
        if begin < 0 or not _SPACE.fullmatch(raw, begin, end):
            break
        end = begin
    return end


def _is_edge(item: _Item, markup: str) -> bool:
    """Return whether an item stays where it is at the edge of a segment."""
    if item.kind == "text":
        return _spaces_before(item.raw, markup) == len(item.raw)
    return item.kind == "leaf" and not item.text


def _edges(elements: Sequence[Element]) -> list[int]:
    """Return the positions at which elements begin or end."""
    found: list[int] = []
    pending = list(elements)
    while pending:
        element = pending.pop()
        found += (element.begin, element.end)
        pending += element.children
    return found


def _copies(plain: _Plain, target: str) -> list[tuple[Span, Span]] | None:
    """Find what was shown to the model in the translation.

    Returns:
        Pairs of spans of the plain text and of the translation; None unless the translation has
        each as often as the plain text, which may not have it elsewhere.
    """
    if not plain.shown:
        return []
    spans: dict[str, list[Span]] = {}
    for text, span in reversed(plain.shown):
        spans.setdefault(text, []).append(span)
    if list(_occurrences(spans, plain.text)) != [span for _, span in plain.shown]:
        return None
    copies = []
    for begin, end in _occurrences(spans, target):
        sources = spans[target[begin:end]]
        if not sources:
            return None
        copies.append((sources.pop(), (begin, end)))
    return None if any(spans.values()) else copies


def _occurrences(words: Collection[str], text: str) -> Iterator[Span]:
    """Iterate over what is one of some words, or several, and no part of a longer word.

    Of the words that begin at a position, the longest counts. Time is linear in the length of the
    text, however many words there are: at each position, each length is looked up once.
    """
    sizes: dict[str, list[int]] = {}
    for first, size in sorted({(word[0], len(word)) for word in words}, reverse=True):
        sizes.setdefault(first, []).append(size)
    at = 0
    while at < len(text):
        ends = (at + size for size in sizes.get(text[at], ()))
        end = next((end for end in ends if _is_whole(text, at, end) and text[at:end] in words), 0)
        if end:
            yield at, end
        at = end or at + 1


def _is_whole(text: str, begin: int, end: int) -> bool:
    """Return whether a part of a text neither begins nor ends inside a word."""
    return end <= len(text) and not any(
        0 < edge < len(text) and _is_of_word(text[edge - 1]) and _is_of_word(text[edge])
        for edge in (begin, end)
    )


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class _Document:
    """A text with markup, as segments and what is between them.

    Attributes:
        segments: The segments, in order.
    """

    def __init__(self, tokens: Sequence[Token], markup: str, whole: bool) -> None:
        self._parts: list[str | _Segment] = []
        self.segments: list[_Segment] = []
        items: list[_Item] = []
        for item in _items(tokens, markup, whole):
            if item.kind != "cut":
                items.append(item)
                continue
            self._add(items, markup)
            self._parts.append(item.raw)
            items = []
        self._add(items, markup)

    def _add(self, items: list[_Item], markup: str) -> None:
        if items:
            self.segments.append(_Segment(items, markup))
            self._parts.append(self.segments[-1])

    def joined(self) -> Translation:
        """Join the translations of the segments as those of sentences are joined."""
        ranks = max((len(one.hypotheses) for one in self.segments), default=1)
        hypotheses = []
        for rank in range(ranks):
            parts, found = [], []
            for part in self._parts:
                if isinstance(part, str):
                    parts.append(part)
                    continue
                text, hypothesis = part.hypotheses[min(rank, len(part.hypotheses) - 1)]
                parts.append(text or "")
                found.append(hypothesis)
            score = sum((one.score for one in found), 0.0)
            segments = tuple(segment for one in found for segment in one.segments)
            # A segment without text to translate has none, with or without a glossary.
            known = [one.terms for one in found if one.terms is not None]
            terms = tuple(chain.from_iterable(known)) if known else None
            hypotheses.append(TextHypothesis("".join(parts), score, segments, terms=terms))
        sentences = sum(segment.sentence_count for segment in self.segments)
        return Translation(tuple(hypotheses), max(1, sentences))


def _items(tokens: Sequence[Token], markup: str, whole: bool) -> Iterator[_Item]:
    """Iterate over the parts of a text; those of the kind "cut" are between segments."""
    partners = _partners(tokens, markup)
    if markup == "html":
        cuts = [token.name == DECLARATION or token.name in _BLOCKS for token in tokens]
        _cut_paragraphs(tokens, partners, cuts)
    else:
        cuts = _xml_cuts(tokens, partners, whole)
    _cut_around(cuts, partners)
    if _cut_deep(cuts, partners):
        _cut_around(cuts, partners)
    index = 0
    while index < len(tokens):
        token, last = tokens[index], partners.get(index, index)
        is_untranslated = _is_untranslated(token, markup)
        if is_untranslated and last == index:
            last = _implied_end(tokens, partners, index)
        if is_untranslated and last > index:
            inside = tokens[index : last + 1]
            raw = "".join(one.raw for one in inside)
            if any(cuts[index : last + 1]):
                yield _Item("cut", raw)
            else:
                text = " ".join("".join(one.text for one in inside).split())
                is_text = token.name not in _NOT_TEXT and len(text) <= _LONGEST_SHOWN
                silent = markup == "html" and token.name in _UNSEEN
                yield _Item("leaf", raw, text if is_text else "", silent)
            index = last + 1
            continue
        if cuts[index]:
            yield _Item("cut", token.raw)
        elif token.kind == "text":
            yield _Item("text", token.raw, token.text)
        elif index in partners:
            yield _Item("open" if last > index else "close", token.raw)
        else:
            is_object = token.kind in ("empty", "reference") or token.name in _OBJECTS
            yield _Item("leaf", token.raw, silent=not is_object)
        index += 1


def _cut_paragraphs(tokens: Sequence[Token], partners: Mapping[int, int], cuts: list[bool]) -> None:
    """Cut texts of HTML at blank lines, except in elements that are not translated."""
    last = -1  # token of such an element
    for index, token in enumerate(tokens):
        if index <= last:
            continue
        if _is_untranslated(token, "html"):
            last = partners.get(index, index)
            last = _implied_end(tokens, partners, index) if last == index else last
        elif token.kind == "text" and PARAGRAPH_BREAK.fullmatch(token.raw):
            cuts[index] = True


def _cut_around(cuts: list[bool], partners: Mapping[int, int]) -> None:
    """Cut the elements with a cut inside, so that each segment has both tags of its elements."""
    before = [0, *accumulate(cuts)]
    for first, last in partners.items():
        if first < last and before[last] > before[first + 1]:
            cuts[first] = cuts[last] = True


def _cut_deep(cuts: list[bool], partners: Mapping[int, int]) -> bool:
    """Cut elements in too many others of their segment; return whether there are any."""
    depth, found = 0, False
    for index, is_cut in enumerate(cuts):
        partner = partners.get(index, index)
        if is_cut or partner == index:
            continue
        if partner < index:
            depth -= 1
        elif depth < _MOST_NESTED:
            depth += 1
        else:
            cuts[index] = cuts[partner] = found = True
    return found


def _partners(tokens: Sequence[Token], markup: str) -> dict[int, int]:
    """Return the index of the end tag of each start tag that has one, and the reverse."""
    partners: dict[int, int] = {}
    stack: list[int] = []
    names = Counter[str]()
    for index, token in enumerate(tokens):
        if token.kind == "start" and not (markup == "html" and token.name in _VOID):
            stack.append(index)
            names[token.name] += 1
        elif token.kind == "end" and names[token.name]:
            while tokens[first := stack.pop()].name != token.name:
                names[tokens[first].name] -= 1  # has no end tag
            names[token.name] -= 1
            partners[first], partners[index] = index, first
    return partners


def _implied_end(tokens: Sequence[Token], partners: Mapping[int, int], index: int) -> int:
    """Return the last token of an element of HTML without an end tag.

    It is the start tag itself of an element that cannot have content or must have an end tag.
    """
    name = tokens[index].name
    if name in _RAW:
        return len(tokens) - 1
    if (ended_by := _ENDED_BY.get(name)) is None:
        return index
    at = index + 1
    while at < len(tokens):
        token, partner = tokens[at], partners.get(at, at)
        # Elements with both tags are passed over as a whole; the end tag of one around ends this.
        if partner < at or (token.kind in ("start", "empty") and token.name in ended_by):
            break
        at = partner + 1
    return at - 1


def _xml_cuts(tokens: Sequence[Token], partners: dict[int, int], whole: bool) -> list[bool]:
    """Return which tokens no sentence goes across: tags of elements beside which is no text.

    An element is part of a sentence if it is beside text, or in another one that is.
    """
    parents, stack = [], [-1]
    has_text = {-1: not whole}
    for index, token in enumerate(tokens):
        if token.kind == "end":
            stack.pop()
        parents.append(stack[-1])
        if token.kind == "start":
            stack.append(index)
            has_text[index] = False
        elif token.kind == "reference" or token.text.strip():
            has_text[stack[-1]] = True
    cuts = [token.name == DECLARATION for token in tokens]
    for index, token in enumerate(tokens):
        parent = parents[index]
        if token.kind in ("start", "empty"):
            # A parent that is part of a sentence makes all that it has part of the sentence.
            has_text[index] = has_text.get(index, False) or has_text[parent]
            cuts[index] = not has_text[parent]
            if (last := partners.get(index)) is not None:
                cuts[last] = cuts[index]
    return cuts


def _is_untranslated(token: Token, markup: str) -> bool:
    """Return whether a start tag says that the text of its element is not translated."""
    if token.kind != "start":
        return False
    if token.attributes.get("translate", "").lower() == "no":
        return True
    if markup != "html":
        return False
    classes = token.attributes.get("class", "").split()
    return token.name in _UNTRANSLATED or "notranslate" in classes

"""Fragments of XML for translation: text with formatting as `<g id="1">`, all else `<x id="2"/>`.

Code, numbers of pages and the like are `<x id="3" translate="no">12</x>`: sentences stay whole.
The nodes of a paragraph are text, groups (such as links), opaque things, marks of ranges (such as
bookmarks), and breaks, which separate segments. A translation has each tag exactly once and nested
as before, but in any order; rendering it puts the sources of the nodes there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.segments import HAS_LETTER
from translate_trt.runtime.files.xml_source import Range, escape, unescape

#: Source of a node: texts, and ranges of the document in which there may be edits.
Source: TypeAlias = tuple[str | Range, ...]

#: A tag of a fragment without text that stays.
FRAGMENT_TAG = re.compile(r'<(g|x) id="(\d+)"\s*/?>|</g>')
_TOKEN = re.compile(
    r'<g id="(\d+)">|<x id="(\d+)"(?:/>| translate="no">[^<]*</x>)|(</g>)|([^<]+|<)'
)
# Ranges within each other that are groups; deeper ones are those of damaged documents.
_MAX_RANGES = 16
# Characters of what is not translated that the model sees.
_MAX_SHOWN = 100
_REFERENCE = re.compile(r"&[^;<]*;")
_SPECIAL = re.compile(r"<!\[CDATA\[(.*?)\]\]>|<!--.*?-->|<\?.*?\?>", re.DOTALL)


def plain_content(written: str) -> str:
    """Return content of XML without comments, instructions and CDATA sections."""
    if "<" not in written:
        return written
    return _SPECIAL.sub(lambda found: escape(found[1] or ""), written)


class Text:
    """A text in one format.

    Attributes:
        text: The text as content of XML.
        source: The text with its run, as it is in the document.
        format: Format; texts of equal ones are merged.
        run: Begin of the run that has the text; empty for none.
    """

    __slots__ = ("format", "run", "source", "text")

    def __init__(self, text: str, source: Source, format: str = "", run: str = "") -> None:
        self.text, self.source, self.format, self.run = text, source, format, run

    @property
    def has_letter(self) -> bool:
        """Whether a letter is in the text."""
        text = self.text
        if "&" in text:
            text = _REFERENCE.sub("", unescape(text))
        return HAS_LETTER.search(text) is not None


class Opaque:
    """A thing that is not translated, such as an image or the number of a page.

    Attributes:
        source: Source of the thing.
        text: Text of the thing as content of XML, which belongs to the sentence; empty for none.
    """

    __slots__ = ("source", "text")

    def __init__(self, source: Source, text: str = "") -> None:
        self.source, self.text = source, text


class Break(Opaque):
    """A thing that separates segments and stays where it is."""

    __slots__ = ()


class Mark(Opaque):
    """Begin or end of a range.

    Attributes:
        key: Kind and id of the range.
        is_start: Whether the mark is the begin of the range.
    """

    __slots__ = ("is_start", "key")

    def __init__(self, source: Source, key: tuple[str, str | None], is_start: bool) -> None:
        super().__init__(source)
        self.key, self.is_start = key, is_start


class Group:
    """Nodes with something around them, such as a link.

    Attributes:
        before: Source of what is before them.
        nodes: The nodes.
        after: Source of what is after them.
        source: Source of the whole group.
        has_break: Whether a break is in them.
        has_letter: Whether text to translate is in them.
    """

    __slots__ = ("after", "before", "has_break", "has_letter", "nodes", "source")

    def __init__(
        self, before: Source, nodes: Sequence[Node], after: Source, source: Source
    ) -> None:
        self.before, self.nodes, self.after, self.source = before, nodes, after, source
        self.has_letter = has_letter(nodes)
        self.has_break: bool = any(
            isinstance(node, Break) or (isinstance(node, Group) and node.has_break)
            for node in nodes
        )


Node: TypeAlias = Text | Opaque | Group


def written_text(nodes: Sequence[Node]) -> str:
    """Return the text of consecutive nodes as content of XML."""
    return "".join(
        written_text(node.nodes) if isinstance(node, Group) else node.text for node in nodes
    )


def source_of(nodes: Sequence[Node]) -> Source:
    """Return the source of consecutive nodes."""
    return tuple(piece for node in nodes for piece in node.source)


def has_letter(nodes: Sequence[Node]) -> bool:
    """Return True if there is text to translate in nodes."""
    return any(node.has_letter for node in nodes if not isinstance(node, Opaque))


def group(
    before: Source, nodes: Sequence[Node], after: Source, source: Source | None = None
) -> Node:
    """Return a group; an opaque node or a break if there is no text in it.

    Args:
        before: Source of what is before the nodes.
        nodes: The nodes.
        after: Source of what is after them.
        source: Source of the whole group; None to put it together.
    """
    if source is None:
        source = (*before, *source_of(nodes), *after)
    found = Group(before, nodes, after, source)
    if any(isinstance(node, Text | Group) for node in nodes):
        return found
    return Break(source) if found.has_break else Opaque(source)


def split(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Split nodes at breaks; each break is a part of its own, and a group with a break is three."""
    part: list[Node] = []
    for node in nodes:
        if isinstance(node, Group) and node.has_break:
            inner: list[list[Node]] = [
                [Break(node.before)],
                *split(node.nodes),
                [Break(node.after)],
            ]
        elif isinstance(node, Break):
            inner = [[node]]
        else:
            part.append(node)
            continue
        if part:
            yield part
            part = []
        yield from inner
    if part:
        yield part


def fragments_of(nodes: Sequence[Node]) -> list[Fragment | Source]:
    """Return the segments of nodes, and the source of all that is between them."""
    return [Fragment(part) if has_letter(part) else source_of(part) for part in split(nodes)]


class _Part(NamedTuple):
    """A tag of a fragment.

    Attributes:
        before: Source of an opaque node, or of what is before a group.
        is_group: Whether the tag has content.
        run: Run of the text of a group.
        after: Source of what is after a group.
    """

    before: Source
    is_group: bool = False
    run: str = ""
    after: Source = ()


class Fragment:
    """A segment of a paragraph.

    Attributes:
        text: The fragment of XML.
    """

    __slots__ = ("_after", "_before", "_parts", "_run", "text")

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Write nodes, which have a text and no breaks."""
        self._before: Source = ()
        self._after: Source = ()
        self._parts: list[_Part] = []
        while True:
            nodes = _normalized(nodes)
            start, end = 0, len(nodes)
            while _is_outside(nodes[start]):
                start += 1
            while _is_outside(nodes[end - 1]):
                end -= 1
            self._before += source_of(nodes[:start])
            self._after = source_of(nodes[end:]) + self._after
            nodes = nodes[start:end]
            if len(nodes) > 1 or not isinstance(only := nodes[0], Group):
                break
            self._before += only.before
            self._after = only.after + self._after
            nodes = only.nodes
        pieces: list[str] = []
        self._run = self._write(nodes, pieces)
        self.text = "".join(pieces)

    def _write(self, nodes: Sequence[Node], pieces: list[str]) -> str:
        """Write nodes and return the run of their main format, which has no tag."""
        main = _main_text(nodes)
        at = 0
        while at < len(nodes):
            node, begin = nodes[at], at
            at += 1
            if isinstance(node, Text):
                if node.format == main.format:
                    pieces.append(node.text)
                    continue
                for number in range(at, len(nodes)):
                    following = nodes[number]
                    if isinstance(following, Text) and following.format == node.format:
                        at = number + 1
                    elif not isinstance(following, Opaque):
                        break
                self._write_group((), nodes[begin:at], (), pieces)
            elif isinstance(node, Group):
                self._write_group(node.before, _normalized(node.nodes), node.after, pieces)
            else:
                while at < len(nodes) and isinstance(nodes[at], Opaque):
                    at += 1
                self._parts.append(_Part(source_of(nodes[begin:at])))
                text = written_text(nodes[begin:at]).strip()
                end = f' translate="no">{text}</x>' if 0 < len(text) <= _MAX_SHOWN else "/>"
                pieces.append(f'<x id="{len(self._parts)}"{end}')
        return main.run

    def _write_group(
        self, before: Source, nodes: Sequence[Node], after: Source, pieces: list[str]
    ) -> None:
        while len(nodes) == 1 and isinstance(only := nodes[0], Group):
            before, after = before + only.before, only.after + after
            nodes = _normalized(only.nodes)
        number = len(self._parts)
        self._parts.append(_Part(()))
        pieces.append(f'<g id="{number + 1}">')
        run = self._write(nodes, pieces)
        self._parts[number] = _Part(before, True, run, after)
        pieces.append("</g>")

    def render(self, translation: str, write: Callable[[str, str], str]) -> list[str | Range]:
        """Return the source of a translation.

        Args:
            translation: Fragment with the same tags.
            write: Writes a text in a run, of which it has the begin.

        Raises:
            InputError: The translation does not have the same tags.
        """
        rendered: list[str | Range] = [*self._before]
        run, missing = self._run, set(range(len(self._parts)))
        around: list[tuple[str, Source]] = []
        for group_id, opaque_id, end, text in _TOKEN.findall(translation):
            if text:
                if text == "<":
                    raise _other_tags(translation)
                rendered.append(write(text, run))
            elif end:
                if not around:
                    raise _other_tags(translation)
                run, after = around.pop()
                rendered += after
            else:
                number = int(group_id or opaque_id) - 1
                if number not in missing or self._parts[number].is_group != bool(group_id):
                    raise _other_tags(translation)
                missing.remove(number)
                part = self._parts[number]
                rendered += part.before
                if group_id:
                    around.append((run, part.after))
                    run = part.run
        if missing or around:
            raise _other_tags(translation)
        return [*rendered, *self._after]


def _other_tags(translation: str) -> InputError:
    return InputError(f"has a translation whose tags are not those of its source: {translation!r}.")


def _is_outside(node: Node) -> bool:
    """Return True if a node at an end of a segment is not part of it."""
    if isinstance(node, Opaque):
        return not node.text
    return isinstance(node, Text) and node.text.isspace()


def _main_text(nodes: Sequence[Node]) -> Text:
    """Return the first text of the format that most characters have."""
    texts = [node for node in nodes if isinstance(node, Text)]
    if not texts:
        return _main_text(next(node for node in nodes if isinstance(node, Group)).nodes)
    if len(texts) == 1:
        return texts[0]
    lengths: Counter[str] = Counter()
    for text in texts:
        lengths[text.format] += len(text.text)
    main = max(lengths, key=lengths.__getitem__)
    return next(text for text in texts if text.format == main)


def _normalized(nodes: Sequence[Node]) -> list[Node]:
    """Make groups of ranges, and give a space the format of the text before it.

    A range of which one mark is elsewhere, or which overlaps with another one, grows to the ends of
    the nodes, since a translation could change the order of its marks.
    """
    found: list[Node] = []
    ends: list[Node] = []
    open_marks: list[tuple[Mark, int]] = []
    before: Text | None = None
    for node in nodes:
        if isinstance(node, Text):
            if before is not None and node.text == " ":
                node.format, node.run = before.format, before.run
            before = node
        elif isinstance(node, Mark) and node.is_start:
            if len(open_marks) < _MAX_RANGES:
                open_marks.append((node, len(found)))
        elif isinstance(node, Mark):
            if open_marks and open_marks[-1][0].key == node.key:
                start, at = open_marks.pop()
                found[at:] = [group(start.source, found[at + 1 :], node.source)]
            else:
                ends.append(node)
            continue
        found.append(node)
    starts = [node for node in found if isinstance(node, Mark)]
    return [*starts, *(node for node in found if not isinstance(node, Mark)), *ends]

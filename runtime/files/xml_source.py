"""XML with the positions of its elements: what is not changed stays byte-identical."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from xml.parsers import expat

from translate_trt.runtime.errors import InputError

# Nesting of elements, which recursive functions follow.
_MAX_DEPTH = 256
_DECLARATION = re.compile(rb"""(\s*<\?xml\s[^>]*?\bencoding\s*=\s*["'])([A-Za-z0-9._-]+)""")
_TAG_END = re.compile(rb"""[^"'>]*(?:(?:"[^"]*"|'[^']*')[^"'>]*)*>""")
# What XML does not allow, whatever the way it is written.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"&(?:#([0-9]+)|#x([0-9A-Fa-f]+)|(\w+));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


#: Begin and end of a part of the document.
Range: TypeAlias = tuple[int, int]


class Element:
    """An element and its position.

    Attributes:
        name: Name with the prefix that the reader's table has for its namespace, such as "w:p";
            "{namespace}p" for another namespace.
        attributes: Values by names of the same form.
        parent: The element around it; None for the root.
        children: The elements in it.
        start: Offset of its start tag.
        inner: Offset after its start tag.
        inner_end: Offset of its end tag.
        end: Offset after its end tag; equal to `inner` for an empty-element tag.
    """

    __slots__ = ("attributes", "children", "end", "inner", "inner_end", "name", "parent", "start")

    def __init__(
        self, name: str, attributes: dict[str, str], parent: Element | None, start: int, inner: int
    ) -> None:
        self.name, self.attributes, self.parent = name, attributes, parent
        self.children: Sequence[Element] = ()
        self.start, self.inner, self.inner_end, self.end = start, inner, inner, inner

    def iterate(self) -> Iterator[Element]:
        """Iterate over the element and all elements in it, in the order of their start tags."""
        yield self
        for child in self.children:
            yield from child.iterate()

    def find(self, name: str) -> Element | None:
        """Return the first child of a name."""
        return next((child for child in self.children if child.name == name), None)


class _Edit(NamedTuple):
    start: int
    end: int
    content: tuple[str | Range, ...]


class XmlSource:
    """A document of XML whose ranges can be replaced.

    Attributes:
        content: The document in UTF-8, to which all offsets refer.
        root: The root element.
    """

    def __init__(
        self,
        content: bytes,
        namespaces: Mapping[str, str] | None = None,
        foreign_entities: bool = False,
        leaves: Collection[str] = (),
    ) -> None:
        """Parse a document.

        Args:
            content: The document, in the encoding that it declares.
            namespaces: Prefix of each namespace in names of elements and attributes.
            foreign_entities: Accept references to entities that the document does not declare.
            leaves: Names of elements whose children are not wanted.

        Raises:
            InputError: The document is not well-formed, declares entities, or nests too deep.
        """
        self._encoding, self._mark = "utf-8", b""
        self.content = self._as_utf8(content)
        self._edits: list[_Edit] = []
        self.root = _parse(self.content, namespaces or {}, foreign_entities, leaves)

    def _as_utf8(self, content: bytes) -> bytes:
        for mark, name in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
            if content.startswith(mark):
                self._mark, self._encoding = mark, name
        if content.startswith(b"\xef\xbb\xbf"):
            self._mark = content[:3]
        elif not self._mark and (found := _DECLARATION.match(content)):
            self._encoding = found[2].decode("ascii")
        if self._encoding.lower() in ("utf-8", "utf8", "us-ascii", "ascii"):
            self._encoding = "utf-8"
            return content[len(self._mark) :]
        try:
            return content[len(self._mark) :].decode(self._encoding).encode("utf-8")
        except (LookupError, UnicodeError) as error:
            raise InputError(f"is not text in {self._encoding}, which it declares.") from error

    @property
    def is_edited(self) -> bool:
        """Whether a range is replaced."""
        return bool(self._edits)

    def text(self, start: int, end: int) -> str:
        """Return a range as it is written."""
        return self.content[start:end].decode("utf-8")

    def text_of(self, element: Element) -> str:
        """Return the text in an element, without tags and with references replaced."""
        pieces: list[str] = []
        at = element.inner
        for child in element.children:
            pieces += (unescape(self.text(at, child.start)), self.text_of(child))
            at = child.end
        return "".join((*pieces, unescape(self.text(at, element.inner_end))))

    def tag_name(self, element: Element) -> str:
        """Return the name of an element as it is written, with the document's own prefix."""
        found = re.match(r"<([^\s/>]+)", self.text(element.start, element.inner))
        assert found is not None
        return found[1]

    def replace(self, start: int, end: int, *content: str | Range) -> None:
        """Replace a range by texts, and by ranges in it with what is replaced in them.

        Ranges of edits are apart from each other, or one lies in a range that another one keeps.
        """
        self._edits.append(_Edit(start, end, content))

    def replace_content(self, element: Element, *content: str | Range) -> None:
        """Replace what is between the tags of an element, which may be an empty-element tag."""
        if element.end == element.inner:
            tag = self.text(element.start, element.end)[:-2].rstrip() + ">"
            name = self.tag_name(element)
            self.replace(element.start, element.end, tag, *content, f"</{name}>")
        else:
            self.replace(element.inner, element.inner_end, *content)

    def set_attribute(self, element: Element, name: str, value: str) -> None:
        """Set an attribute of an element by its name as it is written in the document."""
        tag, written = self.content[element.start : element.inner], escape_attribute(value)
        pattern = rb"""\s%s\s*=\s*(?:"([^"]*)"|'([^']*)')""" % re.escape(name.encode("utf-8"))
        if found := re.search(pattern, tag):
            start, end = found.span(found.lastindex or 0)
            written = written.replace("'", "&apos;")
        else:
            start = end = len(tag) - (2 if tag.endswith(b"/>") else 1)
            written = f' {name}="{written}"'
        self.replace(element.start + start, element.start + end, written)

    def render(self) -> bytes:
        """Return the document with all edits, in its own encoding."""
        self._edits.sort(key=lambda edit: (edit.start, -edit.end))
        content = b"".join(self._rendered(0, len(self.content)))
        if self._encoding == "utf-8":
            return self._mark + content
        return self._mark + content.decode("utf-8").encode(self._encoding, "xmlcharrefreplace")

    def _rendered(self, start: int, end: int) -> Iterator[bytes]:
        """Iterate over the pieces of a range with the edits in it."""
        number = bisect_left(self._edits, start, key=lambda edit: edit.start)
        while number < len(self._edits) and (edit := self._edits[number]).start < end:
            number += 1
            if edit.start < start or edit.end > end:  # around the range, or in an edit before
                continue
            yield self.content[start : edit.start]
            for piece in edit.content:
                if isinstance(piece, str):
                    yield piece.encode("utf-8")
                else:
                    yield from self._rendered(*piece)
            start = edit.end
        yield self.content[start:end]


def _parse(
    content: bytes,
    namespaces: Mapping[str, str],
    foreign_entities: bool,
    leaves: Collection[str],
) -> Element:
    """Return the root of a document: Expat's events as a tree with positions."""
    parser: Any = expat.ParserCreate("utf-8", " ")
    # As if a document type declared them elsewhere, which is not read.
    parser.UseForeignDTD(foreign_entities)
    around: list[Element] = []
    siblings: list[list[Element]] = [[]]  # the children of each that is open
    names: dict[str, str] = {}
    skipped = 0  # open elements in a leaf
    match_tag = _TAG_END.match

    def short_name(name: str) -> str:
        namespace, _, local = name.rpartition(" ")
        prefix = namespaces.get(namespace)
        if not namespace:
            short = local
        elif prefix is None:
            short = f"{{{namespace}}}{local}"
        else:
            short = f"{prefix}:{local}" if prefix else local
        names[name] = short
        return short

    # The time of large documents is that of these two functions.
    def start_element(name: str, attributes: dict[str, str]) -> None:
        nonlocal skipped
        if skipped:
            skipped += 1
            return
        start = parser.CurrentByteIndex
        if attributes:
            found = match_tag(content, start)
            assert found is not None
            inner = found.end()
            attributes = {
                names.get(key) or short_name(key): value for key, value in attributes.items()
            }
        else:
            inner = content.index(b">", start) + 1
        name = names.get(name) or short_name(name)
        element = Element(name, attributes, around[-1] if around else None, start, inner)
        siblings[-1].append(element)
        around.append(element)
        siblings.append([])
        if name in leaves:
            skipped = 1
        if len(around) > _MAX_DEPTH:
            raise InputError(f"nests elements more than {_MAX_DEPTH} deep.")

    def end_element(_: str) -> None:
        nonlocal skipped
        if skipped:
            skipped -= 1
            if skipped:
                return
        element = around.pop()
        if children := siblings.pop():
            element.children = children
        if content[element.inner - 2] != 47:  # "/" of an empty-element tag
            element.inner_end = at = parser.CurrentByteIndex
            element.end = content.index(b">", at) + 1

    def refuse_entity(name: str, *_: object) -> None:
        raise InputError(f"declares the entity {name}, which could expand without bound.")

    parser.StartElementHandler = start_element
    parser.EndElementHandler = end_element
    parser.EntityDeclHandler = refuse_entity
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise InputError(
            f"is not well-formed XML: {expat.errors.messages[error.code]} at line "
            f"{error.lineno}, column {error.offset + 1}."
        ) from error
    return siblings[0][0]


def unescape(text: str) -> str:
    """Replace the references of characters and of XML's own entities; others stay."""

    def character(found: re.Match[str]) -> str:
        decimal, hexadecimal, name = found.groups()
        if name is not None:
            return _ENTITIES.get(name, found[0])
        return chr(int(decimal) if decimal else int(hexadecimal, 16))

    return _REFERENCE.sub(character, text) if "&" in text else text


def escape(text: str) -> str:
    """Write a text as content of an element, without what XML does not allow."""
    text = _NOT_XML.sub("", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def content_writer(
    source: XmlSource, element: Element, write: Callable[[str], str] = escape
) -> Callable[[str], None]:
    """Return a function that replaces the content of an element by a text, which `write` writes."""
    return lambda text: source.replace_content(element, write(text))


def escape_attribute(text: str) -> str:
    """Write a text as an attribute's value in double quotes."""
    return escape(text).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")

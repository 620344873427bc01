"""Tokens of HTML and XML, each with the characters that it consists of.

Python's parsers recognize the tokens: html.parser, and expat for XML, which here expands no
entities and reads no files.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple
from xml.parsers import expat

from translate_trt.runtime.errors import InputError

#: Kinds of markup; "text" has placeholders alone.
MARKUP = ("html", "xml", "text")

#: Names of tokens of the kind "other": parts of sections; and of declarations, the white space
#: around them, and line ends of text. Comments and instructions have no name.
CDATA, DECLARATION = "![CDATA[", "!DOCTYPE"
_INLINE = ("<!--", "<?")  # what a comment or an instruction of XML begins with

_REFERENCE = re.compile(r"&(?:#(?:[xX][0-9a-fA-F]+|[0-9]+)|[a-zA-Z][-.a-zA-Z0-9]*);?")
# An element around texts without a declaration, which may be fragments. Its length is subtracted
# from positions in messages.
_ROOT = "<t>"
_DECLARATION = re.compile(r"\s*<(?:\?xml\s|!DOCTYPE\s)")
# Characters that XML documents may not have; a translation has no other control characters.
_NOT_IN_XML = re.compile("[\ufffe\uffff\ud800-\udfff]")


class Token(NamedTuple):
    """A token of a text with markup.

    Attributes:
        kind: "text", "start", "end", "empty" for a tag of an empty element, "reference" for an
            entity that is not decoded, or "other": comments, declarations, instructions, CDATA.
        raw: The characters of the token.
        name: Name of the tag, or of what is neither text nor tag.
        text: The text with its references decoded.
        attributes: Attributes of a start tag or of an empty element.
    """

    kind: str
    raw: str
    name: str = ""
    text: str = ""
    attributes: Mapping[str, str | None] = {}


def read_tokens(text: str, markup: str, name: str = "the text") -> list[Token]:
    """Cut a text into tokens, whose raw characters together are the text.

    Args:
        text: The text.
        markup: One of MARKUP.
        name: Name of the text in error messages.

    Raises:
        InputError: XML is not well-formed.
    """
    if markup == "text":
        parts = re.split("(\r\n|\r|\n)", text)
        return [
            Token("other", part, DECLARATION) if index % 2 else Token("text", part, text=part)
            for index, part in enumerate(parts)
            if part
        ]
    events = _html_events(text) if markup == "html" else _xml_events(text, name)
    return list(_merged(events))


def encode_text(text: str, markup: str) -> str:
    """Encode characters of a text that are markup otherwise."""
    if markup == "xml":
        text = _NOT_IN_XML.sub(" ", text)
    return text if markup == "text" else html.escape(text, quote=False)


def _merged(tokens: Iterator[Token]) -> Iterator[Token]:
    """Join consecutive texts, and the parts of CDATA sections."""
    for (kind, name), group in itertools.groupby(tokens, lambda one: (one.kind, one.name)):
        if kind == "text" or name == CDATA:
            parts = list(group)
            raw, text = "".join(one.raw for one in parts), "".join(one.text for one in parts)
            yield Token(kind, raw, name, text)
        else:
            yield from group


# ---- HTML ----


class _Event(NamedTuple):
    """Event of html.parser, from one position to the next event or to `end`."""

    begin: int
    token: Token  # without its raw characters
    end: int | None


class _Reader(HTMLParser):
    """Recorder of the events of a text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._text = text
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self.events: list[_Event] = []
        self.feed(text)
        self.close()

    def _add(self, kind: str, name: str = "", size: int | None = None, **more: object) -> None:
        line, column = self.getpos()
        begin = self._lines[line - 1] + column
        token = Token(kind, "", name, **more)  # type: ignore[arg-type]
        self.events.append(_Event(begin, token, None if size is None else begin + size))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Read a section of SGML as a comment, as browsers do; some versions of Python fail."""
        return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        size = len(self.get_starttag_text() or "")
        self._add("start", tag, size, attributes=dict(reversed(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        size = len(self.get_starttag_text() or "")
        self._add("empty", tag, size, attributes=dict(reversed(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text", size=len(data))

    def handle_entityref(self, name: str) -> None:
        self._add_reference()

    def handle_charref(self, name: str) -> None:
        self._add_reference()

    def _add_reference(self) -> None:
        line, column = self.getpos()
        found = _REFERENCE.match(self._text, self._lines[line - 1] + column)
        self._add("text", size=1 if found is None else len(found[0]))

    def handle_comment(self, data: str) -> None:
        self._add("other")

    def handle_decl(self, decl: str) -> None:
        self._add("other", DECLARATION)

    def handle_pi(self, data: str) -> None:
        self._add("other")

    def unknown_decl(self, data: str) -> None:
        self._add("other")


def _html_events(text: str) -> Iterator[Token]:
    """Iterate over the tokens of HTML; what the parser passes over in silence is "other"."""
    end = 0
    events = [*_Reader(text).events, _Event(len(text), Token("other", ""), None)]
    for event, following in pairwise([_Event(0, Token("other", ""), 0), *events]):
        begin, end = max(event.begin, end), following.begin
        stop = end if event.end is None else max(begin, min(event.end, end))
        if stop > begin:
            raw = text[begin:stop]
            decoded = html.unescape(raw) if event.token.kind == "text" else ""
            yield event.token._replace(raw=raw, text=decoded)
        if end > stop:
            yield Token("other", text[stop:end])


# ---- XML ----


def _xml_events(text: str, name: str) -> Iterator[Token]:
    """Iterate over the tokens of an XML document, or of a fragment of one.

    Raises:
        InputError: The text is not well-formed.
    """
    before = "" if _DECLARATION.match(text) else _ROOT
    try:
        content = f"{before}{text}{before.replace('<', '</')}".encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has a lone surrogate, which is no character of XML.") from error
    found: list[tuple[int, Token]] = []
    parser = expat.ParserCreate("utf-8")

    def add(kind: str, name: str = "", text: str = "", **more: Mapping[str, str | None]) -> None:
        found.append((parser.CurrentByteIndex, Token(kind, "", name, text, **more)))

    def in_section(data: str) -> None:
        add("other", CDATA)

    def begin_section() -> None:
        add("other", CDATA)
        parser.CharacterDataHandler = in_section

    def end_section() -> None:
        add("other", CDATA)
        parser.CharacterDataHandler = of_text

    def of_text(data: str) -> None:
        add("text", text=data)

    def default(data: str) -> None:
        if _REFERENCE.fullmatch(data):
            add("reference")
        else:
            add("other", "" if data.startswith(_INLINE) else DECLARATION)

    parser.StartElementHandler = lambda name, attributes: add("start", name, attributes=attributes)
    parser.EndElementHandler = lambda name: add("end", name)
    parser.CharacterDataHandler = of_text
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = begin_section, end_section
    # Sees all else, and keeps the parser from expanding the entities of a document type.
    parser.DefaultHandler = default
    # Nothing is read: entities that the text does not define are references, not errors.
    parser.UseForeignDTD(True)
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        column = error.offset - (len(before) if error.lineno == 1 else 0)
        reason = expat.ErrorString(error.code)
        raise InputError(
            f"{name} is not well-formed XML: {reason} at line {error.lineno}, column {column + 1}. "
            "Correct it, or choose html as markup."
        ) from error
    ends = [index for index, _ in found[1:]] + [len(content)]
    tokens = [*zip(found, ends, strict=True)]
    for (begin, token), end in tokens[1:-1] if before else tokens:
        raw = content[begin:end].decode()
        if token.kind == "start" and raw.endswith("/>"):
            token = token._replace(kind="empty")
        if raw:  # the end of an empty element has no characters of its own
            yield token._replace(raw=raw)

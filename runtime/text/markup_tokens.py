"""Tokens of HTML and XML, each with the characters that it consists of.

HTML has those of its standard: what html.parser makes of broken HTML depends on the version of
Python, and its time grows with the square of some texts. XML is parsed by expat, which here expands
no entities and reads no files.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping
from html.entities import html5
from typing import NamedTuple
from xml.parsers import expat

from translate_trt.runtime.errors import InputError

#: Kinds of markup; "text" has placeholders alone.
MARKUP = ("html", "xml", "text")

#: Names of tokens of the kind "other": parts of sections; and of declarations, the white space
#: around them, and line ends of text. Comments and instructions have no name.
CDATA, DECLARATION = "![CDATA[", "!DOCTYPE"
_INLINE = ("<!--", "<?")  # what a comment or an instruction of XML begins with

# An element around texts without a declaration, which may be fragments. It has a name that no text
# closes by mistake. Its length is subtracted from positions in messages.
_ROOT = "<translate-trt-fragment>"
_BYTE_ORDER_MARK = "\ufeff"
_DECLARATION = re.compile(r"\ufeff?\s*<(?:\?xml\s|!DOCTYPE\s)")
# Declarations of an encoding, which browsers look for in the first 1,024 bytes of HTML.
_ENCODINGS = {
    "xml": re.compile(r"""\ufeff?\s*<\?xml\s[^>]*?\bencoding\s*=\s*["'](?P<encoding>[^"'>]*)"""),
    "html": re.compile(
        r"""(?s:.{0,1024}?)<meta\s[^>]*?\bcharset\s*=\s*["']?(?P<encoding>[\w:-]+)""", re.IGNORECASE
    ),
}
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
    attributes: Mapping[str, str] = {}


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
    return list(_html_tokens(text) if markup == "html" else _merged(_xml_events(text, name)))


def check_encoding(text: str, markup: str, name: str) -> None:
    """Refuse a document whose declaration names another encoding than UTF-8, in which it is stored.

    Args:
        text: The document.
        markup: One of MARKUP.
        name: Name of the document in error messages.

    Raises:
        InputError: Readers of the translation would take it for text in that encoding.
    """
    found = _ENCODINGS[markup].match(text) if markup in _ENCODINGS else None
    if found is not None and found["encoding"].lower() not in ("utf-8", "utf8"):
        raise InputError(
            f"{name} declares the encoding {found['encoding']}, and is read and written in UTF-8; "
            "correct its declaration."
        )


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

# Names of elements and attributes are in lower case, in letters of ASCII alone.
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
#: White space with a blank line, which is a text token of its own.
PARAGRAPH_BREAK = re.compile(r"((?<![ \t\r\n\f])[ \t\r\f]*+\n[ \t\r\f]*+\n[ \t\r\n\f]*+)")
# What may be a tag, comment or declaration; all else is text.
_MARKUP_START = re.compile(r"<(?:[a-zA-Z!?]|/(?=.))", re.DOTALL)
_TAG_START = re.compile("</?(?=[a-zA-Z])")
_DOCTYPE = re.compile("<!doctype", re.IGNORECASE | re.ASCII)
_COMMENT_END = re.compile("--!?>")
_TAG_SPACES = re.compile(r"[ \t\r\n\f]*")
_TAG_NAME = re.compile(r"[^ \t\r\n\f/>]*")
_ATTRIBUTE_NAME = re.compile(r"[^ \t\r\n\f/>=]*")
_UNQUOTED_VALUE = re.compile(r"[^ \t\r\n\f>]*")
# Elements whose content has no tags, and of these, elements whose content has no references.
_WITH_REFERENCES = frozenset({"title", "textarea"})
_WITHOUT_REFERENCES = frozenset({"script", "style", "xmp", "iframe", "noembed", "noframes"})
_END_TAGS = {
    name: re.compile(rf"</{name}(?=[ \t\r\n\f/>])", re.IGNORECASE | re.ASCII)
    for name in _WITH_REFERENCES | _WITHOUT_REFERENCES
}
_OF_SCRIPTS = re.compile(r"<!--|-->|</?script(?=[ \t\r\n\f/>])", re.IGNORECASE | re.ASCII)
_REFERENCE_IN_VALUE = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[a-zA-Z0-9]+;?)")
# Numeric references, of which Python's int refuses some because of their many digits.
_DECIMAL_REFERENCE = re.compile("&#0*([0-9]+)")


def _html_tokens(text: str) -> Iterator[Token]:
    """Iterate over the tokens of HTML as its standard recognizes them (section 13.2.5).

    Time is linear in the length of any text. A tag, comment or declaration that the text ends in is
    a token of the kind "other".
    """
    at = 0
    while at < len(text):
        found = _MARKUP_START.search(text, at)
        end = len(text) if found is None else found.start()
        for part in filter(None, PARAGRAPH_BREAK.split(text[at:end])):
            yield Token("text", part, text=_decode(part))
        if found is None:
            return
        token, at = _html_markup(text, end)
        yield token
        if token.kind == "start" and (content := _raw_text(text, at, token.name)) is not None:
            at += len(content.raw)
            if content.raw:
                yield content


def _html_markup(text: str, begin: int) -> tuple[Token, int]:
    """Return the tag, comment or declaration at a position, and its end."""
    if start := _TAG_START.match(text, begin):
        return _tag(text, begin, start.end())
    name = ""
    if text.startswith("<!--", begin):
        end = _comment_end(text, begin + 4)
    else:
        end = text.find(">", begin) + 1
        if end and _DOCTYPE.match(text, begin):
            name = DECLARATION
        end = end or len(text)
    return Token("other", text[begin:end], name), end


def _comment_end(text: str, at: int) -> int:
    for short in (">", "->"):
        if text.startswith(short, at):
            return at + len(short)
    found = _COMMENT_END.search(text, at)
    return len(text) if found is None else found.end()


def _tag(text: str, begin: int, at: int) -> tuple[Token, int]:
    """Return the tag at a position, whose name is at another one, and its end."""
    kind = "end" if text.startswith("</", begin) else "start"
    end = _after(_TAG_NAME, text, at)
    name, at = text[at:end].translate(_LOWER), end
    attributes: dict[str, str] = {}
    is_empty = False
    while True:
        is_empty = is_empty and text.startswith(">", at)
        at = _after(_TAG_SPACES, text, at)
        if text.startswith("/", at):
            at += 1
            is_empty = kind == "start"
        elif at < len(text) and text[at] != ">":
            at = _read_attribute(text, at, attributes)
        else:
            break
    if at == len(text):
        return Token("other", text[begin:]), at
    if is_empty:
        kind = "empty"
    return Token(kind, text[begin : at + 1], name, "", {} if kind == "end" else attributes), at + 1


def _read_attribute(text: str, at: int, attributes: dict[str, str]) -> int:
    """Add the attribute at a position unless there is one of its name; return its end."""
    end = _after(_ATTRIBUTE_NAME, text, at + 1)  # a name may begin with "="
    name, value = text[at:end].translate(_LOWER), ""
    at = _after(_TAG_SPACES, text, end)
    if text.startswith("=", at):
        at = _after(_TAG_SPACES, text, at + 1)
        if text.startswith(("'", '"'), at):
            quote = text.find(text[at], at + 1)
            value = text[at + 1 : quote if quote >= 0 else len(text)]
            end = min(at + len(value) + 2, len(text))
        else:
            end = _after(_UNQUOTED_VALUE, text, at)
            value = text[at:end]
    attributes.setdefault(name, _decode_value(value))
    return end


def _raw_text(text: str, at: int, name: str) -> Token | None:
    """Return the content of an element that has no tags; None for other elements."""
    if name == "plaintext":
        end = len(text)
    elif name == "script":
        end = _script_end(text, at)
    elif name in _END_TAGS:
        found = _END_TAGS[name].search(text, at)
        end = len(text) if found is None else found.start()
    else:
        return None
    raw = text[at:end]
    return Token("text", raw, text=_decode(raw) if name in _WITH_REFERENCES else raw)


def _script_end(text: str, at: int) -> int:
    """Return the end of a script.

    After "<!--" and until "-->", the end tag of a script in it is not that of the script (states
    "script data escaped" and "script data double escaped" of the standard).
    """
    escaped = inside = False
    while found := _OF_SCRIPTS.search(text, at):
        at = found.start() + 1
        if found[0] == "-->":
            if escaped:
                escaped, inside, at = False, False, found.end()
        elif found[0] == "<!--":
            if not escaped:
                escaped, at = True, found.start() + 2  # these dashes may be those of "-->"
        elif found[0][1] != "/":
            inside = inside or escaped
        elif inside:
            inside = False
        else:
            return found.start()
    return len(text)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _decode(text: str) -> str:
    """Decode the references of a text."""
    return html.unescape(_DECIMAL_REFERENCE.sub(_shortened, text))


def _shortened(reference: re.Match[str]) -> str:
    """Return a reference to the same character; with so many digits there is none."""
    return f"&#{reference[1] if len(reference[1]) < 8 else 9_999_999}"


def _decode_value(value: str) -> str:
    """Decode the references of an attribute.

    A name without a semicolon may be that of a parameter of an address.
    """

    def decoded(found: re.Match[str]) -> str:
        reference = found[0]
        name = reference[1:].rstrip(";")
        if name.startswith("#") or (reference.endswith(";") and reference[1:] in html5):
            return _decode(reference)
        end = len(name) + 1
        if name not in html5 or value.startswith("=", found.start() + end):
            return reference
        return html5[name] + reference[end:]

    return _REFERENCE_IN_VALUE.sub(decoded, value)


# ---- XML ----


def _xml_events(text: str, name: str) -> Iterator[Token]:
    """Iterate over the tokens of an XML document, or of a fragment of one.

    Raises:
        InputError: The text is not well-formed.
    """
    before = "" if _DECLARATION.match(text) else _ROOT
    if not before and text.startswith(_BYTE_ORDER_MARK):
        yield Token("other", _BYTE_ORDER_MARK, DECLARATION)
        text = text[1:]
    try:
        content = f"{before}{text}{before.replace('<', '</')}".encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has a lone surrogate, which is no character of XML.") from error
    found: list[tuple[int, Token]] = []
    parser = expat.ParserCreate("utf-8")

    def add(kind: str, name: str = "", text: str = "", **more: Mapping[str, str]) -> None:
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
        if data.startswith("&"):
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

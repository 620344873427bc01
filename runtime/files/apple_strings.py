"""Strings of Apple's platforms: .strings and .stringsdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.resources import TextSource, Values, join_surrogates, line_error
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, XmlSource, content_writer

_STRING = r'"(?:[^"\\]|\\.)*"'
_BARE = r"[\w.$:/-]+"
_TOKEN = re.compile(
    rf"\s+|/\*.*?\*/|//[^\r\n]*|(?P<string>{_STRING}|{_BARE})|(?P<mark>[=;{{}}])", re.DOTALL
)
_ESCAPED = re.compile(r"\\(?:U([0-9A-Fa-f]{4})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WRITTEN = {value: f"\\{letter}" for letter, value in _ESCAPES.items()} | {
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip
# Keys of property lists whose values are no text.
_TYPES = ("NSStringFormatSpecTypeKey", "NSStringFormatValueTypeKey")


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read strings: the values of all keys, also of property lists of XML."""
    if content.startswith(b"bplist"):
        raise InputError("is a binary property list; plutil -convert xml1 makes one of XML.")
    if re.match(rb"(?:\xef\xbb\xbf)?\s*<", content):
        return read_dictionary(content, options)
    source = TextSource(content, options)
    values = Values(options)
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(source.text):
        found = _TOKEN.match(source.text, at)
        if found is None:
            raise line_error("a .strings file", source.line(at), "cannot be read")
        at = found.end()
        if found.lastgroup is None:
            continue
        tokens.append(found)
        if found[0] == ";":
            kinds = "".join(one[0] if one["mark"] else "s" for one in tokens)
            if kinds == "s=s;":
                key, value = _value(tokens[0][0]), tokens[2]
                values.add(_value(value[0]), partial(_put, source, *value.span()), key)
            elif kinds != "s;":  # a key that is its own value
                raise line_error(
                    "a .strings file", source.line(tokens[0].start()), 'is not "key" = "value";'
                )
            tokens = []
    if tokens:
        raise line_error("a .strings file", source.line(tokens[0].start()), "lacks its end")
    return values.file_text(source.render)


def _value(raw: str) -> str:
    def character(found: re.Match[str]) -> str:
        code, octal, letter = found.groups()
        if letter is not None:
            return _ESCAPES.get(letter, letter)
        return chr(int(code, 16) if code else int(octal, 8))

    return join_surrogates(_ESCAPED.sub(character, raw[1:-1])) if raw[0] == '"' else raw


def _put(source: TextSource, start: int, end: int, text: str) -> None:
    raw = source.text[start:end]
    written = _WRITTEN if "\n" not in raw else {**_WRITTEN, "\n": "\n"}
    source.replace(start, end, '"' + "".join(written.get(one, one) for one in text) + '"')


def read_dictionary(content: bytes, options: ReadOptions) -> FileText:
    """Read a property list of XML: the strings of all keys, without those that name types."""
    source = XmlSource(content)
    if source.root.name != "plist":
        raise InputError(f"is no property list: its root element is <{source.root.name}>.")
    values = Values(options)
    for path, element in _strings(source, source.root, ""):
        values.add(source.text_of(element), content_writer(source, element), path)
    return values.file_text(source.render)


def _strings(source: XmlSource, parent: Element, path: str) -> Iterator[tuple[str, Element]]:
    """Iterate over the strings in an element, with the paths of their keys."""
    key = path
    for element in parent.children:
        if element.name == "key":
            name = source.text_of(element)
            key = f"{path}.{name}" if path else name
        elif element.name == "string":
            if not key.endswith(_TYPES):
                yield key, element
        else:
            yield from _strings(source, element, key)

"""Resources of XML: strings of Android, and .resx files of .NET."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import tmx, xliff
from translate_trt.runtime.files.inline_codes import inline_fragment
from translate_trt.runtime.files.message_text import Message, read_fragment
from translate_trt.runtime.files.resources import Values, join_surrogates
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import (
    Element,
    XmlSource,
    content_writer,
    escape,
    unescape,
)

_NAMESPACES = {"urn:oasis:names:tc:xliff:document:1.2": "xliff"}
_CDATA = re.compile(r"\s*<!\[CDATA\[((?:(?!\]\]>).)*)\]\]>\s*", re.DOTALL)
_TAG = re.compile(r"""(<(?:"[^"]*"|'[^']*'|[^'"<>])*>)""")
# References to other resources and attributes of a theme.
_REFERENCE = re.compile(r"@(?:null|empty|[\w:.+*]+/[\w.]+)|\?[\w:./]+")
_SPACES = " \t\r\n"
_ESCAPED = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(.))|(")|([ \t\r\n]+)', re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}
_WRITTEN_QUOTED = {"\n": "\\n", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
_WRITTEN = {**_WRITTEN_QUOTED, "'": "\\'"}


def read_resources(content: bytes, options: ReadOptions) -> FileText:
    """Read strings of Android, or XLIFF or TMX with the suffix of XML."""
    source = XmlSource(content, _NAMESPACES)
    name = source.root.name.rpartition("}")[2]
    if name in ("xliff", "tmx"):
        return xliff.read(content, options) if name == "xliff" else tmx.read(content, options)
    if name != "resources":
        raise InputError(
            f"is XML, but no resources of Android: its root is <{name}>; translate-trt translate "
            "--document --markup xml translates the text of other XML."
        )
    values = Values(options)
    for key, element in _android_strings(source.root):
        raw = source.text(element.inner, element.inner_end)
        if element.attributes.get("translatable") != "false" and not _REFERENCE.fullmatch(raw):
            _add_android(source, element, raw, key, values)
    return values.file_text(source.render)


def read_resx(content: bytes, options: ReadOptions) -> FileText:
    """Read resources of .NET: data without a type, and not of the designer (">>")."""
    source = XmlSource(content)
    if source.root.name != "root":
        raise InputError(f"is no .resx file: its root is <{source.root.name}>.")
    values = Values(options)
    for data in source.root.children:
        key, value = data.attributes.get("name", ""), data.find("value")
        is_text = data.name == "data" and not {"type", "mimetype"} & data.attributes.keys()
        if is_text and value is not None and not value.children and not key.startswith(">>"):
            raw = source.text(value.inner, value.inner_end)
            text, write = _text(raw)
            values.add(text, content_writer(source, value, write), key)
    return values.file_text(source.render)


def _text(raw: str) -> tuple[str, Callable[[str], str]]:
    """Return the text of a raw content without tags, and the function that writes it so."""
    if found := _CDATA.fullmatch(raw):
        before, after = raw[: found.start(1)], raw[found.end(1) :]
        return found[1], lambda text: before + text.replace("]]>", "]]]]><![CDATA[>") + after
    return unescape(raw), escape


def _android_strings(root: Element) -> Iterator[tuple[str, Element]]:
    """Iterate over the strings and items of arrays and plurals, with their keys."""
    for element in root.children:
        name = element.attributes.get("name", "")
        if element.name == "string":
            yield name, element
        elif (
            element.name in ("string-array", "plurals")
            and element.attributes.get("translatable") != "false"
        ):
            for number, item in enumerate(element.children):
                yield f"{name}.{item.attributes.get('quantity', number)}", item


def _add_android(source: XmlSource, element: Element, raw: str, key: str, values: Values) -> None:
    body = raw.strip(_SPACES)
    before, _, after = raw.partition(body) if body else (raw, "", "")
    is_quoted = re.fullmatch(r'"(?:[^"\\]|\\.)*"', body, re.DOTALL) is not None
    is_marked = "<" in body  # CDATA, or elements
    if element.children or (is_marked and not _CDATA.fullmatch(body)):
        fragment, write = inline_fragment(source, element, lambda inline: inline.name == "xliff:g")
        text = _outside_tags(fragment.strip(_SPACES), _decoder(True))
        message: Message | None = read_fragment(text, key, has_lines=True)
    else:
        message, (text, write) = None, _text(body)
        text = _outside_tags(text, _decoder(False)) if is_marked else _decoder(False)(text)

    def put(translation: str) -> None:
        if is_quoted:
            encoded = "".join(_WRITTEN_QUOTED.get(one, one) for one in translation)
            encoded = f'"{encoded}"'
        else:
            encoded = _outside_tags(translation, _encoded) if is_marked else _encoded(translation)
            encoded = re.sub("^ | $", r"\\u0020", encoded)
            encoded = re.sub(r"^(?=[@?])", r"\\", encoded)  # no reference
        source.replace_content(element, before + write(encoded) + after)

    values.add(text, put, key, message=message)


def _outside_tags(text: str, change: Callable[[str], str]) -> str:
    """Change the text between tags."""
    return "".join(
        part if number % 2 else change(part) for number, part in enumerate(_TAG.split(text))
    )


def _decoder(is_fragment: bool) -> Callable[[str], str]:
    """Return a function for the parts of a string in order, which decodes Android's escapes."""
    is_quoted = False

    def decoded(found: re.Match[str]) -> str:
        nonlocal is_quoted
        code, letter, quote, space = found.groups()
        if quote:
            is_quoted = not is_quoted
            return ""
        if space:
            return str(space) if is_quoted else " "
        character = chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)
        return escape(character) if is_fragment and character in "<>&" else character

    return lambda text: join_surrogates(_ESCAPED.sub(decoded, text))


def _encoded(text: str) -> str:
    """Write a text with escapes, also of spaces that would be lost."""
    return re.sub(r"(?<= ) ", r"\\u0020", "".join(_WRITTEN.get(one, one) for one in text))

"""Text of OpenDocument: text documents, spreadsheets and presentations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.mixed_text import Role, text_blocks
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, XmlSource
from translate_trt.runtime.files.zip_packages import Block, Package, package_text

_NAMESPACES = {
    f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0": name
    for name in ("office", "text", "table", "style")
} | {
    "urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0": "xsl",
    "http://openoffice.org/2009/office": "officeooo",
}

_PARAGRAPHS = {"text:p", "text:h"}
_INLINE = {"text:span", "text:a", "text:meta"}
# History and language of a text, which are no formatting.
_FORMAT_NOISE = re.compile(r"officeooo:.*|(?:xsl|style):(?:language|country|script|rfc-language).*")
_BREAKS = {"text:tab", "text:line-break"}
# Deleted text, and what forms say, which programs may read.
_KEPT = {"text:tracked-changes", "table:tracked-changes", "office:forms"}
_CELLS = {"table:table-cell", "table:covered-table-cell"}
_HEADERS = re.compile(r"style:(?:header|footer)(?:-left|-first)?")
_MARK = re.compile(r"text:(.+)-(start|end)")
_MARK_IDS = ("text:name", "text:id", "text:change-id")
_STRING_VALUE = re.compile(r"""\s[^\s=]*:string-value\s*=\s*(?:"[^"]*"|'[^']*')""")


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a document, a spreadsheet or a presentation."""
    package = Package(content, options)
    if "META-INF/manifest.xml" in package.names and (
        b"encryption-data" in package.read("META-INF/manifest.xml")
    ):
        raise InputError("is encrypted; save it without a password.")
    source = package.xml("content.xml", _NAMESPACES)
    parts = [("content.xml", source, _blocks(source, [source.root], ""))]
    if "styles.xml" in package.names:
        source = package.xml("styles.xml", _NAMESPACES)
        headers = [one for one in source.root.iterate() if _HEADERS.fullmatch(one.name)]
        parts.append(("styles.xml", source, _blocks(source, headers, "header or footer, ")))
    return package_text(package, parts)


def _blocks(source: XmlSource, roots: list[Element], label: str) -> list[Block]:
    def changed(paragraph: Element) -> None:
        """Remove the value of a changed cell, which is then its text."""
        cell = paragraph.parent
        if cell is not None and "office:string-value" in cell.attributes:
            tag = _STRING_VALUE.sub("", source.text(cell.start, cell.inner))
            source.replace(cell.start, cell.inner, tag)

    role = partial(_role, _plain_styles(source.root))
    return list(text_blocks(source, _paragraphs(roots), role, label, changed))


def _plain_styles(root: Element) -> set[str]:
    """Return the names of automatic styles of text that are no formatting."""
    styles = root.find("office:automatic-styles")
    return {
        style.attributes.get("style:name", "")
        for style in (styles.children if styles is not None else ())
        if style.attributes.get("style:family") == "text"
        and "style:parent-style-name" not in style.attributes
        and all(
            one.name == "style:text-properties"
            and not one.children
            and all(map(_FORMAT_NOISE.fullmatch, one.attributes))
            for one in style.children
        )
    }


def _paragraphs(roots: list[Element]) -> Iterator[Element]:
    """Iterate over the paragraphs, those in notes and frames included."""
    waiting = roots[::-1]
    while waiting:
        element = waiting.pop()
        children = element.children
        if element.name in _PARAGRAPHS:
            yield element
        elif element.name in _KEPT:
            continue
        elif element.name in _CELLS and (
            element.attributes.get("office:value-type", "string") != "string"
            or "table:formula" in element.attributes
        ):
            children = [one for one in children if one.name not in _PARAGRAPHS]
        waiting += reversed(children)


def _role(plain_styles: set[str], element: Element) -> Role:
    name = element.name
    if name == "text:span" and [*element.attributes] == ["text:style-name"]:
        style = element.attributes["text:style-name"]
        return Role("run", format="" if style in plain_styles else style)
    if name in _INLINE:
        return Role("inline")
    if name in _BREAKS:
        return Role("break")
    if name in ("office:annotation", "office:annotation-end"):
        if (key := element.attributes.get("office:name")) is not None:
            return Role("opaque", (name[:17], key), name == "office:annotation")
    elif found := _MARK.fullmatch(name):
        keys = (element.attributes.get(one) for one in _MARK_IDS)
        return Role("opaque", (found[1], next(filter(None, keys), None)), found[2] == "start")
    return Role("shown")

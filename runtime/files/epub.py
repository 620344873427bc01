"""Text of EPUB books."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import unquote

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.mixed_text import Role, text_blocks
from translate_trt.runtime.files.segments import HAS_LETTER, FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, XmlSource
from translate_trt.runtime.files.zip_packages import Block, Package, package_text
from translate_trt.runtime.text.languages import public_code

_NAMESPACES = {
    "urn:oasis:names:tc:opendocument:xmlns:container": "container",
    "http://www.w3.org/2001/04/xmlenc#": "enc",
    "http://www.idpf.org/2007/opf": "opf",
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://www.daisy.org/z3986/2005/ncx/": "ncx",
    "http://www.w3.org/1999/xhtml": "",
    "http://www.w3.org/XML/1998/namespace": "xml",
}
# Obfuscation of fonts, which is no encryption of the text.
_FONT_ALGORITHMS = {"http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"}

_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|label|mark|"
    "q|s|small|span|strike|strong|sub|sup|time|tt|u"
)
# Not translated, within a sentence, to which the text of some belongs.
_CODE = re.compile("code|kbd|output|samp|var")
_OPAQUE = re.compile(
    "applet|audio|button|canvas|embed|iframe|img|input|map|math|meter|"
    "noscript|object|picture|progress|ruby|script|select|style|svg|"
    "template|textarea|video|wbr"
)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a book; the translation declares the target language, if it is known."""
    package = Package(content, options)
    _check_encryption(package)
    language = options.target_language or ""
    language = public_code(language) if _LANGUAGE.fullmatch(language) else ""
    parts: list[tuple[str, XmlSource, list[Block]]] = []
    container = package.xml("META-INF/container.xml", _NAMESPACES)
    for element in container.root.iterate():
        if element.name == "container:rootfile":
            path = element.attributes.get("full-path", "")
            parts += _publication(package, path, language)
    if not parts:
        raise InputError("is damaged, or not of the format that its name says: it has no book.")
    return package_text(package, parts)


def _check_encryption(package: Package) -> None:
    """Refuse books with DRM.

    Raises:
        InputError: The text is encrypted.
    """
    name = "META-INF/encryption.xml"
    if name in package.names:
        for element in package.xml(name, _NAMESPACES).root.iterate():
            if element.name == "enc:EncryptionMethod" and (
                element.attributes.get("Algorithm") not in _FONT_ALGORITHMS
            ):
                raise InputError("is encrypted (DRM); only a book without it can be translated.")


def _publication(
    package: Package, path: str, language: str
) -> Iterator[tuple[str, XmlSource, list[Block]]]:
    """Iterate over the parts of a publication that have text."""
    source = package.xml(path, _NAMESPACES)
    elements = list(source.root.iterate())
    described = [
        element
        for element in elements
        # A description may have markup as text.
        if element.name in ("dc:title", "dc:description") and "<" not in source.text_of(element)
    ]
    declared = next((one for one in elements if one.name == "dc:language"), None)
    if language and declared is not None and source.text_of(declared).strip() != language:
        source.replace_content(declared, language)
    yield path, source, _blocks(source, described, "metadata, ")
    for item in elements:
        name = posixpath.join(posixpath.dirname(path), unquote(item.attributes.get("href", "")))
        name = posixpath.normpath(name)
        media_type = item.attributes.get("media-type")
        if item.name != "opf:item" or name not in package.names:
            continue
        label = f"{PurePosixPath(name).stem}, "
        if media_type == "application/xhtml+xml":
            source = package.xml(name, _NAMESPACES, foreign_entities=True)
            for attribute in ("lang", "xml:lang"):
                if language and source.root.attributes.get(attribute, language) != language:
                    source.set_attribute(source.root, attribute, language)
            yield name, source, _blocks(source, _containers(source), label)
        elif media_type == "application/x-dtbncx+xml":
            source = package.xml(name, _NAMESPACES, foreign_entities=True)
            texts = [
                element
                for element in source.root.iterate()
                if element.name == "ncx:text" and element.parent
                and element.parent.name != "ncx:docAuthor"
            ]  # fmt: skip
            yield name, source, _blocks(source, texts, label)


def _blocks(source: XmlSource, containers: Iterable[Element], label: str) -> list[Block]:
    return list(text_blocks(source, containers, partial(_role, source), label))


def _containers(source: XmlSource) -> Iterator[Element]:
    """Iterate over the elements of a page that separate texts, and its title."""
    waiting = [source.root]
    while waiting:
        element = waiting.pop()
        children = element.children
        if element.name == "head":
            children = [one for one in children if one.name == "title"]
        elif (
            element.name == "pre"
            or _OPAQUE.fullmatch(element.name)
            or _CODE.fullmatch(element.name)
            or _is_kept(element)
        ):
            continue
        elif not _INLINE.fullmatch(element.name):
            yield element
        waiting += reversed(children)


def _is_kept(element: Element) -> bool:
    """Return True if an element says that it is not translated, or is of another language."""
    return (
        element.name.startswith("{")
        or element.attributes.get("translate") == "no"
        or "notranslate" in element.attributes.get("class", "").split()
    )


def _role(source: XmlSource, element: Element) -> Role:
    name = element.name
    if _INLINE.fullmatch(name):
        if _is_kept(element):
            return Role("shown")
        # The number of a note is a thing beside a word.
        is_note = name == "a" and not HAS_LETTER.search(source.text_of(element))
        return Role("opaque" if is_note else "inline")
    if _CODE.fullmatch(name):
        return Role("shown")
    return Role("opaque" if _OPAQUE.fullmatch(name) or name.startswith("{") else "break")

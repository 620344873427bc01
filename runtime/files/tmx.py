"""Translation memories (TMX): variants in the target language are added to the units."""

from __future__ import annotations

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.inline_codes import read_inline
from translate_trt.runtime.files.resources import Values
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, XmlSource, escape_attribute
from translate_trt.runtime.text.languages import is_same_language, public_code

_HIDDEN = ("bpt", "ept", "ph", "it", "ut")
_NAMESPACES = {
    "http://www.lisa.org/tmx14": "",
    "http://www.w3.org/XML/1998/namespace": "xml",
}


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a memory: the units without the target language, or all to overwrite them.

    Their source is the variant in the source language, or else in that of the file.
    """
    source = XmlSource(content, _NAMESPACES)
    header, body = source.root.find("header"), source.root.find("body")
    if source.root.name != "tmx" or body is None:
        raise InputError(f"is no TMX: its root is <{source.root.name}>, or it has no <body>.")
    if options.target_language is None:
        raise InputError("needs the target language, for which it gets translations.")
    declared = header.attributes.get("srclang") if header else None
    values = Values(options)
    for number, unit in enumerate(body.children):
        language = options.source_language or unit.attributes.get("srclang") or declared
        original, target = _variant(unit, language), _variant(unit, options.target_language)
        segment, old = (one and one.find("seg") for one in (original, target))
        if original is None or segment is None or original is target:
            continue
        if old and not options.overwrite and source.text(old.inner, old.inner_end).strip():
            continue
        message = read_inline(
            source, segment, lambda inline: inline.name in _HIDDEN, f"unit {number + 1}"
        )

        def put(
            text: str, unit: Element = unit, segment: Element = segment, old: Element | None = old
        ) -> None:
            if old is not None:
                source.replace_content(old, text)
                return
            variant = segment.parent or unit
            tag, name = source.tag_name(variant), source.tag_name(segment)
            key = "xml:lang" if "xml:lang" in variant.attributes else "lang"
            code = escape_attribute(public_code(options.target_language or ""))
            before, inner, after = (source.text(*found) for found in (
                (unit.inner, variant.start), (variant.inner, segment.start),
                (segment.end, variant.inner_end),
            ))  # fmt: skip
            added = (
                f'{_margin(before)}<{tag} {key}="{code}">{_margin(inner)}<{name}>{text}</{name}>'
            )
            last = unit.children[-1].end
            source.replace(last, last, f"{added}{_margin(after)}</{tag}>")

        values.add_message(message, put)
    return values.file_text(source.render)


def _variant(unit: Element, language: str | None) -> Element | None:
    """Return the variant of a unit in a language: of the same region if there is one."""
    variants = [(one.attributes.get("xml:lang") or one.attributes.get("lang", ""), one)
                for one in unit.children if one.name == "tuv"]  # fmt: skip
    found = [pair for pair in variants if is_same_language(pair[0], language)]
    exact = [pair for pair in found if pair[0].lower() == (language or "").lower()]
    return next((one for _, one in exact + found), None)


def _margin(text: str) -> str:
    """Return the white space at the end of a text."""
    return text[len(text.rstrip()) :]

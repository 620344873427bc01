"""XLIFF 1.2 and 2.

Translations get the state "needs-review-translation" in XLIFF 1.2 and "translated" in XLIFF 2,
which has "reviewed" and "final" after it. A target that has text is kept unless its state says that
it is none yet, or `overwrite`; units that are approved or not to be translated are always kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.inline_codes import read_inline
from translate_trt.runtime.files.message_text import Message, render_each
from translate_trt.runtime.files.resources import Values
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, XmlSource
from translate_trt.runtime.text.languages import public_code

_NAMESPACES = {
    **dict.fromkeys((f"urn:oasis:names:tc:xliff:document:1.{minor}" for minor in (1, 2)), ""),
    **dict.fromkeys((f"urn:oasis:names:tc:xliff:document:2.{minor}" for minor in range(3)), ""),
    "http://www.w3.org/XML/1998/namespace": "xml",
}

_STATE = re.compile(r"""\sstate\s*=\s*(?:"[^"]*"|'[^']*')""")


class _Version(NamedTuple):
    """Names of a version of XLIFF.

    Attributes:
        unit: Element with a source and its target.
        language: Attribute with the target language.
        holder: Element that has it.
        state: State of the program's translations.
        untranslated: States of targets that are no translations.
    """

    unit: str
    language: str
    holder: str
    state: str
    untranslated: tuple[str, ...]


_VERSIONS = {
    "1": _Version("trans-unit", "target-language", "file", "needs-review-translation",
                  ("new", "needs-translation")),
    "2": _Version("segment", "trgLang", "xliff", "translated", ("initial",)),
}  # fmt: skip


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a file: the units without a translation, or all to overwrite them."""
    source = XmlSource(content, _NAMESPACES)
    root, number = source.root, source.root.attributes.get("version", "1.2")
    version = _VERSIONS.get(number[:1])
    if root.name != "xliff" or version is None:
        raise InputError(f"is no XLIFF 1 or 2: its root is <{root.name}>, version {number}.")
    values, is_changed = Values(options), False
    for unit, has_lines in _units(root, version.unit, True, False):
        is_changed = _add_unit(source, unit, version, options, values, has_lines) or is_changed
    if not is_changed:
        return FileText((), lambda _: content)
    if options.target_language is not None:
        for element in root.iterate():
            if element.name == version.holder and version.language not in element.attributes:
                tag = public_code(options.target_language)
                source.set_attribute(element, version.language, tag)
    return values.file_text(source.render)


def _units(
    element: Element, name: str, is_translated: bool, has_lines: bool
) -> Iterator[tuple[Element, bool]]:
    """Iterate over the units that are to be translated, and whether their line ends are kept."""
    is_translated = element.attributes.get("translate", "yes" if is_translated else "no") != "no"
    space = element.attributes.get("xml:space")
    has_lines = has_lines if space is None else space == "preserve"
    if element.name != name:
        for child in element.children:
            yield from _units(child, name, is_translated, has_lines)
    elif is_translated and element.attributes.get("approved") != "yes":
        yield element, has_lines


def _add_unit(
    source: XmlSource,
    unit: Element,
    version: _Version,
    options: ReadOptions,
    values: Values,
    has_lines: bool,
) -> bool:
    """Add the text of a unit whose translation is missing; return whether there is one."""
    original, target = unit.find("source"), unit.find("target")
    if original is None or not source.text(original.inner, original.inner_end).strip():
        return False
    is_first = version.unit == "trans-unit"
    state = (target if is_first and target else unit).attributes.get("state")
    has_target = target is not None and source.text(target.inner, target.inner_end).strip()
    if has_target and not options.overwrite and state not in version.untranslated:
        return False
    segmented = unit.find("seg-source")
    message = _message(source, original if segmented is None else segmented, unit, has_lines)
    last = original if segmented is None else segmented

    def put(text: str) -> None:
        state = f' state="{version.state}"' if is_first else ""
        if target is None:
            before = source.text(unit.inner, original.start)
            margin = before[len(before.rstrip()) :]
            name = source.tag_name(original).removesuffix("source") + "target"
            source.replace(last.end, last.end, f"{margin}<{name}{state}>{text}</{name}>")
        elif target.end == target.inner:
            tag, name = source.text(target.start, target.end - 2), source.tag_name(target)
            tag = _STATE.sub("", tag).rstrip() if is_first else tag.rstrip()
            source.replace(target.start, target.end, f"{tag}{state}>{text}</{name}>")
        else:
            source.replace_content(target, text)
            if is_first:
                source.set_attribute(target, "state", version.state)
        if not is_first:
            source.set_attribute(unit, "state", version.state)

    values.add_message(message, put)
    return True


def _message(source: XmlSource, outer: Element, unit: Element, has_lines: bool) -> Message:
    """Return the message of a source: one text, or those of its segments."""
    inner = [one for one in outer.iterate() if one.attributes.get("mtype") == "seg"] or [outer]
    place = f"unit {unit.attributes.get('id') or (unit.parent or unit).attributes.get('id', '')}"
    messages = [read_inline(source, one, _is_hidden, place, has_lines) for one in inner]
    width = re.fullmatch("[0-9]{1,9}", unit.attributes.get("maxwidth", ""))
    length = int(width[0]) if width and unit.attributes.get("size-unit") == "char" else None

    def render(translations: Sequence[str]) -> str:
        text, at = "", outer.inner
        for element, rendered in zip(inner, render_each(messages, translations), strict=True):
            text += source.text(at, element.inner) + rendered
            at = element.inner_end
        return text + source.text(at, outer.inner_end)

    segments = [one._replace(length=length) for message in messages for one in message.segments]
    return Message(segments, render)


def _is_hidden(element: Element) -> bool:
    """Return whether the content of an inline element is native code, or protected."""
    if element.name == "mrk":
        return element.attributes.get("mtype") == "protected"
    return element.name in ("bpt", "ept", "ph", "it") and bool(element.inner_end > element.inner)

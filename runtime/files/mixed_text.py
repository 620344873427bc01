"""Text of XML whose elements are mixed with it, as in OpenDocument and XHTML."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from translate_trt.runtime.files.fragments import (
    Break,
    Fragment,
    Mark,
    Node,
    Opaque,
    Source,
    Text,
    group,
    has_letter,
    plain_content,
    source_of,
    split,
)
from translate_trt.runtime.files.xml_source import Element, XmlSource, escape
from translate_trt.runtime.files.zip_packages import Block

# Comments, instructions, CDATA sections, and references to entities that XML does not have.
_SPECIAL = re.compile(
    rb"(<!--.*?-->|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|&(?!(?:amp|lt|gt|quot|apos);)\w+;)", re.DOTALL
)


class Role(NamedTuple):
    """Role of an element in text.

    Attributes:
        kind: "inline" if text goes on in it, "run" if it has a text in a format, "opaque" if text
            goes on after it, "shown" if it also has text that is not translated, "break" if the
            element separates segments.
        mark: Kind and id of the range of which the element is a mark; None for none.
        is_start: Whether the mark is the begin of the range.
        format: Format of a run; empty for none.
    """

    kind: str
    mark: tuple[str, str | None] | None = None
    is_start: bool = False
    format: str = ""


def text_blocks(
    source: XmlSource,
    containers: Iterable[Element],
    role: Callable[[Element], Role],
    label: str,
    changed: Callable[[Element], None] = lambda _: None,
) -> Iterator[Block]:
    """Iterate over the segments of elements.

    Args:
        source: The document.
        containers: Elements with text; one may lie in a part of another that is not inline.
        role: Returns the role of an element in one of them.
        label: Begin of the places.
        changed: Called with an element whose text is translated.
    """
    for number, container in enumerate(containers, 1):
        for part in split(_nodes(source, container, role)):
            if has_letter(part):
                fragment = Fragment(part)
                edit = partial(_edit, fragment, source_of(part), container, changed)
                yield Block([fragment], f"{label}paragraph {number}", edit)


def _edit(
    fragment: Fragment,
    replaced: Source,
    container: Element,
    changed: Callable[[Element], None],
    source: XmlSource,
    translations: Sequence[str],
) -> None:
    start, end = (piece for piece in (replaced[0], replaced[-1]) if not isinstance(piece, str))
    source.replace(start[0], end[1], *fragment.render(translations[0], _write))
    changed(container)


def _write(text: str, run: str) -> str:
    """Write a text in a run, whose begin is a tag."""
    return f"{run}{text}</{run[1:].split()[0]}>" if run else text


def _nodes(source: XmlSource, element: Element, role: Callable[[Element], Role]) -> list[Node]:
    nodes: list[Node] = []
    at = element.inner
    for child in element.children:
        _add_text(source, at, child.start, nodes)
        at = child.end
        whole = ((child.start, child.end),)
        kind, mark, is_start, format_ = role(child)
        if mark is not None:
            nodes.append(Mark(whole, mark, is_start))
        elif kind in ("inline", "run"):
            before, after = (child.start, child.inner), (child.inner_end, child.end)
            inner = _nodes(source, child, role)
            if kind == "run" and len(inner) == 1 and isinstance(only := inner[0], Text):
                run = source.text(*before) if format_ else ""
                nodes.append(Text(only.text, whole, format_, run))
            else:
                nodes.append(group((before,), inner, (after,), whole))
        elif kind == "break":
            nodes.append(Break(whole))
        else:
            text = source.text_of(child) if kind == "shown" and not child.children else ""
            nodes.append(Opaque(whole, escape(text)))
    _add_text(source, at, element.inner_end, nodes)
    return nodes


def _add_text(source: XmlSource, start: int, end: int, nodes: list[Node]) -> None:
    """Add the text between two tags, and the comments in it."""
    if start == end:
        return
    for number, piece in enumerate(_SPECIAL.split(source.content[start:end])):
        end = start + len(piece)
        text = _text_of_special(piece.decode()) if number % 2 else piece.decode()
        if text is None:
            nodes.append(Opaque(((start, end),)))
        elif text:
            nodes.append(Text(text, ((start, end),)))
        start = end


def _text_of_special(written: str) -> str | None:
    """Return what the translation has instead of a special text; None if it stays."""
    if written.startswith("&"):  # an entity of XHTML
        return html.entities.html5.get(written[1:])
    return plain_content(written) if written.startswith("<![") else None

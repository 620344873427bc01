"""Native code in segments of XLIFF and TMX, which is hidden from the translation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from translate_trt.runtime.files.message_text import Message, read_fragment
from translate_trt.runtime.files.xml_source import Element, XmlSource

_HIDDEN = re.compile(r"</?x-\d+/?>")
_BEGINS, _ENDS = ("bpt", "bx", "sc"), ("ept", "ex", "ec")


def read_inline(
    source: XmlSource,
    element: Element,
    is_hidden: Callable[[Element], bool],
    place: str,
    has_lines: bool = False,
) -> Message:
    """Read the content of an element with inline elements (`inline_fragment`, `read_fragment`)."""
    fragment, restore = inline_fragment(source, element, is_hidden)
    message = read_fragment(fragment, place, has_lines=has_lines)
    return Message(message.segments, lambda translations: restore(message.render(translations)))


def inline_fragment(
    source: XmlSource, element: Element, is_hidden: Callable[[Element], bool]
) -> tuple[str, Callable[[str], str]]:
    """Return the content of an element for translation, and the function that restores its codes.

    Hidden elements are shown as empty-element tags, and two elements that mark the begin and the
    end of a range as tags around it.

    Args:
        source: The document.
        element: The element.
        is_hidden: Whether the content of an inline element is no text.
    """
    codes: dict[str, str] = {}
    fragment = "".join(_pieces(source, element, is_hidden, codes, itertools.count()))
    return fragment, lambda text: _HIDDEN.sub(lambda tag: codes.get(tag[0], tag[0]), text)


def _pieces(
    source: XmlSource,
    parent: Element,
    is_hidden: Callable[[Element], bool],
    codes: dict[str, str],
    numbers: Iterator[int],
) -> Iterator[str]:
    """Iterate over the pieces of a fragment; `codes` gets the elements of its tags."""
    at, ranges = parent.inner, _ranges(parent, numbers)
    for child in parent.children:
        yield source.text(at, child.start)
        tag = ranges.get(child)
        if tag is None and is_hidden(child):
            tag = f"<x-{next(numbers)}/>"
        if tag is None:
            yield source.text(child.start, child.inner)
            yield from _pieces(source, child, is_hidden, codes, numbers)
            yield source.text(child.inner_end, child.end)
        else:
            codes[tag] = source.text(child.start, child.end)
            yield tag
        at = child.end
    yield source.text(at, parent.inner_end)


def _ranges(parent: Element, numbers: Iterator[int]) -> dict[Element, str]:
    """Return the tags of elements that mark the begin and the end of a range."""
    tags: dict[Element, str] = {}
    begun: list[tuple[str | None, Element]] = []
    for child in parent.children:
        values = child.attributes
        key = values.get("startRef") or values.get("rid") or values.get("id") or values.get("i")
        if child.name in _BEGINS:
            begun.append((key, child))
        elif child.name in _ENDS:
            while begun:
                other, begin = begun.pop()
                if other == key:
                    number = next(numbers)
                    tags[begin], tags[child] = f"<x-{number}>", f"</x-{number}>"
                    break
    return tags

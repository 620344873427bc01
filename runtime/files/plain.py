"""Plain text and HTML, which the core reads as whole documents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment, decode
from translate_trt.runtime.text.encodings import check_encoding

# A paragraph of plain text with the blank lines after it: paragraphs are small enough to be
# compared with those of a memory and with each other.
_PARAGRAPH = re.compile(r"(?:[^\r\n]*\S[^\r\n]*(?:\r\n|\r|\n)?)+|\s+")


def read_text(content: bytes, options: ReadOptions) -> FileText:
    """Read plain text: each paragraph is a segment, whose line ends are kept."""
    text, encoding = decode(content, options)
    pieces = _PARAGRAPH.findall(text)
    segments, numbers = [], []
    for number, piece in enumerate(pieces):
        if not piece.isspace():
            numbers.append(number)
            segments.append(Segment(piece, place=f"paragraph {len(numbers)}"))

    def render(translations: Sequence[str]) -> bytes:
        rendered = list(pieces)
        for number, translation in zip(numbers, translations, strict=True):
            rendered[number] = translation
        return encoding.encode("".join(rendered))

    return FileText(segments, render)


def read_html(content: bytes, options: ReadOptions) -> FileText:
    """Read a page: one segment of kind "html", whose blocks the core finds."""
    if options.encoding is None and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        check_encoding(content[:2048].decode("latin-1"), "html", "the page")
    text, encoding = decode(content, options)
    if not text.strip():
        return FileText((), lambda _: content)
    return FileText([Segment(text, "html")], lambda translations: encoding.encode(translations[0]))

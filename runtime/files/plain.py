"""Plain text and HTML, which the core reads as whole documents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment, decode
from translate_trt.runtime.text.encodings import check_encoding
from translate_trt.runtime.text.languages import public_code

# A paragraph of plain text with the blank lines after it: paragraphs are small enough to be
# compared with those of a memory and with each other.
_PARAGRAPH = re.compile(r"(?:[^\r\n]*\S[^\r\n]*(?:\r\n|\r|\n)?)+|\s+")

# The language of a page, which its root declares: also as XML, and once more for old browsers.
_ROOT = re.compile(r"<html\b[^>]*>", re.IGNORECASE)
_AFTER_ROOT = re.compile(r"<(?:head|body|script)\b|\Z", re.IGNORECASE)
_LANGUAGE = re.compile(r"""(\s(?:xml:)?lang\s*=\s*)(?:"[^"<>]*"|'[^'<>]*'|[\w-]+)""", re.IGNORECASE)


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
    """Read a page: one segment of kind "html", whose blocks the core finds.

    A language that the page declares becomes the target language, if that is known.
    """
    if options.encoding is None and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        check_encoding(content[:2048].decode("latin-1"), "html", "the page")
    text, encoding = decode(content, options)
    if not text.strip():
        return FileText((), lambda _: content)
    language = options.target_language and public_code(options.target_language)

    def render(translations: Sequence[str]) -> bytes:
        (page,) = translations
        if page != text and language and (after := _AFTER_ROOT.search(page)):
            roots, declared = page[: after.start()], rf'\g<1>"{language}"'
            roots = _ROOT.sub(lambda root: _LANGUAGE.sub(declared, root[0]), roots)
            page = roots + page[after.start() :]
        # The page may declare its encoding, so what that lacks is a reference.
        return encoding.mark + page.encode(encoding.name, "xmlcharrefreplace")

    return FileText([Segment(text, "html")], render)

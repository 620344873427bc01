"""PDF: its text alone, since the layout of a page is of the text that it was made for."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Sequence

from pypdf import PdfReader

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.segments import FileText, ReadOptions, Segment

# A paragraph ends with a line that is shorter than this part of the page's longest and ends a
# sentence, or before a list item.
_SHORT = 0.8
_SENTENCE_END = re.compile(r"""[.!?:;\u3002\uff01\uff1f]["'\u2019\u201d)]*\Z""")
_ITEM = re.compile(r"(?:[\u2022\u2023\u25aa\u25cf\u25e6*\u2013-]|\(?\d{1,3}[.)]|\(?[a-z]\))\s")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u00ad\u2010]\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read the text of a PDF; the translation is text in UTF-8, a blank line between paragraphs.

    Raises:
        InputError: The file is damaged, needs a password, or has no text.
    """
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns of each small damage
    try:
        pages = [*_pages(content, options)]
    except InputError:
        raise
    except Exception as error:  # pypdf's errors on damaged files are of many classes
        raise InputError(
            f"is damaged, or not a PDF ({type(error).__name__}); open it in a viewer, and print or "
            "save it as a PDF again."
        ) from error
    segments = [
        Segment(paragraph, place=f"page {number}")
        for number, page in enumerate(pages, 1)
        for paragraph in _paragraphs(page.splitlines())
    ]
    if not segments:
        raise InputError(
            "has no text, only pictures of it; add a text layer with a program for character "
            "recognition, such as ocrmypdf."
        )
    return FileText(segments, lambda found: ("\n\n".join(found) + "\n").encode("utf-8"))


def _pages(content: bytes, options: ReadOptions) -> Iterator[str]:
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise InputError("needs a password; save it without one.")
    size = 0
    for page in reader.pages:
        text = _CONTROL.sub("", page.extract_text())
        size += len(text)
        if size > options.max_bytes:
            raise InputError(f"has more than {options.max_bytes:,} characters.")
        yield text


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Join the lines of paragraphs, and words that were divided at the end of a line."""
    longest = max(map(len, lines), default=0)
    paragraph, is_last = "", False
    for line in map(str.strip, lines):
        ends = not line or _ITEM.match(line)
        if paragraph and (ends or is_last):
            yield paragraph
            paragraph = ""
        if _HYPHEN.search(paragraph) and line[:1].islower():
            paragraph = _HYPHEN.sub("", paragraph) + line
        else:
            paragraph = f"{paragraph} {line}".strip()
        is_last = len(line) < _SHORT * longest and bool(_SENTENCE_END.search(line))
    if paragraph:
        yield paragraph

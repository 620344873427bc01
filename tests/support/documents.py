"""Packed documents of a body, random bodies by grammars, and comparisons of documents."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from support.file_texts import capitals, packed, parts, rendered
from translate_trt.runtime.files import Segment

_OOXML = "http://schemas.openxmlformats.org"
_TYPE = "application/vnd.openxmlformats-officedocument."
_OASIS = "urn:oasis:names:tc:opendocument:xmlns"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_TOKEN = re.compile(r'<g id="\d+">|</g>|<x id="\d+"(?:/>| translate="no">[^<]*</x>)|[^<]+')
_MARK = re.compile(r"\S*(?:Start|End|-start|-end) ")
_TEXTS = (
    "house",
    "of ",
    " a&amp;b",
    "Straße",
    "it&#39;s",
    " ",
    " is",
    "42",
    "été ",
    "- ",
    "]]&gt;",
)


def ooxml(contents: Mapping[str, tuple[str, str | bytes]], **more: str | bytes) -> bytes:
    """Return a package of parts with their content types, and of more parts."""
    overrides = "".join(
        f'<Override PartName="/{name}" ContentType="{type_}"/>'
        for name, (type_, _) in contents.items()
    )
    types = f'<Types xmlns="{_OOXML}/package/2006/content-types">{overrides}</Types>'
    bodies = {name: content for name, (_, content) in contents.items()}
    return packed({"[Content_Types].xml": _DECLARATION + types, **bodies, **more})


def docx(body: str, strict: bool = False, **more: tuple[str, str]) -> bytes:
    """Return a document of Word; more parts have the names of their types."""
    w = (
        "http://purl.oclc.org/ooxml/wordprocessingml/main"
        if strict
        else (f"{_OOXML}/wordprocessingml/2006/main")
    )
    names = f'xmlns:w="{w}" xmlns:mc="{_OOXML}/markup-compatibility/2006"'
    contents: dict[str, tuple[str, str | bytes]] = {
        "word/document.xml": (
            f"{_TYPE}wordprocessingml.document.main+xml",
            f"{_DECLARATION}<w:document {names}><w:body>{body}</w:body></w:document>",
        )
    }
    for name, (type_, text) in more.items():
        contents[f"word/{name}.xml"] = (
            f"{_TYPE}wordprocessingml.{type_}+xml", f"<w:{name} {names}>{text}</w:{name}>"
        )  # fmt: skip
    return ooxml(contents)


def pptx(body: str) -> bytes:
    """Return a presentation of one slide."""
    names = f'xmlns:p="{_OOXML}/presentationml/2006/main" xmlns:a="{_OOXML}/drawingml/2006/main"'
    return ooxml(
        {
            "ppt/presentation.xml": (
                f"{_TYPE}presentationml.presentation.main+xml", f"<p:presentation {names}/>",
            ),
            "ppt/slides/slide1.xml": (
                f"{_TYPE}presentationml.slide+xml", f"<p:sld {names}>{body}</p:sld>",
            ),
        }
    )  # fmt: skip


def xlsx(body: str, sheet: str = "", tables: Sequence[str] = ()) -> bytes:
    """Return a workbook of shared strings, of a sheet, and of tables with columns."""
    x = f'xmlns="{_OOXML}/spreadsheetml/2006/main"'
    kind = f"{_TYPE}spreadsheetml"
    return ooxml(
        {
            "xl/workbook.xml": (f"{kind}.sheet.main+xml", f"<workbook {x}/>"),
            "xl/sharedStrings.xml": (f"{kind}.sharedStrings+xml", f"<sst {x}>{body}</sst>"),
            "xl/worksheets/sheet1.xml": (
                f"{kind}.worksheet+xml", f"<worksheet {x}>{sheet}</worksheet>",
            ),
            **{
                f"xl/tables/table{number}.xml": (f"{kind}.table+xml", f"<table {x}>{table}</table>")
                for number, table in enumerate(tables)
            },
        }
    )  # fmt: skip


def opendocument(body: str, styles: str = "", manifest: str = "", **more: str) -> bytes:
    """Return an OpenDocument of a body, of automatic styles, and of page styles."""
    names = (
        " ".join(
            f'xmlns:{name}="{_OASIS}:{name}:1.0"' for name in ("office", "text", "table", "style")
        )
        + f' xmlns:draw="{_OASIS}:drawing:1.0" xmlns:rsid="http://openoffice.org/2009/office"'
    )
    content = (
        f"<office:document-content {names}><office:automatic-styles>{styles}"
        f"</office:automatic-styles><office:body>{body}</office:body></office:document-content>"
    )
    return packed(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": _DECLARATION + content,
            "META-INF/manifest.xml": f"<manifest>{manifest}</manifest>",
        }
        | {name: text.replace("NAMES", names) for name, text in more.items()}
    )  # fmt: skip


def epub(page: str, metadata: str = "", **more: str) -> bytes:
    """Return a book of one page, of which the whole text is given."""
    container = (
        f'<container xmlns="{_OASIS}:container"><rootfiles><rootfile full-path="OEBPS/book.opf"/>'
        "</rootfiles></container>"
    )
    items = (
        '<item href="page%201.xhtml" media-type="application/xhtml+xml"/>'
        '<item href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
        '<item href="missing.xhtml" media-type="application/xhtml+xml"/>'
    )
    names = 'xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"'
    return packed(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            "OEBPS/book.opf": f"<package {names}><metadata>{metadata}</metadata><manifest>{items}"
            "</manifest></package>",
            "OEBPS/page 1.xhtml": page,
        }
        | more
    )


class Grammar(NamedTuple):
    """Random texts.

    Attributes:
        rules: Alternatives of each symbol, in which symbols are in braces; "{T}" is a text, "{N}" a
            number of its own.
        leaves: Alternatives of symbols that are nested deeply.
    """

    rules: Mapping[str, Sequence[str]]
    leaves: Mapping[str, str]

    def expand(self, rng: random.Random, symbol: str, depth: int = 0) -> str:
        """Return a random text of a symbol."""
        if symbol == "T":
            return "".join(rng.choices(_TEXTS, k=rng.randint(1, 3)))
        if symbol == "N":
            return str(rng.randrange(10**9))
        if depth > 5 and symbol in self.leaves:
            chosen = self.leaves[symbol]
        else:
            chosen = rng.choice(self.rules[symbol])
        number = str(rng.randrange(10**9))
        return re.sub(
            r"\{(\w+)\}", lambda found: self.expand(rng, found[1], depth + 1),
            chosen.replace("{N}", number),
        )  # fmt: skip


def backwards(segment: Segment) -> str:
    """Translate a segment by the reverse order of its text and tags."""
    found: list[str] = []
    depth = 0
    for token in _TOKEN.findall(segment.text):
        if depth:
            found[-1] += token
        else:
            found.append(token)
        depth += token.startswith("<g") - (token == "</g>")
    return "".join(reversed(found))


def check_round_trip(
    content: bytes, name: str, part: str, noise: Collection[str], texts: Collection[str] = ()
) -> None:
    """Check a document with its own text, with capitals, and with tags in another order.

    Args:
        content: The document.
        name: Name with its suffix.
        part: The part with text.
        noise: Elements that may change their number.
        texts: Elements that have the text; empty for all.
    """
    assert rendered(content, name) == content
    before = parts(content)
    elements, text = _contents(before[part], noise, texts)
    after = parts(rendered(content, name, capitals))
    assert [*after] == [*before]
    assert all(after[one] == before[one] for one in before if one != part)
    assert _contents(after[part], noise, texts) == (elements, text.upper())
    moved = parts(rendered(content, name, backwards))
    moved_elements, moved_text = _contents(moved[part], noise, texts)
    assert Counter(moved_elements) == Counter(elements)
    assert Counter(moved_text) == Counter(text)


def _contents(
    document: bytes, noise: Collection[str], texts: Collection[str]
) -> tuple[list[str], str]:
    """Return the elements of a document with their attributes, marks last, and its text."""
    root = ElementTree.fromstring(document)
    elements = [(one.tag.rpartition("}")[2], one) for one in root.iter()]
    found = [f"{tag} {sorted(one.items())}" for tag, one in elements if tag not in noise]
    found.sort(key=lambda one: one if _MARK.match(one) else "")
    with_text = [one for tag, one in elements if tag in texts] if texts else [root]
    return found, "".join("".join(one.itertext()) for one in with_text)

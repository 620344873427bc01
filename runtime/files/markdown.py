"""Markdown: CommonMark with tables, strikethrough and front matter.

markdown-it-py finds blocks and inline markup. The text of each block is replaced at its place in
the file, so code, links, references, comments and the way in which markup is written stay.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from translate_trt.runtime.files.fragments import FRAGMENT_TAG
from translate_trt.runtime.files.resources import TextSource
from translate_trt.runtime.files.segments import HAS_LETTER, FileText, ReadOptions, Segment
from translate_trt.runtime.files.xml_source import escape, unescape

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n.*?\r?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# Paragraphs that are directives of documentation tools.
_DIRECTIVE = re.compile(r"(?:!!!|\?\?\?|:::)")
# Marks of footnotes, formulas, and templates, which CommonMark takes for text.
_OPAQUE = re.compile(
    r"\[\^[^\]\s]+\]:?|\$\$[^$\n]+\$\$|\$[^\s$](?:[^$\n]*[^\s$])?\$(?!\d)|\{%.*?%\}"
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>&~])")
# Text that would begin another block.
_BLOCK_START = re.compile(r"\A(#{1,6}(?=\s|$)|>|[-+*](?=\s|$)|\d{1,9}(?=[.)](?:\s|$))|~~~|```|\|)")
_HTML_TAG = re.compile(r"<!--.*?-->|<[^<>]*>", re.DOTALL)
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_RECORDED = ("backticks", "link", "image", "autolink", "html_inline")


def _parser() -> MarkdownIt:
    """Make a parser whose inline tokens know their place in the text of their block."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    for rule in parser.inline.ruler.__rules__:
        if rule.name in _RECORDED:
            rule.fn = _recording(rule.fn, rule.name)
    parser.inline.ruler.__cache__ = None
    return parser


def _recording(apply: Callable[[Any, bool], bool], name: str) -> Callable[[Any, bool], bool]:
    def record(state: Any, silent: bool) -> bool:
        begin, count = state.pos, len(state.tokens)
        label = None
        if name == "link" and state.src[begin] == "[" and not silent:
            label = state.md.helpers.parseLinkLabel(state, begin, True)
        found = apply(state, silent)
        if found and not silent:
            # The text before may only now have become a token.
            own = next((one for one in state.tokens[count:] if one.type != "text"), None)
            if own is not None:
                own.meta = {"span": (begin, state.pos), "label": label}
        return found

    return record


_MARKDOWN = _parser()


class _Tag(NamedTuple):
    """Markup as it is written, around text or, without an end, between texts."""

    begin: str
    end: str = ""


class _Block(NamedTuple):
    """Text of a block.

    Attributes:
        token: Its inline token.
        begin: Offset of its text in the file.
        end: Offset after it.
        kind: Type of the block's own token, such as "paragraph_open".
        prefix: Line end and beginning of its further lines, such as "> "; None if it has one line.
        width: Number of characters in its longest line.
    """

    token: Token
    begin: int
    end: int
    kind: str
    prefix: str | None
    width: int


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read Markdown: each block of text is a segment, and so is each block of HTML."""
    source = TextSource(content, options)
    text = source.text
    front = _FRONT_MATTER.match(text)
    start = front.end() if front else 0
    lines_before = text.count("\n", 0, start) + 1
    references: dict[str, Any] = {}
    lines = [*_LINE.finditer(text, start)]
    segments: list[Segment] = []
    renders: list[Callable[[str], str]] = []
    places: list[tuple[int, int]] = []
    kind = ""
    cells = _Cells()
    for token in _MARKDOWN.parse(text[start:], references):
        if token.type == "html_block" and token.map:
            begin, end = lines[token.map[0]].start(), lines[token.map[1] - 1].end()
            if HAS_LETTER.search(_HTML_TAG.sub("", text[begin:end])):
                place = f"line {lines_before + token.map[0]}"
                segments.append(Segment(text[begin:end], "html", place))
                places.append((begin, end))
                renders.append(str)
        if token.type != "inline" or not token.map:
            # Headings above a line of = or - are written like paragraphs.
            is_underlined = token.type == "heading_open" and token.markup in ("=", "-")
            kind = "paragraph_open" if is_underlined else token.type
            continue
        block = _located(token, lines, kind, cells)
        if block is None or (kind == "paragraph_open" and _DIRECTIVE.match(token.content)):
            continue
        fragment, tags = _fragment(token)
        if HAS_LETTER.search(FRAGMENT_TAG.sub("", fragment)):
            place = f"line {lines_before + token.map[0]}"
            if tags:
                segments.append(Segment(fragment, "xml", place))
            else:
                segments.append(Segment(unescape(fragment), "text", place))
            places.append((block.begin, block.end))
            renders.append(partial(_rendered, block, tags, references))

    def render(translations: Sequence[str]) -> bytes:
        for segment, translation, place, of_block in zip(
            segments, translations, places, renders, strict=True
        ):
            if translation != segment.text:
                fragment = escape(translation) if segment.kind == "text" else translation
                source.replace(*place, of_block(fragment))
        return source.render()

    return FileText(segments, render)


# ---- blocks ----


class _Cells:
    """Number of the line of the last cell, and the offset after it."""

    line, end = -1, 0


def _located(
    token: Token, lines: Sequence[re.Match[str]], kind: str, cells: _Cells
) -> _Block | None:
    """Find the text of a block in the file; None if it is not there as it was parsed."""
    assert token.map
    first = token.map[0]
    rows = token.content.split("\n")
    places = []
    for number, row in enumerate(rows, first):
        line, row = lines[number], row.strip()
        body = line[1].rstrip()
        if kind in ("th_open", "td_open"):
            row = row.replace("|", "\\|")
            at = line[1].find(row, cells.end - line.start() if cells.line == number else 0)
            cells.line, cells.end = number, line.start() + at + len(row)
        elif kind == "heading_open" and not body.endswith(row):
            at = body.rstrip("#").rstrip().rfind(row)
        else:
            at = len(body) - len(row) if body.endswith(row) else -1
        if at < 0:
            return None
        places.append((line.start() + at, line.start() + at + len(row)))
    prefix = None
    if len(rows) > 1:
        line = lines[first]
        second = lines[first + 1]
        prefix = line[2] + second[1][: places[1][0] - second.start()]
    width = max(len(lines[number][1]) for number in range(first, first + len(rows)))
    return _Block(token, places[0][0], places[-1][1], kind, prefix, width)


# ---- inline markup ----


def _fragment(token: Token) -> tuple[str, list[_Tag]]:
    """Return the text of a block as a fragment, and what its tags stand for."""
    tags: list[_Tag] = []
    pieces: list[str] = []
    open_tags: list[int] = []
    html_names: list[tuple[str, int]] = []

    def empty(written: str) -> None:
        pieces.append(f'<x id="{len(tags)}"/>')
        tags.append(_Tag(written))

    def begin(written: str, end: str) -> None:
        open_tags.append(len(tags))
        pieces.append(f'<g id="{len(tags)}">')
        tags.append(_Tag(written, end))

    children = token.children or []
    skipped = -1  # number of the last token of an autolink
    for number, child in enumerate(children):
        if number <= skipped:
            continue
        span = child.meta.get("span")
        written = token.content[slice(*span)] if span else ""
        if child.type == "text":
            at = 0
            for found in _OPAQUE.finditer(child.content):
                pieces.append(escape(child.content[at : found.start()]))
                empty(found[0])
                at = found.end()
            pieces.append(escape(child.content[at:]))
        elif child.type == "text_special":
            pieces.append(escape(child.content))
        elif child.type == "softbreak":
            pieces.append(" ")
        elif child.type == "hardbreak":
            breaks = re.findall(r"(\\|[ ]*)\n", token.content)  # by a backslash, or by spaces
            before = sum(one.type in ("softbreak", "hardbreak") for one in children[:number])
            empty("\\\n" if breaks[before : before + 1] == ["\\"] else "  \n")
        elif child.type in ("em_open", "strong_open", "s_open"):
            begin(child.markup, child.markup)
        elif child.type == "link_open" and written.startswith("<"):
            # An autolink of three tokens, whose text is its address.
            empty(written)
            skipped = number + 2
        elif child.type == "link_open":
            assert span is not None
            label = child.meta["label"] - span[0]
            end = written[label:]
            if end in ("]", "][]"):
                end = f"][{written[1:label]}]"
            begin("[", end)
        elif child.type in ("em_close", "strong_close", "s_close", "link_close"):
            open_tags.pop()
            pieces.append("</g>")
        elif child.type == "html_inline":
            name = re.match(r"</?([A-Za-z][\w-]*)", child.content)
            if (
                name
                and child.content.startswith("</")
                and html_names
                and (html_names[-1] == (name[1].lower(), open_tags[-1] if open_tags else -1))
            ):
                html_names.pop()
                last = open_tags.pop()
                tags[last] = _Tag(tags[last].begin, child.content)
                pieces.append("</g>")
            elif name and _is_closed(name[1], child.content, children[number + 1 :]):
                html_names.append((name[1].lower(), len(tags)))
                begin(child.content, f"</{name[1]}>")
            else:
                empty(child.content)
        else:
            empty(written or child.content)
    return "".join(pieces), tags


def _is_closed(name: str, tag: str, rest: Sequence[Token]) -> bool:
    """Return True if the next tag of HTML in the same markup closes an element."""
    if tag.startswith("</") or tag.endswith("/>"):
        return False
    level = rest[0].level if rest else 0
    for child in rest:
        if child.level < level:
            return False
        if child.type == "html_inline" and child.level == level:
            return child.content.lower().startswith(f"</{name.lower()}")
    return False


def _rendered(block: _Block, tags: Sequence[_Tag], references: Any, fragment: str) -> str:
    """Write a translated fragment as Markdown of its block."""
    written = _written(fragment, tags, str)
    (token,) = _MARKDOWN.parseInline(written, references) or [Token("inline", "", 0)]
    if _meaning_of(*_fragment(token)) != _meaning_of(fragment, tags):
        written = _written(fragment, tags, lambda text: _SPECIAL.sub(r"\\\1", text))
    if block.kind in ("th_open", "td_open"):
        return written.replace("\n", " ").replace("|", "\\|")
    rows = written.split("\n")
    if block.kind == "paragraph_open":
        rows = [_BLOCK_START.sub(_escaped_start, row) for row in rows]
    if block.prefix is None:
        return "\n".join(rows)
    width = max(20, block.width - len(block.prefix.lstrip("\r\n")))
    wrapped = []
    for row in rows:
        lines = textwrap.wrap(row, width, break_long_words=False, break_on_hyphens=False)
        breaks = "  " if row.endswith("  ") else ""
        wrapped.append(block.prefix.join(_joined_starts(lines or [""])) + breaks)
    return block.prefix.join(wrapped)


def _joined_starts(rows: list[str]) -> list[str]:
    """Join lines that would begin another block to the line before."""
    joined = rows[:1]
    for row in rows[1:]:
        if _BLOCK_START.match(row) or re.match(r"[=-]+\s*$|<", row):
            joined[-1] += f" {row}"
        else:
            joined.append(row)
    return joined


def _escaped_start(found: re.Match[str]) -> str:
    return found[0] + "\\" if found[0].isdigit() else "\\" + found[0]


def _written(fragment: str, tags: Sequence[_Tag], text_as: Callable[[str], str]) -> str:
    pieces: list[str] = []
    open_tags: list[int] = []
    at = 0
    for found in FRAGMENT_TAG.finditer(fragment):
        pieces.append(text_as(unescape(fragment[at : found.start()])))
        at = found.end()
        if found[0] == "</g>":
            pieces.append(tags[open_tags.pop()].end)
        else:
            number = int(found[2])
            pieces.append(tags[number].begin)
            if found[1] == "g":
                open_tags.append(number)
    pieces.append(text_as(unescape(fragment[at:])))
    return "".join(pieces)


def _meaning_of(fragment: str, tags: Sequence[_Tag]) -> str:
    """Return a fragment with tags that say what they stand for."""
    return " ".join(
        _written(fragment, [_Tag(f"\0{a}\0", f"\0{b}\0") for a, b in tags], str).split()
    )

"""Text of Office Open XML: documents, presentations and workbooks.

Text is split into runs wherever its formatting, spelling or history changes. Adjacent runs of equal
formatting become one, and the formatting of most of a segment has no tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.fragments import (
    Break,
    Fragment,
    Mark,
    Node,
    Opaque,
    Source,
    Text,
    fragments_of,
    group,
    plain_content,
    source_of,
    written_text,
)
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.files.xml_source import Element, Range, XmlSource, escape
from translate_trt.runtime.files.zip_packages import Block, Package, package_text

_NAMESPACES = {
    f"{base}{name}": prefix
    for prefix, name in (("w", "wordprocessingml"), ("a", "drawingml"), ("x", "spreadsheetml"))
    for base, name in (
        ("http://schemas.openxmlformats.org/", f"{name}/2006/main"),
        ("http://purl.oclc.org/ooxml/", f"{name}/main"),
    )
} | {
    "http://schemas.openxmlformats.org/package/2006/content-types": "",
    "http://www.w3.org/XML/1998/namespace": "xml",
}

# Content types, whose beginnings differ.
_MAIN = re.compile(
    r".*(?:(?:wordprocessingml\.(?:document|template)|spreadsheetml\.(?:sheet|template)"
    r"|presentationml\.(?:presentation|template|slideshow))\.main\+xml)"
)
_WITH_TEXT = re.compile(
    r".*(?:wordprocessingml\.(?:(?:document|template)\.main|header|footer|footnotes|endnotes"
    r"|comments)|presentationml\.(?:slide|notesSlide)|officedocument\.drawing"
    r"|drawingml\.(?:chart|diagramData|diagramDrawing)"
    r"|spreadsheetml\.(?:sharedStrings|worksheet|comments))\+xml"
)
_TABLE = re.compile(r".*spreadsheetml\.table\+xml")

_PARAGRAPHS = {"w:p", "a:p", "x:si", "x:is", "x:text"}
_RUNS = {"w:r", "a:r", "x:r"}
_RUN_PROPERTIES = {"w:rPr", "a:rPr", "x:rPr"}
_TEXTS = {"w:t", "a:t", "x:t"}
_BREAKS = {"w:tab", "w:ptab", "w:br", "w:cr", "a:br", "a:endParaRPr"}
_PARAGRAPH_PROPERTIES = {"w:pPr", "a:pPr"}
# Traces of editing, and the pronunciation of the text before its translation.
_NOISE = {"w:proofErr", "w:lastRenderedPageBreak", "w:softHyphen", "x:rPh", "x:phoneticPr"}
# Elements around runs; children before the runs.
_AROUND = {"w:hyperlink", "w:ins", "w:moveTo", "w:smartTag", "w:customXml", "w:dir", "w:bdo"}
_BEFORE_RUNS = {"w:smartTagPr", "w:customXmlPr", "w:fldData"}
# Content controls whose text is one of a list, or a date.
_CHOICES = {"w:dropDownList", "w:comboBox", "w:date"}
_MARK = re.compile(r"w:(bookmark|commentRange|perm|moveToRange|moveFromRange)(Start|End)")

# Fields whose result is text of the document; that of others, such as page numbers, is computed.
_TEXT_FIELDS = {"HYPERLINK", "TOC", "INDEX", "TOA"}

# Fields within each other, in results of which paragraphs may be.
_MAX_FIELDS = 100

# What is no formatting in the properties of a run.
_FORMAT_NOISE = re.compile(
    r"""<(?:\w+:)?(?:lang|noProof)(?:\s[^<>]*)?/>"""
    r"""|\s(?:\w+:hint|lang|altLang|dirty|err|noProof|smtClean|smtId)\s*=\s*(?:"[^"]*"|'[^']*')"""
)
_EMPTY_ELEMENT = re.compile(r"<(?:\w+:)?(?:rFonts|rPr)\s*/>|<((?:\w+:)?rPr)\s*></\1\s*>")
_HISTORY = re.compile(r"""\s(?:\w+:)?rsid\w*\s*=\s*(?:"[^"]*"|'[^']*')""")
_PREFIX = re.compile(r"<([^\s:>]+:|)")
_LINE_ENDS = re.compile(r"((?:_x000(?i:[ad])_|&#(?:1[03]|x0?(?i:[ad]));|[\r\n\t])+)")


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a document, a presentation or a workbook."""
    package = Package(content, options)
    types = dict(_content_types(package))
    main = [name for name, type_ in types.items() if _MAIN.fullmatch(type_)]
    if any("macroEnabled" in type_ for type_ in types.values()):
        raise InputError("may have macros; save it without them, as .docx, .xlsx or .pptx.")
    if not main:
        raise InputError(
            "is damaged, or not of the format that its name says: it has no main part."
        )
    headers = set(_table_headers(package, [one for one in types if _TABLE.fullmatch(types[one])]))
    parts = []
    for name in sorted((one for one in types if _WITH_TEXT.fullmatch(types[one])), key=_number_key):
        # Sheets are large and have no text, except in files of some programs.
        if types[name].endswith("worksheet+xml") and b"inlineStr" not in package.read(name):
            continue
        source = package.xml(name, _NAMESPACES, leaves=_RUN_PROPERTIES | _PARAGRAPH_PROPERTIES)
        stem = re.sub(r"(?<=[a-z])(?=[0-9])", " ", PurePosixPath(name).stem)
        label = "" if name in main else f"{stem}, "
        parts.append((name, source, _Reader(source, headers).blocks(label)))
    return package_text(package, parts)


def _content_types(package: Package) -> Iterator[tuple[str, str]]:
    """Iterate over the parts and their content types."""
    root = package.xml("[Content_Types].xml", _NAMESPACES).root
    defaults, overrides = {}, {}
    for element in root.children:
        type_ = element.attributes.get("ContentType", "")
        if element.name == "Default":
            defaults[element.attributes.get("Extension", "").lower()] = type_
        else:
            overrides[element.attributes.get("PartName", "").lower().lstrip("/")] = type_
    for name in package.names:
        lower = name.lower()
        yield name, overrides.get(lower) or defaults.get(lower.rpartition(".")[2], "")


def _table_headers(package: Package, names: Sequence[str]) -> Iterator[str]:
    """Iterate over names of columns of tables: their cells stay equal to them, as formulas do."""
    for name in names:
        for element in package.xml(name, _NAMESPACES).root.iterate():
            if element.name == "x:tableColumn":
                yield _one_line(element.attributes.get("name", ""))


def _one_line(text: str) -> str:
    return _LINE_ENDS.sub(" ", text).strip()


def _number_key(name: str) -> list[tuple[int, str]]:
    """Return the natural sort key of a part's name: slide9 before slide10."""
    return [(int(part or 0), text) for text, part in re.findall(r"([^0-9]+)([0-9]*)", name)]


class _Field:
    """A field in the text.

    Attributes:
        nodes: Nodes of the paragraph, or of the group, in which the field begins.
        begin: Number of its first node.
        code: Its instruction.
        result: Number of the first node of its result; None before that.
    """

    __slots__ = ("begin", "code", "nodes", "result")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes, self.begin = nodes, len(nodes)
        self.code = ""
        self.result: int | None = None

    def fix(self) -> None:
        """Keep the begin of the field where it is, since its end is not among the same nodes."""
        end = self.result if self.result is not None else len(self.nodes)
        for number in range(self.begin, min(end, len(self.nodes))):
            self.nodes[number] = Break(self.nodes[number].source)
        self.nodes = []

    @property
    def has_text(self) -> bool:
        """Whether text at this place is translated."""
        return self.result is not None and _is_text_field(self.code)


def _is_text_field(code: str) -> bool:
    """Return True if the result of a field is text of the document."""
    return code.partition("\\")[0].strip().partition(" ")[0].upper() in _TEXT_FIELDS


class _Reader:
    """Paragraphs of a part."""

    def __init__(self, source: XmlSource, kept: set[str]) -> None:
        self._source, self._kept = source, kept
        self._formats: dict[str, str] = {}
        self._preserved = source.root.attributes.get("xml:space") == "preserve"

    def blocks(self, label: str) -> list[Block]:
        """Return the paragraphs with text."""
        blocks = []
        fields: dict[int, list[_Field]] = {}
        waiting = [(self._source.root, 0)]
        number = 0
        while waiting:
            element, story = waiting.pop()
            if element.name in _PARAGRAPHS:
                number += 1
                block = self._paragraph(
                    element, fields.setdefault(story, []), f"{label}paragraph {number}"
                )
                if block is not None:
                    blocks.append(block)
            elif element.name == "w:txbxContent":
                story = element.start
            elif element.name == "w:sdt" and _is_choice(element):
                continue
            waiting += [(child, story) for child in reversed(element.children) if child.children]
        return blocks

    def _paragraph(self, paragraph: Element, fields: list[_Field], place: str) -> Block | None:
        if not (children := paragraph.children):
            return None
        start, end = paragraph.inner, paragraph.inner_end
        if paragraph.name.startswith("x:"):
            if self._kept and self._cell_text(paragraph) in self._kept:
                return None
            if children[0].name == "x:t":
                start, end = children[0].inner, children[0].inner_end
                nodes = list(self._texts(children[0], "", "", "", None))
            else:
                nodes = self._nodes(children, fields)
        else:
            if children[0].name in _PARAGRAPH_PROPERTIES:
                start, children = children[0].end, children[1:]
            nodes = self._nodes(children, fields)
        # Others end in the same paragraph, unless the document is damaged.
        fields[:] = [field for field in fields if field.has_text]
        parts = fragments_of(nodes)
        fragments = [part for part in parts if isinstance(part, Fragment)]
        if not fragments:
            return None
        write = _write_drawing if paragraph.name == "a:p" else _write

        def edit(source: XmlSource, translations: Sequence[str]) -> None:
            following = iter(translations)
            pieces: list[str | Range] = []
            for part in parts:
                if isinstance(part, Fragment):
                    pieces += part.render(next(following), write)
                else:
                    pieces += part
            source.replace(start, end, *pieces)

        return Block(fragments, place, edit)

    def _cell_text(self, item: Element) -> str:
        """Return the text of a cell in one line, without its pronunciation."""
        runs = (one.find("x:t") if one.name == "x:r" else one for one in item.children)
        texts = (one for one in runs if one is not None and one.name == "x:t")
        return _one_line("".join(map(self._source.text_of, texts)))

    def _nodes(self, children: Sequence[Element], fields: list[_Field]) -> list[Node]:
        """Return the nodes of elements in a paragraph."""
        nodes: list[Node] = []
        for child in children:
            name = child.name
            if name in _RUNS:
                self._run(child, nodes, fields)
            elif name in _NOISE:
                continue
            elif name in _AROUND:
                nodes.append(self._group(child, child, fields))
            elif name == "w:sdt" and (content := child.find("w:sdtContent")) is not None:
                choice = _is_choice(child)
                nodes.append(_opaque(child) if choice else self._group(child, content, fields))
            elif name == "w:fldSimple" and _is_text_field(child.attributes.get("w:instr", "")):
                nodes.append(self._group(child, child, fields))
            elif name in _BREAKS:
                nodes.append(Break(((child.start, child.end),)))
            elif found := _MARK.fullmatch(name):
                key = found[1], child.attributes.get("w:id")
                nodes.append(Mark(((child.start, child.end),), key, found[2] == "Start"))
            else:
                is_field = name in ("w:fldSimple", "a:fld")
                nodes.append(_opaque(child, self._source.text_of(child) if is_field else ""))
        for field in fields:
            if field.nodes is nodes:  # its end is elsewhere
                field.fix()
        return nodes

    def _group(self, element: Element, content: Element, fields: list[_Field]) -> Node:
        """Return an element around runs, which are in its content."""
        start, children = content.inner, content.children
        if children and children[0].name in _BEFORE_RUNS:
            start, children = children[0].end, children[1:]
        nodes = self._nodes(children, fields)
        if content.end == content.inner:
            return _opaque(element)
        before, after = (element.start, start), (content.inner_end, element.end)
        return group((before,), nodes, (after,), ((element.start, element.end),))

    def _run(self, run: Element, nodes: list[Node], fields: list[_Field]) -> None:
        source, children = self._source, run.children
        if not children:
            return
        begin = source.text(run.start, run.inner)
        if " " in begin:
            begin = _HISTORY.sub("", begin)
        if children[0].name in _RUN_PROPERTIES:
            begin += source.text(children[0].start, children[0].end)
            children = children[1:]
        end = source.text(run.inner_end, run.end)
        if (format_ := self._formats.get(begin)) is None:
            format_ = _EMPTY_ELEMENT.sub("", _FORMAT_NOISE.sub("", begin))
            format_ = self._formats[begin] = _EMPTY_ELEMENT.sub("", format_)
        for child in children:
            name = child.name
            whole: Source | None = ((run.start, run.end),) if len(children) == 1 else None
            if name in _TEXTS:
                texts = self._texts(child, format_, begin, end, whole)
                if fields and not all(field.has_text for field in fields):
                    texts = (Opaque(one.source, written_text([one])) for one in texts)
                nodes += texts
            elif name == "w:noBreakHyphen":
                piece = whole or (begin, (child.start, child.end), end)
                nodes.append(Text("\u2011", piece, format_, begin))
            elif name not in _NOISE:
                piece = whole or (begin, (child.start, child.end), end)
                if name in _BREAKS:
                    nodes.append(Break(piece))
                elif name == "w:fldChar":
                    self._field(child.attributes.get("w:fldCharType", ""), piece, nodes, fields)
                else:
                    nodes.append(Opaque(piece))
                    if name == "w:instrText" and fields and fields[-1].result is None:
                        fields[-1].code += source.text_of(child)

    def _texts(
        self, element: Element, format_: str, begin: str, end: str, whole: Source | None
    ) -> Iterator[Node]:
        """Iterate over the lines of a text."""
        text = plain_content(self._source.text(element.inner, element.inner_end))
        if element.name == "x:t":
            opening = self._source.text(element.start, element.inner) if begin else ""
            closing = self._source.text(element.inner_end, element.end) if begin else ""
            for number, line in enumerate(_LINE_ENDS.split(text)):
                line_source: Source = (f"{begin}{opening}{line}{closing}{end}",)
                if number % 2:
                    yield Break(line_source)
                elif line:
                    yield Text(line, line_source, format_, begin)
            return
        piece = whole or (begin, (element.start, element.end), end)
        if element.name == "w:t" and not (
            self._preserved or element.attributes.get("xml:space") == "preserve"
        ):
            text = text.strip(" \t\r\n")
        if len(text) > 2 and text.isspace():  # blanks to write in, or alignment by spaces
            yield Opaque(piece)
        elif text:
            yield Text(text, piece, format_, begin)

    def _field(self, kind: str, piece: Source, nodes: list[Node], fields: list[_Field]) -> None:
        """Add a begin, a separator or an end of a field."""
        if kind == "begin" and len(fields) < _MAX_FIELDS:
            fields.append(_Field(nodes))
            nodes.append(Opaque(piece))
            return
        if not fields or kind == "begin":
            nodes.append(Break(piece))
            return
        field = fields[-1]
        if kind == "separate":
            nodes.append(Opaque(piece) if field.nodes is nodes else Break(piece))
            field.result = len(nodes)
            if field.nodes is not nodes:
                field.fix()
            return
        fields.pop()
        if field.nodes is not nodes:
            nodes.append(Break(piece))
            return
        before = source_of(nodes[field.begin : field.result])
        result = nodes[field.result :] if field.result is not None else []
        if field.has_text:
            nodes[field.begin :] = [group(before, result, piece)]
        else:
            text = written_text(result)
            nodes[field.begin :] = [Opaque((*before, *source_of(result), *piece), text)]


def _opaque(element: Element, text: str = "") -> Opaque:
    return Opaque(((element.start, element.end),), escape(text))


def _is_choice(control: Element) -> bool:
    properties = control.find("w:sdtPr")
    return properties is not None and any(one.name in _CHOICES for one in properties.children)


def _write(text: str, run: str) -> str:
    """Write a text in a run."""
    if not run:
        return text
    prefix = found[1] if (found := _PREFIX.match(run)) else ""
    if "\u2011" in text:
        hyphen = f'</{prefix}t><{prefix}noBreakHyphen/><{prefix}t xml:space="preserve">'
        text = text.replace("\u2011", hyphen)
    return f'{run}<{prefix}t xml:space="preserve">{text}</{prefix}t></{prefix}r>'


def _write_drawing(text: str, run: str) -> str:
    """Write a text in a run of DrawingML."""
    prefix = found[1] if (found := _PREFIX.match(run)) else ""
    return f"{run}<{prefix}t>{text}</{prefix}t></{prefix}r>"

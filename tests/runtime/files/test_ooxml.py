"""Documents, presentations and workbooks of Office Open XML."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest
from support.documents import Grammar, backwards, check_round_trip, docx, ooxml, pptx, xlsx
from support.file_texts import capitals, parts, rendered, texts

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import read_file_text

_FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
_BEGIN, _SEPARATE, _END = map(_FIELD.format, ("begin", "separate", "end"))
_CODE = "<w:r><w:instrText>{}</w:instrText></w:r>"
_LINK = _BEGIN + _CODE.format(' HYPERLINK "a" ') + _SEPARATE
WORD = Grammar(
    {
        "B": ["{P}", "{P}{P}", "<w:tbl><w:tr><w:tc>{B}</w:tc></w:tr></w:tbl>",
              "<w:sdt><w:sdtContent>{B}</w:sdtContent></w:sdt>"],
        "P": ["<w:p>{I}{I}{I}</w:p>", '<w:p><w:pPr><w:jc w:val="{N}"/></w:pPr>{I}{I}</w:p>',
              "<w:p/>",
              f'<w:p>{_BEGIN}{_CODE.format("TOC")}{_SEPARATE}{{I}}</w:p>{{P}}<w:p>{{I}}{_END}</w:p>'],
        "I": ["{R}", "{R}{R}", "{R}{I}", '<w:hyperlink w:anchor="{N}">{I}{R}</w:hyperlink>',
              '<w:ins w:id="{N}">{I}</w:ins>', "<w:smartTag><w:smartTagPr/>{I}</w:smartTag>",
              '<w:del w:id="{N}"><w:r><w:delText>gone</w:delText></w:r></w:del>',
              '<w:bookmarkStart w:id="{N}"/>{I}<w:bookmarkEnd w:id="{N}"/>',
              '<w:commentRangeStart w:id="1"/>{I}<w:bookmarkStart w:id="2"/>{I}'
              '<w:commentRangeEnd w:id="1"/>{I}<w:bookmarkEnd w:id="2"/>',
              '<w:fldSimple w:instr="PAGE"><w:r><w:t>12</w:t></w:r></w:fldSimple>',
              f"{_BEGIN}{_CODE.format('PAGE')}{_SEPARATE}<w:r><w:t>3</w:t></w:r>{_END}",
              f"{_LINK}{{I}}{_END}", f"{_LINK}<w:ins>{{I}}{_END}</w:ins>",
              "<w:sdt><w:sdtPr><w:date/></w:sdtPr><w:sdtContent><w:r><w:t>7</w:t></w:r>"
              "</w:sdtContent></w:sdt>"],
        "R": ['<w:r w:rsidR="{N}">{F}{C}{C}</w:r>', "<w:r>{F}{C}</w:r>", "<w:r>{F}{C}</w:r>",
              '<w:proofErr w:type="spellStart"/>', "<w:r/>"],
        "F": ["", "", "<w:rPr><w:b/></w:rPr>", '<w:rPr><w:lang w:val="{N}"/></w:rPr>',
              "<w:rPr><w:i/><w:noProof/></w:rPr>"],
        "C": ['<w:t xml:space="preserve">{T}</w:t>', '<w:t xml:space="preserve">{T}</w:t>',
              "<w:tab/>", "<w:br/>", "<w:noBreakHyphen/>", '<w:footnoteReference w:id="{N}"/>',
              '<w:drawing n="{N}"><w:txbxContent>{B}</w:txbxContent></w:drawing>'],
    },
    {"B": "<w:p/>", "I": "<w:r><w:t>deep</w:t></w:r>", "C": "<w:t>x</w:t>", "P": "<w:p/>"},
)  # fmt: skip
DRAWING = Grammar(
    {
        "B": ["<a:p>{I}{I}{I}</a:p>",
              '<a:p><a:pPr lvl="1"/>{I}{I}<a:endParaRPr n="{N}"/></a:p>{B}'],
        "I": ["<a:r>{F}<a:t>{T}</a:t></a:r>", "<a:r>{F}<a:t>{T}</a:t></a:r>{I}", "<a:br/>",
              '<a:fld id="{N}"><a:rPr/><a:t>4</a:t></a:fld>'],
        "F": ["", '<a:rPr lang="en" err="1"/>', '<a:rPr lang="de" b="1" dirty="0"/>',
              '<a:rPr><a:hlinkClick n="1"/></a:rPr>'],
    },
    {"B": "<a:p/>"},
)  # fmt: skip
SHEET = Grammar(
    {
        "B": ["<si>{S}</si>", "<si>{S}</si>{B}"],
        "S": ["<t>{T}</t>", '<t xml:space="preserve">{T}\n{T}&#10;{T}</t>', "<t/>",
              "{R}{R}{R}", "{R}{R}"],
        "R": ["<r>{F}<t>{T}</t></r>", "<r>{F}<t>{T}\n{T}</t></r>"],
        "F": ["", "<rPr><b/></rPr>", "<rPr><i/></rPr>"],
    },
    {"B": "<si><t>x</t></si>"},
)  # fmt: skip
_WORD_NOISE = ("r", "rPr", "t", "b", "i", "lang", "noProof", "proofErr")
_ALL = {
    ".docx": (WORD, docx, "word/document.xml", _WORD_NOISE),
    ".pptx": (DRAWING, pptx, "ppt/slides/slide1.xml", ("r", "rPr", "t", "hlinkClick")),
    ".xlsx": (SHEET, xlsx, "xl/sharedStrings.xml", ("r", "rPr", "t", "b", "i")),
}


@pytest.mark.parametrize("suffix", _ALL)
def test_random_documents(suffix: str) -> None:
    grammar, packed, part, noise = _ALL[suffix]
    for seed in range(100):
        rng = random.Random(seed)
        body = "".join(grammar.expand(rng, "B") for _ in range(5))
        check_round_trip(packed(body), f"a{suffix}", part, noise, ["t"])


_BOLD = "<w:rPr><w:b/></w:rPr>"


def run(text: str, properties: str = "") -> str:
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (run("He") + '<w:proofErr w:type="x"/>' + run("llo ", '<w:rPr><w:lang w:val="de"/></w:rPr>')
         + run("all", _BOLD) + run(" ", _BOLD) + run("good dogs."),
         ['Hello <g id="1">all </g>good dogs.']),
        (run("Most is bold", _BOLD) + run(" here", "<w:rPr/>"),
         ['Most is bold<g id="1"> here</g>']),
        (run("One") + "<w:r><w:tab/></w:r>" + run("two") + "<w:r><w:br/><w:t>three</w:t></w:r>",
         ["One", "two", "three"]),
        (run("See ") + '<w:fldSimple w:instr="REF x"><w:r><w:t>Figure 1</w:t></w:r></w:fldSimple>'
         + run("."), ['See <x id="1" translate="no">Figure 1</x>.']),
        (run("A ") + _LINK + run("link") + _END + run("."), ['A <g id="1">link</g>.']),
        (_LINK + run("link") + _END, ["link"]),
        (run("No") + '<w:r><w:footnoteReference w:id="1"/></w:r><w:del>' + run("x") + "</w:del>"
         + run("te") + "<w:del/>", ['No<x id="1"/>te']),
        ("<w:r><w:t> not preserved </w:t></w:r>", ["not preserved"]),
        (run("blank") + run("     ") + run("line"), ['blank<x id="1"/>line']),
        (run("1.2") + "<w:r><w:tab/></w:r>" + run("&#1046;&#8211;"), ["&#1046;&#8211;"]),
        ("<w:r><w:t><![CDATA[a<b]]><!-- c --></w:t></w:r>", ["a&lt;b"]),
        ("<w:sdt><w:sdtPr><w:dropDownList/></w:sdtPr><w:sdtContent>" + run("red")
         + "</w:sdtContent></w:sdt>", []),
    ],
)  # fmt: skip
def test_segments_of_a_paragraph(body: str, expected: list[str]) -> None:
    for strict in (False, True):
        content = docx(f"<w:p><w:pPr/>{body}</w:p>", strict)
        assert texts(content, "a.docx") == expected


def test_ranges_that_overlap_keep_their_order() -> None:
    starts = '<w:bookmarkStart w:id="1"/>', '<w:commentRangeStart w:id="2"/>'
    ends = '<w:bookmarkEnd w:id="1"/>', '<w:commentRangeEnd w:id="2"/>'
    body = "".join(
        [run("a "), starts[0], run("b"), starts[1], run("c"), ends[0], run("d"), ends[1]]
    )
    content = docx(f"<w:p>{body}</w:p>")
    document = parts(rendered(content, "a.docx", backwards))["word/document.xml"].decode()
    for start, end in zip(starts, ends, strict=True):
        assert document.index(start) < document.index("<w:t") < document.index(end)


def test_deep_ranges_and_fields_that_do_not_end() -> None:
    numbers = range(3000)
    starts = "".join(f'<w:bookmarkStart w:id="{one}"/>{run("a")}' for one in numbers)
    ends = "".join(f'<w:bookmarkEnd w:id="{one}"/>' for one in reversed(numbers))
    fields = _BEGIN * 300 + run("hidden")
    content = docx(f"<w:p>{starts}{ends}</w:p><w:p>{fields}</w:p><w:p>{run('text')}</w:p>")
    assert b"AAAA" in parts(rendered(content, "a.docx", capitals))["word/document.xml"]
    assert texts(content, "a.docx")[1:] == ["text"]


def test_prefixes_and_namespaces_of_a_document_stay() -> None:
    name = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = (
        f'<p xmlns="{name}"><r xmlns:q="urn:q" q:rsid="1"><rPr><q:b/></rPr><t>a</t><t>b</t></r></p>'
    )
    document = parts(rendered(docx(body), "a.docx", capitals))["word/document.xml"]
    ElementTree.fromstring(document)
    assert b'<r xmlns:q="urn:q"><rPr><q:b/></rPr><t xml:space="preserve">AB</t></r></p>' in document


def test_parts_of_a_document() -> None:
    paragraph = f"<w:p>{run('text')}</w:p>"
    content = docx(
        f"<w:p>{run('body')}</w:p>", hdr=("header", paragraph), footnotes=("footnotes", paragraph),
        settings=("settings", paragraph),
    )  # fmt: skip
    changed = parts(rendered(content, "a.docx", capitals))
    assert {name for name, part in changed.items() if b"TEXT" in part} == {
        "word/hdr.xml", "word/footnotes.xml",
    }  # fmt: skip
    found = read_file_text(content, "a.docx").segments
    assert [one.place for one in found] == [
        "paragraph 1", "footnotes, paragraph 1", "hdr, paragraph 1",
    ]  # fmt: skip


def test_cells_of_a_workbook() -> None:
    """Numbers, formulas, pronunciations and the names of columns stay."""
    strings = (
        "<si><t>Total</t></si><si><t>one_x000D_\ntwo</t></si><si><t>12</t></si>"
        "<si><r><t>to</t></r><r><t>tal</t></r><rPh><t>x</t></rPh></si><si><t>Unit price</t></si>"
    )
    sheet = (
        '<c t="inlineStr"><is><t>inline</t></is></c><c t="str"><f>A1&amp;"b"</f><v>cached</v></c>'
    )
    table = '<tableColumn name="Total"/><tableColumn name="Unit_x000a_price"/>'
    content = xlsx(strings, sheet, [table])
    assert texts(content, "a.xlsx") == ["one", "two", "total", "inline"]
    changed = parts(rendered(content, "a.xlsx", capitals))
    assert b"<si><t>ONE_x000D_\nTWO</t></si>" in changed["xl/sharedStrings.xml"]
    assert b"<t>x</t>" not in changed["xl/sharedStrings.xml"]
    assert b"INLINE</t></is></c><c t" in changed["xl/worksheets/sheet1.xml"]
    assert b"cached" in changed["xl/worksheets/sheet1.xml"]


@pytest.mark.parametrize(
    "translation", ["a", 'a<g id="1">b', "</g>", '<x id="1"/>', '<g id="2">', "<"]
)
def test_a_translation_with_other_tags_is_refused(translation: str) -> None:
    content = docx(f"<w:p>{run('plain ') + run('bold', _BOLD)}</w:p>")
    with pytest.raises(InputError, match="tags"):
        rendered(content, "a.docx", lambda _: translation)


def test_a_package_without_a_main_part_is_refused() -> None:
    with pytest.raises(InputError, match="main part"):
        texts(ooxml({}), "a.docx")
    kind = "application/vnd.ms-word.document.macroEnabled.main+xml"
    with pytest.raises(InputError, match="macros"):
        texts(ooxml({"word/document.xml": (kind, "<a/>")}), "a.docx")

"""Text documents, spreadsheets and presentations of OpenDocument."""

from __future__ import annotations

import random

import pytest
from support.documents import Grammar, check_round_trip, opendocument
from support.file_texts import capitals, parts, rendered, texts

from translate_trt.runtime.errors import InputError

STYLES = (
    '<style:style style:name="T1" style:family="text"><style:text-properties rsid:rsid="1"/>'
    '</style:style><style:style style:name="T2" style:family="text"><style:text-properties '
    'style:x="1"/></style:style>'
)
TEXT = Grammar(
    {
        "B": ["{P}", "{P}{P}", "<text:list><text:list-item>{B}</text:list-item></text:list>"],
        "P": ["<text:p>{I}{I}{I}</text:p>", '<text:h n="{N}">{I}{I}</text:h>', "<text:p/>"],
        "I": ["{T}", "{T}{I}", '<text:span text:style-name="T1">{T}</text:span>{I}',
              '<text:span text:style-name="T2">{T}</text:span>',
              '<text:span text:style-name="T3">{I}</text:span>', '<text:a n="{N}">{I}</text:a>',
              "<text:s/>", '<text:tab n="{N}"/>', "<text:line-break/>", "<!-- {N} -->",
              "<![CDATA[a<b]]>",
              '<text:bookmark-start text:name="{N}"/>{I}<text:bookmark-end text:name="{N}"/>',
              "<text:note><text:note-citation>1</text:note-citation><text:note-body>{B}"
              "</text:note-body></text:note>", '<text:page-number n="{N}">3</text:page-number>',
              '<draw:frame n="{N}"><draw:text-box>{B}</draw:text-box></draw:frame>'],
    },
    {"B": "<text:p/>", "I": "deep"},
)  # fmt: skip


def test_random_documents() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        body = "".join(TEXT.expand(rng, "B") for _ in range(5))
        check_round_trip(opendocument(body, STYLES), "a.odt", "content.xml", ["span"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('He<text:span text:style-name="T1">llo</text:span>, <text:a>you</text:a>!',
         ['Hello, <g id="1">you</g>!']),
        ('<text:span text:style-name="T2">Most of</text:span> it', ['Most of<g id="1"> it</g>']),
        ('<text:span text:style-name="T2"><text:a>link</text:a></text:span>', ["link"]),
        ("page <text:page-number>3</text:page-number> of",
         ['page <x id="1" translate="no">3</x> of']),
        ("one<text:tab/>two<text:s/>", ["one", "two"]),
    ],
)  # fmt: skip
def test_segments_of_a_paragraph(body: str, expected: list[str]) -> None:
    assert texts(opendocument(f"<text:p>{body}</text:p>", STYLES), "a.odt") == expected


def test_deleted_text_and_forms_stay_and_headers_do_not() -> None:
    content = opendocument(
        "<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        "<office:forms><text:p>form</text:p></office:forms><text:p>text</text:p>",
        **{"styles.xml": "<a NAMES><style:header-left><text:p>head</text:p></style:header-left>"
           "<text:p>Click to add text</text:p></a>"},
    )  # fmt: skip
    assert texts(content, "a.odt") == ["text", "head"]
    assert b"HEAD" in parts(rendered(content, "a.odt", capitals))["styles.xml"]


def test_cells() -> None:
    """Numbers and results of formulas stay; the value of a changed cell is its text."""
    cells = (
        '<table:table-cell office:value-type="string" office:string-value="a"><text:p>text</text:p>'
        '<text:p>more</text:p></table:table-cell><table:table-cell><text:p>plain</text:p>'
        '</table:table-cell><table:table-cell office:value-type="float"><office:annotation><text:p>'
        "note</text:p></office:annotation><text:p>1 EUR</text:p></table:table-cell>"
        '<table:table-cell table:formula="x" office:value-type="string"><text:p>result</text:p>'
        "</table:table-cell>"
    )  # fmt: skip
    content = opendocument(cells)
    assert texts(content, "a.ods") == ["text", "more", "plain", "note"]
    changed = parts(rendered(content, "a.ods", capitals))["content.xml"]
    assert (
        b'<table:table-cell office:value-type="string"><text:p>TEXT</text:p><text:p>MO' in changed
    )


def test_an_encrypted_document_is_refused() -> None:
    content = opendocument("", manifest="<manifest:encryption-data/>")
    with pytest.raises(InputError, match="encrypted"):
        texts(content, "a.odt")

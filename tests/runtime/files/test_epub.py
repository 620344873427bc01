"""Books in EPUB."""

from __future__ import annotations

import random

import pytest
from support.documents import Grammar, check_round_trip, epub
from support.file_texts import capitals, parts, rendered, texts

from translate_trt.runtime.errors import InputError

PAGE = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>42</title></head><body>{}</body></html>'
NAME = "OEBPS/page 1.xhtml"
PAGES = Grammar(
    {
        "B": ["<p>{I}{I}{I}</p>", "<div>{I}<p>{I}</p>{I}{B}</div>", "<td>{I}</td>\n  ",
              "<ul><li>{I}<ul><li>{I}</li></ul></li></ul>", "<pre>42</pre>"],
        "I": ["{T}", "{T}{I}", '<b id="i{N}">{I}</b>', "<i>{I}{I}</i>", '<img src="{N}"/>', "<br/>",
              "<!-- {N} -->", "<code>12</code>", '<a href="#{N}"><sup>3</sup></a>',
              '<svg xmlns="urn:svg" n="{N}"/>', "<span><span>{T}</span></span>",
              "<a><p>{T}</p></a>", "\n  ", "<script>4 &lt; 5</script>"],
    },
    {"B": "<p/>", "I": "deep"},
)  # fmt: skip


def test_random_pages() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        body = "".join(PAGES.expand(rng, "B") for _ in range(5))
        check_round_trip(epub(PAGE.format(body)), "a.epub", NAME, [])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("Run <code>ls  -l</code> now", ['Run <x id="1" translate="no">ls  -l</x> now']),
        ('The <i class="x notranslate">Titanic</i> sank',
         ['The <x id="1" translate="no">Titanic</x> sank']),
        ('<p translate="no">no</p><p>yes</p><pre>no</pre><style>no</style>', ["yes"]),
        ("one<br/>two <b>three<br/></b>four", ["one", "two ", "three", "four"]),
        ('<a href="x">text</a><a href="#1"><sup>1</sup></a>', ["text"]),
        ("caf&eacute;&nbsp;&lt;b&gt; &unknown;!", ['café\xa0&lt;b&gt; <x id="1"/>!']),
        ("<ruby>字<rt>a</rt></ruby>", []),
    ],
)  # fmt: skip
def test_segments_of_a_page(body: str, expected: list[str]) -> None:
    assert texts(epub(PAGE.format(body)), "a.epub") == expected


def test_names_of_the_book_and_its_language() -> None:
    page = PAGE.format("<p>text</p>").replace("<html", '<html lang="en" xml:lang="en"')
    content = epub(
        page,
        "<dc:title>Title</dc:title><dc:creator>Author</dc:creator><dc:language>en</dc:language>"
        "<dc:description>&lt;p&gt;escaped</dc:description>",
        **{"OEBPS/toc.ncx": '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><docAuthor><text>Name'
           "</text></docAuthor><navLabel><text>Chapter</text></navLabel></ncx>"},
    )  # fmt: skip
    assert texts(content, "a.epub") == ["Title", "text", "Chapter"]
    changed = parts(rendered(content, "a.epub", target_language="de"))
    assert changed[NAME] == page.replace('"en"', '"de"').encode()
    assert b"<dc:language>de<" in changed["OEBPS/book.opf"]
    assert rendered(content, "a.epub") == content
    assert b"<text>CHAPTER<" in parts(rendered(content, "a.epub", capitals))["OEBPS/toc.ncx"]


def test_encryption_of_text_is_refused_and_that_of_fonts_is_not() -> None:
    name = "META-INF/encryption.xml"
    for algorithm in ("http://www.idpf.org/2008/embedding", "http://www.w3.org/2001/04/xmlenc#aes"):
        method = f'<EncryptionMethod Algorithm="{algorithm}"/>'
        encryption = f'<encryption xmlns="http://www.w3.org/2001/04/xmlenc#">{method}</encryption>'
        content = epub(PAGE.format("text"), **{name: encryption})
        if "idpf" in algorithm:
            assert texts(content, "a.epub") == ["text"]
        else:
            with pytest.raises(InputError, match="DRM"):
                texts(content, "a.epub")

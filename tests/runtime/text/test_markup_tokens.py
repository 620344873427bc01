"""Tokens of markup: XML against expat, HTML against its standard and html.unescape."""

from __future__ import annotations

import contextlib
import html
import itertools
import random
import re
from html.entities import html5
from xml.parsers import expat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpp_library import Library
from support.markup import Maker, MarkupCheck
from support.paths import ROOT
from support.scripts import load_script

from translate_trt.runtime.errors import InputError

pytestmark = pytest.mark.slow

#: Characters and strings for texts that are mostly broken.
PARTS = [
    *"<>/!-?&;#x=\"' abt[]\n%(),|:.é·\u0301日\x01\ufffe\r\t0", "<!--", "-->", "--!>", "<![CDATA[",
    "]]>", "&amp;", "&e;", "&#65;", "&#x0;", "<a>", "</a>", "<a/>", "<?p q?>", "</t>", "<t>", "]]",
    "a='b'", 'b="c"', " a=", "<!DOCTYPE d>", "<script>", "</script", "<title>", "</title >",
]  # fmt: skip
DECLARATIONS = [
    "<!ENTITY f SYSTEM 'y'>", "<!ENTITY g SYSTEM 'y' NDATA n>", "<!ENTITY % p 'z>]'>", "%p;",
    "<!NOTATION n PUBLIC 'q'>", "<!NOTATION m SYSTEM \"']>\">", "<!ELEMENT d (a,(b|c)*,e?)>",
    "<!ELEMENT d (#PCDATA|a)*>", "<!ELEMENT d EMPTY>", "<!ELEMENT d ANY>", "<!-- ]> ' -->",
    "<!ATTLIST d x CDATA #IMPLIED y (a|b|1) #REQUIRED z NOTATION (n|m) #IMPLIED>", "<?i ]> \" ?>",
    " ", "<!ENTITY k '&e;&#65;'>", "<!ENTITY % q PUBLIC 'a' 'b'>",
]  # fmt: skip

DOCTYPE = "!DOCTYPE"

#: Start of documents. The library checks neither XML declarations nor document types.
PROLOG = re.compile(r"\ufeff?\s*<(\?xml|!DOCTYPE)\s")


@pytest.fixture(scope="module")
def check(markup_check: MarkupCheck) -> MarkupCheck:
    return markup_check


def by_expat(text: str) -> tuple[list[tuple[str, dict[str, str]]], str] | None:
    """Parse a document, or a fragment of one, with expat.

    Returns:
        Names and attributes of the elements, and the characters outside of CDATA sections, without
        references that are not decoded; None if it is not well-formed.
    """
    elements: list[tuple[str, dict[str, str]]] = []
    characters: list[str] = []
    sections: list[int] = []
    parser = expat.ParserCreate()
    parser.UseForeignDTD(True)  # references of any name are allowed
    parser.SkippedEntityHandler = lambda *_: None
    parser.StartElementHandler = lambda name, given: elements.append((name, given))
    parser.StartCdataSectionHandler = lambda: sections.append(1)
    parser.EndCdataSectionHandler = sections.clear
    parser.CharacterDataHandler = lambda own: None if sections else characters.append(own)
    is_document = PROLOG.match(text) is not None
    try:
        parser.Parse(text if is_document else f"<root>{text}</root>", True)
    except expat.ExpatError:
        return None
    return elements if is_document else elements[1:], "".join(characters)


def by_library(
    check: MarkupCheck, text: str
) -> tuple[list[tuple[str, dict[str, str]]], str] | None:
    """Return the same from the tokens of the library, whose characters must be the text."""
    try:
        tokens = check.tokens(text, "xml")
    except InputError:
        return None
    assert "".join(raw for _, raw, *_ in tokens) == text
    elements = [
        (name, attributes) for kind, _, name, _, attributes in tokens if kind in ("start", "empty")
    ]
    characters = "".join(own for kind, _, _, own, _ in tokens if kind in ("text", "other"))
    return elements, characters


def assert_right(check: MarkupCheck, text: str) -> None:
    found, expected = by_library(check, text), by_expat(text)
    if PROLOG.match(text) is None:
        assert found == expected, text
    elif expected is not None:  # internal entities are not expanded
        assert found is not None, text
        if "<!ENTITY" not in text and "<!ATTLIST" not in text:
            elements, characters = found
            assert elements == expected[0], text
            assert characters.strip() == expected[1].strip(), text


# ---- the same tokens ----

HTML = [
    "<p>Click <b>here now</b> please</p>", "a<br>b c<br/>d<hr />", "<p>a\n  b</p>\n\n <p> c </p>",
    "AT&amp;T &lt;1 &eacute; &notit; &#x41;&#128;&#0;&#xD800;&#9;&#13;&#xfffe; &amp",
    "<a href='?a=1&amp;b=2' title=\"x > y\">a</a> b", "<!DOCTYPE html><P CLASS=x/y>a b</P >",
    "<!-- a --> b <!-- c --> d <!---->", "<p>a<script>x < y</script> b<style>p {}</style></p>",
    '<p translate="no">a b</p><p class="x notranslate" id = a\nhidden\t>a b</p>', "— <b>·</b>",
    "a < b <3 <", "<a a=1 A=2 b a=3>", "", " \n", "<title>a b</title><textarea> c</textarea>",
    "<x-y svg:z='&lt;\"'>&CounterClockwiseContourIntegral;</x-y>", "a\r\n<b\r\n>\rb</b\r>",
]  # fmt: skip
XML = [
    'Press <x id="1"/>, then <g id="2">go &lt; on</g>',
    "<d><p>a <b>b</b> c</p> <p><q>d</q></p></d>",
    "<?xml version='1.0'?>\n<d>a <![CDATA[<b>]]> b</d>\n", "<d>a &#65;&amp; b &#xe9;&apos;</d>",
    "<d xml:lang='en'>a\r\nb\rc</d>",
    "<?xml version='1.0' encoding='latin1' standalone='no' ?><d/>",
    '<?xml version="1.0"?><!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/hostname">'
    '<!ENTITY f "fff">]><d>a &e; b &f; c</d><!-- e -->\n<?f?>',
    "<b>a</b> <i>b</i>", "<a", "<a b>", "<a b='1' c='&#x10FFFF;' b='2'/>", "</t><t>", "x\n<a b>",
    "<a></b>", "<![CDATA[a]]><![CDATA[]]]]>b<![CDATA[]>]]>", "<a b=' \t\r\n\n&#10;x&e;y'/>",
    "<!--a--><?b?><?xml-c ]?>", "<?xml version='1.0'?>", "<!--a--b-->", "<!--a--->", "a]]>b",
    "a]>b",
    "<a b='<'/>", "<é·/>", "<·/>", "<a:b:c/>", "&#0;", "&#xFFFE;", "&#55296;", "&#1114112;", "&;",
    "& ", "\x0b", "\uffff", "<a b='1'c='2'/>", "<a/ >", "<a / >", "< a/>", "<a\n/>", "</a >",
    "<?xml?>",
    " <?xml version='1.0'?><d/>", "<!DOCTYPE d><d/>x", "<!DOCTYPE d><d/><d/>", "<!DOCTYPE d><d>",
    "<!DOCTYPE d SYSTEM 'a\"b' [ ] ><d/>", "<!DOCTYPE d PUBLIC 'a{' 'b'><d/>",
    "<!DOCTYPE d [%e;]><d/>",
    "<!DOCTYPE d [<!ENTITY a '%b;'>]><d/>", "<!DOCTYPE d [<!ELEMENT d (a,b|c)>]><d/>",
    "<?xml version='1.0' standalone='yes'?><d>&e;</d>", "<!DOCTYPE d [<!ENTITY e 'x'>]><d>&e;</d>",
    "<!DOCTYPE d [<!ENTITY e SYSTEM 'x' NDATA n>]><d>&e;</d>", "<!DOCTYPE d",
    "<!DOCTYPE d [<!ENTITY e SYSTEM 'x'>]><d a='&e;'/>", "\xa0<!DOCTYPE d><d/>", "<!DOCTYPE d [",
    "\ufeff<?xml version='1.0'?><d/>", "\ufeff \n<!DOCTYPE d><d>", "\ufeff<d/>", "\ufeff",
]  # fmt: skip


@pytest.mark.parametrize("text", XML)
def test_xml(check: MarkupCheck, text: str) -> None:
    assert_right(check, text)


@pytest.mark.parametrize("text", HTML)
def test_html(check: MarkupCheck, text: str) -> None:
    assert "".join(raw for _, raw, *_ in check.tokens(text, "html")) == text


@pytest.mark.parametrize("text", ["", "a", "a b\r\n\r\n c {x}\n", "\r", "\n\ra\r\r\nb\x85\u2028<"])
def test_lines(check: MarkupCheck, text: str) -> None:
    tokens = check.tokens(text, "text")
    lines = [part for line in re.split("(\r\n|\r|\n)", text) if (part := line)]
    assert [raw for _, raw, *_ in tokens] == lines


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("html", "a&lt;b&gt;c&amp;d;\"'\ufffe\uffff\U0001fffe\t\0é"),
        ("xml", "a&lt;b&gt;c&amp;d;\"'  \U0001fffe\t\0é"),
        ("text", "a<b>c&d;\"'\ufffe\uffff\U0001fffe\t\0é"),
    ],
)
def test_encoding(check: MarkupCheck, markup: str, expected: str) -> None:
    text = "a<b>c&d;\"'\ufffe\uffff\U0001fffe\t\0é"
    assert check.program.ask(encode=text, markup=markup) == {"text": expected}


@given(seed=st.integers(0, 2**32), markup=st.sampled_from(["html", "xml"]))
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
def test_random_documents(check: MarkupCheck, seed: int, markup: str) -> None:
    maker = Maker(seed)
    text = maker.block(1) if maker.random.random() < 0.5 else maker.inline(4)
    if markup == "xml":
        assert by_library(check, text) == by_expat(text) is not None
    else:
        assert "".join(raw for _, raw, *_ in check.tokens(text, markup)) == text


@given(seed=st.integers(0, 2**32))
@settings(max_examples=4000, deadline=None, derandomize=True, database=None)
def test_changed_xml(check: MarkupCheck, seed: int) -> None:
    numbers = random.Random(seed)
    assert_right(check, fragment(numbers) if numbers.random() < 0.5 else document(numbers))


def fragment(numbers: random.Random) -> str:
    if numbers.random() < 0.2:
        return "".join(numbers.choices(PARTS, k=numbers.randint(0, 12)))
    return changed(numbers, content(numbers))


def content(numbers: random.Random) -> str:
    """Return a random content of an element."""
    maker = Maker(numbers.randrange(2**32))
    text = maker.block(1) if numbers.random() < 0.5 else maker.inline(4)
    inserted = numbers.choice([
        "", "<![CDATA[a]b]]>", "<?p?>", "&e;", "&#x41;", "&#13;", "\r\n", "<e a='&e;'/>", "]]",
    ])  # fmt: skip
    return f"{inserted}{text}{inserted}"


def document(numbers: random.Random) -> str:
    """Return a random document that may be broken."""
    standalone = numbers.choice(["", " standalone='no'", " standalone='yes'"])
    encoding = numbers.choice(["", " encoding='utf-8'"])
    start = numbers.choice(["", f"<?xml version='1.0'{encoding}{standalone}?>\n"])
    ids = numbers.choice(["", " SYSTEM 's'", " PUBLIC '-//p//q$' \"s\""])
    declared = "".join(numbers.choices(DECLARATIONS, k=numbers.randint(0, 4)))
    subset = numbers.choice(["", f"[{declared}]", f" [{declared}] "])
    kind = "" if start and numbers.random() < 0.3 else f"<!DOCTYPE d{ids}{subset}>"
    end = numbers.choice(["", "\n", "<!-- x -->", "<?a?>\n "])
    return changed(numbers, f"{start}{kind}<d a='b\t&lt;'>{content(numbers)}</d>{end}")


def changed(numbers: random.Random, text: str) -> str:
    """Return a text of which up to two characters are others, are left out, or are more."""
    for _ in range(numbers.choice([0, 1, 1, 2])):
        at, size = numbers.randint(0, len(text)), numbers.choice([0, 1, 1, len(text)])
        if size <= 1 or numbers.random() < 0.2:
            text = text[:at] + numbers.choice(["", *PARTS]) + text[at + size :]
    return text


@given(st.lists(st.sampled_from(PARTS), max_size=25).map("".join))
@settings(max_examples=2000, deadline=None, derandomize=True, database=None)
def test_any_text_is_html(check: MarkupCheck, text: str) -> None:
    tokens = check.tokens(text, "html")
    assert "".join(raw for _, raw, _, _, _ in tokens) == text
    assert not any(  # but for white space with a blank line
        one == other == "text" and raw.strip() and following.strip()
        for (one, raw, *_), (other, following, *_) in itertools.pairwise(tokens)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!-->a", ["<!-->", "a"]),
        ("<!--->a-->", ["<!--->", "a-->"]),
        ("<!-- a --!>b", ["<!-- a --!>", "b"]),
        ("<!-- a -- > b", ["<!-- a -- > b"]),
        ("<!x>a<?y>b</ z>c</>d", ["<!x>", "a", "<?y>", "b", "</ z>", "c", "</>", "d"]),
        ("<![CDATA[a>b]]>", ["<![CDATA[a>", "b]]>"]),
        ("<!doctype a '>'>", ["<!doctype a '>", "'>"]),
        ("a <b c='>", ["a ", "<b c='>"]),
        ("a </b", ["a ", "</b"]),
        ("a <!doctype", ["a ", "<!doctype"]),
        ("a </", ["a </"]),
        ("a<b/c>d<e //>f<g h=i/>j<k / >",
         ["a", "<b/c>", "d", "<e //>", "f", "<g h=i/>", "j", "<k / >"]),
        ("<a =b='>'>c", ["<a =b='>'>", "c"]),
        ("<a\"b'c>d", ["<a\"b'c>", "d"]),
        ("<title>a<b>&amp;</titl></TITLE\n>c", ["<title>", "a<b>&amp;</titl>", "</TITLE\n>", "c"]),
        ("<xmp><b></xmp/>&amp;", ["<xmp>", "<b>", "</xmp/>", "&amp;"]),
        ("<script>a</scripts></script>", ["<script>", "a</scripts>", "</script>"]),
        ("<script><!--<script></script>--></script>b",
         ["<script>", "<!--<script></script>-->", "</script>", "b"]),
        ("<script><!--></script>b", ["<script>", "<!-->", "</script>", "b"]),
        ("<script>a<b", ["<script>", "a<b"]),
        ("<plaintext>a</plaintext>", ["<plaintext>", "a</plaintext>"]),
        ("&#5a <b>&# </b>", ["&#5a ", "<b>", "&# ", "</b>"]),
    ],
)  # fmt: skip
def test_broken_html_is_read_as_the_standard_says(
    check: MarkupCheck, text: str, expected: list[str]
) -> None:
    assert [raw for _, raw, _, _, _ in check.tokens(text, "html")] == expected


@pytest.mark.parametrize(
    ("text", "kind", "name", "attributes"),
    [
        ("<br/>", "empty", "br", {}),
        ("<A B=C/>", "start", "a", {"b": "C/"}),
        ("<a/b/>", "empty", "a", {"b": ""}),
        ("</a b='>'/>", "end", "a", {}),
        ("<İ>", "text", "", {}),
        ("<aİ Éa=1>", "start", "aİ", {"Éa": "1"}),
        ("<a b='&lt;&amp&copy=1&copyx&copy'>", "start", "a", {"b": "<&&copy=1&copyx©"}),
        ("<!a>", "other", "", {}),
        ("<!DocType a>", "other", DOCTYPE, {}),
        ("<!doctype a", "other", "", {}),
    ],
)
def test_tags_of_html(
    check: MarkupCheck, text: str, kind: str, name: str, attributes: dict[str, str]
) -> None:
    ((found, raw, *rest),) = check.tokens(text, "html")
    assert (found, raw, rest[0], rest[2]) == (kind, text, name, attributes)


def test_every_named_reference(check: MarkupCheck) -> None:
    names = sorted(html5)
    for text in (
        "".join(f"&{name} " for name in names),
        "".join(f"&{name}x&{name[:-1]}" for name in names),
        "".join(f"&{name.rstrip(';')}; &{name.rstrip(';')}" for name in names),
    ):
        ((_, _, _, found, _),) = check.tokens(text, "html")
        assert found == html.unescape(text)


@given(
    st.lists(
        st.one_of(
            st.integers(0, 0x120000).map("&#{};".format),
            st.integers(0, 300).map("&#{}".format),
            st.integers(0, 2**40).map("&#x{:x};".format),
            st.integers(0, 300).map("&#X{:X} ".format),
            st.sampled_from(sorted(html5)).map("&{}".format),
            st.text("&#xX;ampltnoi1é ", max_size=40),
        ),
        min_size=1,
    )
)
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
def test_references_are_decoded_as_in_python(check: MarkupCheck, parts: list[str]) -> None:
    text = "".join(parts)
    assert "".join(one[3] for one in check.tokens(text, "html")) == html.unescape(text)


def test_names_of_the_fifth_edition_of_xml(check: MarkupCheck) -> None:
    # Expat has the characters of names of the fourth edition.
    for name in ("\U00010400", "\u0370\u200d", "a\u203f"):
        assert [one[2] for one in check.tokens(f"<{name}/>", "xml")] == [name]
    for name in ("\xd7", "\u037e", "\u2190", "\U000f0000", "a\u2190"):
        with pytest.raises(InputError):
            check.tokens(f"<{name}/>", "xml")


def test_references_of_any_name_are_references(check: MarkupCheck) -> None:
    text = "a&my_entity;&é:x;<b c='d&my_entity;e'/>"
    kinds = [(kind, raw) for kind, raw, _, _, _ in check.tokens(text, "xml")]
    assert kinds[:3] == [("text", "a"), ("reference", "&my_entity;"), ("reference", "&é:x;")]
    assert check.tokens(text, "xml")[3][4] == {"c": "de"}


def test_document_types_add_no_attributes(check: MarkupCheck) -> None:
    text = "<!DOCTYPE d [<!ATTLIST d x CDATA 'y'><!ENTITY e 'z'>]><d f='&e;'/>"
    kind, tag = check.tokens(text, "xml")
    assert kind == ["other", text[: text.index("<d ")], DOCTYPE, "", {}]
    assert tag[4] == {"f": ""}


SIZE = 300_000
LARGE = {
    "html": [
        "<", "<a", "<a ", "<a b='", "</a", "<!--", "<!", "<!-- -->", "&", "&#", "&amp", "&a",
        "<b a=1>", "<title><", "<script><!--<script>", "</script", "-", "<?", " ", "<a b=c d", "'",
        "<br/>",
    ],
    "xml": ["<a>", "<a/>", "&e;", "&#65;", "]", "\r", "a", "<!---->", "<?a?>", "<![CDATA[]]>"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("markup", "part"), [(markup, part) for markup, parts in LARGE.items() for part in parts]
)
def test_large_texts(check: MarkupCheck, markup: str, part: str) -> None:
    text = part * (SIZE // len(part))
    if part == "<a>":
        text += "</a>" * (SIZE // len(part))
    tokens = check.tokens(text, markup)
    assert "".join(one[1] for one in tokens) == text


def test_many_attributes_and_declarations(check: MarkupCheck) -> None:
    names = [f"a{number}" for number in range(20_000)]
    attributes = "".join(f" {name}=''" for name in names)
    for markup in ("html", "xml"):
        ((_, _, _, _, found),) = check.tokens(f"<a{attributes}/>", markup)
        assert len(found) == len(names)
    with pytest.raises(InputError):
        check.tokens(f"<a{attributes} a7=''/>", "xml")
    entities = "".join(f"<!ENTITY {name} '&a;'>" for name in names)
    groups = "(" * 20_000 + "a" + ")" * 20_000
    text = f"<!DOCTYPE d [{entities}<!ELEMENT d {groups}>]><d/>"
    assert len(check.tokens(text, "xml")) == 2


@pytest.mark.nightly
def test_texts_under_sanitizers(sanitized: Library) -> None:
    numbers = random.Random(5)
    with sanitized.probe("translate_trt_markup_check") as program:
        check = MarkupCheck(program)
        for _ in range(1500):
            html_text = "".join(numbers.choices(PARTS, k=numbers.randint(0, 20)))
            assert "".join(one[1] for one in check.tokens(html_text, "html")) == html_text
            for xml_text in (fragment(numbers), document(numbers)):
                with contextlib.suppress(InputError):
                    check.tokens(xml_text, "xml")


# ---- the table ----


def test_the_table_is_that_of_python() -> None:
    module = load_script("html_entities")
    assert module.tables() == (ROOT / module.TABLES).read_text(encoding="utf-8")

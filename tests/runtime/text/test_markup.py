"""Texts with markup, translated by programs that reverse, shuffle, repeat and lose words.

Tags of the random documents have numbers, so that the tests find them without a parser.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.markup import BLOCK, Maker, MarkupCheck, random_translator

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("program")]

check: MarkupCheck


@pytest.fixture(scope="module", autouse=True)
def program(markup_check: MarkupCheck) -> None:
    """Keep the program for the functions of this module."""
    global check
    check = markup_check


Words = Callable[[list[str]], list[int]]  # source word of each target word


def translator(order: Words, spelling: Callable[[str], str] = str.upper) -> Callable[..., object]:
    """Return a translator that selects the words of the source and spells them differently."""

    def translate(texts: Sequence[str]) -> list[Translation]:
        return [Translation((one(text),)) for text in texts]

    def one(text: str) -> TextHypothesis:
        words = text.split(" ")
        assert text == " ".join(text.split()), "single spaces"
        assert text, "no empty texts"
        chosen = order(words)
        target = " ".join(spelling(words[index]) for index in chosen)
        return TextHypothesis(target, -1.0, (), aligned(text, target, chosen))

    return translate


def aligned(text: str, target: str, chosen: Sequence[int]) -> Alignment:
    whole = Alignment(text, target)
    weights = np.zeros((len(chosen), len(whole.source_words)), np.float32)
    weights[range(len(chosen)), list(chosen)] = 0.8
    segment = AlignedSegment(whole.source_words, whole.target_words, weights)
    return Alignment(text, target, (segment,) if chosen else ())


def backwards(words: list[str]) -> list[int]:
    return list(range(len(words)))[::-1]


def forwards(words: list[str]) -> list[int]:
    return list(range(len(words)))


def translated(text: str, order: Words = backwards, markup: str = "html", **more: object) -> str:
    whole = bool(more.pop("whole", True))
    spelling = more.pop(
        "spelling", lambda word: word if "{" in word or "%" in word else word.upper()
    )
    (found,) = check.translate(translator(order, spelling), [text], markup, whole)  # type: ignore[arg-type]
    return found.text


# ---- single texts ----


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>Click <b>here now</b> please</p>", "<p>PLEASE <b>NOW HERE</b> CLICK</p>"),
        ("<b>a <i>b</i></b> c", "C <b><i>B</i> A</b>"),
        ("a<br>b c<br/>d", "A<br>C B<br/>D"),
        ("<p>a\n  b</p>\n\n <p> c </p>", "<p>B A</p>\n\n <p> C </p>"),
        ("AT&amp;T &lt;1 &eacute;", "É &lt;1 AT&amp;T"),
        (
            "<a href='?a=1&b=2' title=\"x > y\">a</a> b",
            "B <a href='?a=1&b=2' title=\"x > y\">A</a>",
        ),
        ("<!DOCTYPE html><title>a b</title>", "<!DOCTYPE html><title>B A</title>"),
        ("<!-- a --> b <!-- c --> d <!-- e -->", "<!-- a --> D B<!-- c --> <!-- e -->"),
        ("<p>a<script>x < y</script> b<style>p {}</style></p>", None),
        ("a<pre>\n b  c</pre>d", "A<pre>\n b  c</pre>D"),
        ("<xmp>a & b</xmp><plaintext><i>c & d", None),  # without references
        ("<noembed>a & b</noembed><noframes>c & d", None),
        ('<p translate="no">a b</p><p class="x notranslate">a b</p>', None),
        ("<ul><li translate=no>a b<li>c d</ul>", "<ul><li translate=no>a b<li>D C</ul>"),
        ("<p class=notranslate>a b<p>c d", "<p class=notranslate>a b<p>D C"),
        (
            "<p translate=no>a<br>b <i>c</i><h1>d e</h1>",
            "<p translate=no>a<br>b <i>c</i><h1>E D</h1>",
        ),
        (
            "<ul><li translate=no><p>a b</p><ul><li>c d</ul>e f<li>g h</ul>",
            "<ul><li translate=no><p>a b</p><ul><li>c d</ul>e f<li>H G</ul>",
        ),
        ("<td><p translate=no>a b</td><td>c d</td>", "<td><p translate=no>a b</td><td>D C</td>"),
        (
            "<table><tr><td translate=no>a b<th>c d<tr translate=no><td>e f<td>g h<tr><td>i j",
            "<table><tr><td translate=no>a b<th>D C<tr translate=no><td>e f<td>g h<tr><td>J I",
        ),
        ("<dl><dt translate=no>a b<dd>c d</dl>", "<dl><dt translate=no>a b<dd>D C</dl>"),
        ("<html translate=no><p>a b<p>c d", None),
        ("<div translate=no>a b<div>c d</div>", "<div translate=no>B A<div>D C</div>"),
        ("— <b>·</b>", "— <b>·</b>"),
        ("&nbsp;— <b>&hellip;</b>", "&nbsp;— <b>&hellip;</b>"),
        ("<p>&#XA0;a b</p>&NonBreakingSpace;c", "<p>&#XA0;B A</p>&NonBreakingSpace;C"),
        ("&#32;&Tab;a b&NewLine;&#x0020", "&#32;&Tab;B A&NewLine;&#x0020"),
        ("&nbspa&#0160&nbsp &#320;", "&nbsp\u013f A"),
        ("&nbsp;" * 50_000 + "a" + "&#160;" * 50_000, "&nbsp;" * 50_000 + "A" + "&#160;" * 50_000),
        ("<a><p>a b</p></a> c", "<a><p>B A</p></a> C"),
        ("<li>a b<li>c d", "<li>B A<li>D C"),
        ("water H<sub>2</sub>O", "H<sub>2</sub>O WATER"),
        ("", ""),
        (" \n", " \n"),
    ],
)
def test_html(source: str, expected: str | None) -> None:
    if source.startswith("<p>a<script>"):
        found = translated(source)
        assert "<script>x < y</script>" in found
        assert found.endswith("<style>p {}</style></p>")
    else:
        assert translated(source) == (source if expected is None else expected)


@pytest.mark.parametrize(
    "source",
    [
        "see <a>{name}</a> in", "men <b>%s</b> are", "<b>%s</b> men", "x <a><b>{n}</b></a> y",
        "cat <img> runs", "cat<img> runs", "cat <img>runs", "cat<img>runs", "cat<img><img>runs",
        "<img>cat", "press <input>.", "cat{a} run", "see <i>{n} cats</i> now", "猫<img>走る",
        "x <a><img></a> y", "x<a><img></a>y", "a <!-- c -->b", "a<!-- c --> b",
        "a <script>x</script>b", "a<script>x</script> b", "a <b></b>b", "a<b></b> b",
        "<button><i></i> Save</button>", 'Save <i class="icon"></i>', "a <b></b> b", "a<b></b>b",
        "<label>Name <span></span></label>", "<b><i></i> a</b> c", "a <b>b <i></i></b> c",
        "<i><!-- c --></i> b", "<i></i><b></b> c", "<i></i> <b></b> c", "a <i></i><b></b> c",
        "a <i></i><b></b>c", "a<i></i><b></b> c", "a <i></i>, c", "a <a><i></i></a><img> c",
        "a <img><img alt=''> c", "<span><i></i> </span>Save", "a {n} <i></i> %s c", "<b></b> (a) c",
        "<p>One.\n\nTwo <b>is.\r\n \r\nAnd</b> three.</p>", "a <kbd>b\n\nc</kbd> d",
        "\xa0far\xa0 ", "10\xa0km or 10 miles", "Dr.\xa0Lee met Lee. Lee left", "e.g.\xa0a...\xa0b",
        "see \xa7\xa05, 5 is", "5\xa0% of 5 men", "he said: \xab\xa0a\xa0\xbb!",
    ],
)  # fmt: skip
@pytest.mark.parametrize("copies", [True, False])
def test_white_space_stays(source: str, copies: bool) -> None:
    def same(texts: Sequence[str]) -> list[Translation]:
        return [Translation((one(text),)) for text in texts]

    def one(text: str) -> TextHypothesis:
        target = text if copies else re.sub(r"\{\w+\}|%s", lambda one: "y" * len(one[0]), text)
        return TextHypothesis(target, 0.0, (), aligned(text, target, forwards(target.split())))

    for text in (source, source.replace("\xa0", "&nbsp;")):
        (found,) = check.translate(same, [text], "html", whole=True)
        assert found.text.replace("\xa0", "&nbsp;") == text.replace("\xa0", "&nbsp;")


def test_a_word_without_spaces_is_not_separated() -> None:
    source = '<x id="1"/>, b'
    found = translated(f"a {source}", markup="xml", whole=False, spelling=lambda one: "日本")
    assert not re.search(r"/>\s", found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('Press <x id="1"/>, then <g id="2">go &lt; on</g>', None),
        (
            "<d><p>a <b>b</b> c</p> <p><q>d e</q></p></d>",
            "<d><p>C <b>B</b> A</p> <p><q>E D</q></p></d>",
        ),
        ("<?xml version='1.0'?>\n<d>a <![CDATA[<b>]]> b</d>\n", None),
        ("<d>a &#65;&amp; b</d>", "<d>B A&amp; A</d>"),
        ("<d xml:lang='en'>a\r\nb</d>", "<d xml:lang='en'>B A</d>"),
        (
            "<d><p translate='no'>a b</p><p>a b</p></d>",
            "<d><p translate='no'>a b</p><p>B A</p></d>",
        ),
        ("<d><g></g> a</d>", "<d><g></g> A</d>"),
        ("<d>&#x0A0;a b&#32;&#009;</d>", "<d>&#x0A0;B A&#32;&#009;</d>"),
    ],
)
def test_xml(source: str, expected: str | None) -> None:
    found = translated(source, markup="xml")
    if expected is not None:
        assert found == expected
    assert Counter(re.findall("<[^>]*>", found)) == Counter(re.findall("<[^>]*>", source))


def test_entities_are_not_expanded() -> None:
    source = (
        '<?xml version="1.0"?><!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/hostname">'
        '<!ENTITY f "fff">]><d>a &e; b &f; c</d>'
    )
    found = translated(source, markup="xml")
    assert found.startswith(source[: source.index("<d>")])
    assert sorted(re.findall("&.;", found[found.index("<d>") :])) == ["&e;", "&f;"]
    assert "fff" not in found[found.index("<d>") :]
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    source = f'<!DOCTYPE d [<!ENTITY e0 "x">{bomb}]><d>a &e9;</d>'
    assert translated(source, markup="xml").count("&e9;") == 1


def test_only_fragments_of_xml_are_one_sentence() -> None:
    source = "<b>a</b> <i>b</i>"
    assert translated(source, markup="xml", whole=False) == "<i>B</i> <b>A</b>"
    assert translated(source, markup="xml") == "<b>A</b> <i>B</i>"


def test_a_byte_order_mark_stays_before_an_xml_declaration() -> None:
    source = "\ufeff<?xml version='1.0'?><d>a b</d>"
    assert translated(source, markup="xml") == source.replace("a b", "B A")


def test_elements_inside_a_hundred_others_separate_sentences() -> None:
    depth = 99
    source = "<b>a " * depth + "c <i>d</i> e" + "</b>" * depth
    assert "<i>D</i>" in translated(source)
    assert translated(source).count("<b>") == depth
    source = "<b>a " * 150 + "</b>" * 150
    assert translated(source) == source.upper().replace("B>", "b>")


def test_many_elements_of_a_block() -> None:
    """Time and memory do not grow with the square of the number of elements."""

    def copied(texts: Sequence[str]) -> list[Translation]:
        return [Translation((TextHypothesis(text, -1.0, (), by_tens(text)),)) for text in texts]

    def by_tens(text: str) -> Alignment:
        words = Alignment(text, text).source_words
        sentences = [words[first : first + 10] for first in range(0, len(words), 10)]
        weights = np.eye(10, dtype=np.float32)
        segments = [AlignedSegment(one, one, weights[: len(one), : len(one)]) for one in sentences]
        return Alignment(text, text, tuple(segments))

    parts = [f"<code>x{n}</code> H<sub>{n}</sub>O <b>a{n}</b> <img> in" for n in range(1_000)]
    source = f"<p>{' '.join(parts)}</p>"
    (found,) = check.translate(copied, [source], "html", True)
    assert found.text == source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<a>", "line 3 of b.xml.*line 1, column"),
        ("x\n<a b>", "at line 2"),
        ("</t><t>", "line 1, column 3"),
    ],
)
def test_malformed_xml(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check.translate(translator(forwards), [source], "xml", False, ["line 3 of b.xml"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "placeholder",
    [
        "{name}",
        "{0}",
        "{}",
        "{x:.2f}",
        "{{ user.name }}",
        "${count}",
        "%s",
        "%1$s",
        "%(n)d",
        "%.2f",
        "%%",
        "{n, plural, one {a {x} day} other {# days}}",
        "{ who , select , a {He} other {They}}",
    ],
)
def test_placeholders_are_copied_or_put_back(placeholder: str) -> None:
    source = f"You have {placeholder}, and more"
    if " " in placeholder:  # which the translator divides
        expected = f"more and have {placeholder}, You"
    else:
        expected = f"more and {placeholder}, have You"
    assert translated(source, markup="text", spelling=str) == expected
    lost = translated(source, markup="text", spelling=lambda word: re.sub(r"\W", "", word.upper()))
    assert lost.count(placeholder) == 1
    twice = translated(source, order=lambda words: [*forwards(words)] * 2, markup="text")
    assert twice.count(placeholder) == 1


def test_long_tokens() -> None:
    word = "x" * 200_000
    assert translated(f"<b>{word}</b>{' in' * 100}", spelling=str) == f"{'in ' * 100}<b>{word}</b>"


def test_many_digits_after_a_percent_sign() -> None:
    """Time does not grow with the square of their number."""
    zeros = "0" * 200_000
    assert translated(f"a %{zeros} b", forwards, "text", spelling=str.upper) == f"A %{zeros} B"


def test_percentages_and_braces_of_text_are_text() -> None:
    source = "50% of {a b} 100%d %%s %some"
    assert translated(source, forwards, "text", spelling=str.upper) == source.upper()


def test_placeholders_before_punctuation_touch_no_word() -> None:
    def translate(texts: Sequence[str]) -> list[Translation]:
        # A translation without the placeholder, whose full stop attends to nothing.
        return [
            Translation((TextHypothesis(target := "x y.", 0.0, (), of(text, target)),))
            for text in texts
        ]

    def of(text: str, target: str) -> Alignment:
        words = Alignment(text, target)
        rows = np.full((2, len(words.source_words)), 0.1, np.float32)
        return Alignment(
            text, target, (AlignedSegment(words.source_words, words.target_words, rows),)
        )

    for source, expected in (("A b {n}.", "x y {n}."), ("{n} a b.", "{n} x y.")):
        (found,) = check.translate(translate, [source], "text", False)
        assert found.text == expected


def test_unfinished_messages_are_text() -> None:
    assert translated("a {n, plural, one {b} c", forwards, "text") == "A {n, PLURAL, ONE {b} C"


def test_text_keeps_its_lines() -> None:
    assert translated("a b\r\n\r\n c {x}\n", markup="text") == "B A\r\n\r\n {x} C\n"


def test_code_is_shown_to_the_model_and_kept() -> None:
    seen: list[str] = []

    def spelling(word: str) -> str:
        seen.append(word)
        return word

    source = "Run <b>the <code>git  pull</code> command</b> now"
    assert translated(source, forwards, spelling=spelling) == source
    assert " ".join(seen) == "Run the git pull command now"
    assert translated(source, backwards).count("<code>git  pull</code>") == 1


def test_all_hypotheses_have_the_tags() -> None:
    def translate(texts: Sequence[str]) -> list[Translation]:
        return [
            Translation(tuple(
                TextHypothesis(target, score, (), aligned(text, target, [0] * len(target.split())))
                for target, score in zip(targets, (-1.0, -2.0), strict=False)
            ))
            for text, targets in zip(texts, (["x {a}", "y"], ["z"]), strict=False)
        ]  # fmt: skip

    (found,) = check.translate(translate, ["<p>u {a}</p><p>v</p>"], "html", True)
    assert found.text.startswith("<p>")
    assert all(one.text.count("{a}") == 1 for one in found.hypotheses)
    assert found.sentence_count == 2


@pytest.mark.parametrize(
    ("source", "markup", "tagless"),
    [
        ("<p>a b</p><p>c <i>d</i></p>e", "html", [True, False, True]),
        ("<p>a <br> b</p>", "html", [True, True]),
        ("a b", "text", [True]),
        ("a {b}", "text", [False]),
    ],
)
def test_segments_without_tags_and_placeholders_need_no_attention(
    source: str, markup: str, tagless: list[bool]
) -> None:
    check.tagless.clear()
    translated(source, forwards, markup)
    assert check.tagless == tagless


def test_deep_and_wide_documents_end_soon() -> None:
    deep = "<b>" * 3000 + "a b" + "</b>" * 3000
    assert translated(deep) == deep.replace("a b", "B A")
    wide = " ".join(f"<a>w{n}</a>" for n in range(300))
    assert translated(wide, forwards) == wide.replace("w", "W")
    assert translated("<i>" * 2000 + "a" + "</b>" * 2000).count("<i>") == 2000
    parts = "a" + "<wbr>a" * 1000
    assert translated(parts, forwards, spelling=str) == parts
    assert translated("a <img> " * 1000, forwards).count("<img>") == 1000


# ---- random documents ----


def tree(text: str) -> tuple[dict[str, str], list[str], Counter[str]]:
    """Return the parent of each tag, the tags of blocks in order, and all placeholders.

    Tags must be balanced.
    """
    parents: dict[str, str] = {}
    stack, blocks = [""], []
    for tag in re.findall("<!--.*?-->|<[^>]*>", text):
        name = re.match(r"</?(\w*)", tag)
        assert name is not None
        if name[1] in (*BLOCK, "br"):
            blocks.append(tag)
        if tag.startswith("</"):
            assert stack.pop().startswith(f"<{name[1]} "), text
            continue
        assert tag not in parents, text
        parents[tag] = stack[-1]
        if not tag.endswith(("/>", "-->")):
            stack.append(tag)
    assert stack == [""], text
    return parents, blocks, Counter(re.findall(r"\$?\{n\d+\}|%\(n\d+\)s", text))


@given(seed=st.integers(0, 2**32), markup=st.sampled_from(["html", "xml"]), whole=st.booleans())
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
def test_random_documents_keep_their_tags(seed: int, markup: str, whole: bool) -> None:
    maker = Maker(seed)
    source = maker.block(1) if maker.random.random() < 0.5 else maker.inline(4)
    (found,) = check.translate(random_translator(maker.random), [source], markup, whole)
    before, after = tree(source), tree(found.text)
    assert after[0] == before[0], (source, found.text)
    assert after[2] == before[2], (source, found.text)
    if markup == "html":
        assert after[1] == before[1], (source, found.text)
    for code in re.findall("<code.*?</code>", source):
        assert found.text.count(code) == 1
    ElementTree.fromstring(f"<t>{found.text}</t>")
    text = re.sub("<[^>]*>", "", found.text)
    assert html.escape(html.unescape(text), quote=False) == text


@given(seed=st.integers(0, 2**32), markup=st.sampled_from(["html", "xml"]))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_translation_of_the_same_words_leaves_a_document_as_it_is(seed: int, markup: str) -> None:
    maker = Maker(seed)
    words = [f"w{n}" for n in range(maker.random.randint(1, 9))]
    # Tags around whole words, which the model keeps.
    for _ in range(maker.random.randint(0, 5)):
        first = maker.random.randrange(len(words))
        number, depth = maker.number(), 0
        for last in range(first, len(words)):
            depth += words[last].count("<b") - words[last].count("</b")
            if depth < 0:
                break
            if depth == 0 and maker.random.random() < 0.5:
                words[first] = f'<b n="{number}">{words[first]}'
                words[last] = f"{words[last]}</b>"
                break
    source = f"<p>{' '.join(words)}</p>"
    assert translated(source, forwards, markup, spelling=str) == source


def test_a_reference_of_any_name_cuts_no_sentence() -> None:
    assert translated("<d>a &my_entity; b</d>", markup="xml") == "<d>B A &my_entity;</d>"

"""Texts with markup in the C++ library: the lines and translations of Python's runtime."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.cpp_library import Library, Probe
from support.markup import Maker, Translate, random_translator, translate_with

from translate_trt.runtime.results import Translation
from translate_trt.runtime.text import markup as python
from translate_trt.runtime.text.alignment import Alignment

pytestmark = pytest.mark.slow

# Words that are cut, are not translated, are no placeholders, or are not of one script.
WORDS = [
    'H<sub n="%d">2</sub>O', "l\u2019homme", "state-of-the-art", "100%", "%d", "%1$s", "%%",
    "%5.2f", "%-3ld", "%(a)s", "{{x}}", "{{a", "${v}", "{}",
    "{n, plural, one {a {x} day} other {# days}}", "{ a,select , {b}", "{a, plural, {", "}}",
    "\u0e44\u0e17\u0e22\u0e20\u0e32",
    "\ud55c\uad6d", "\xa0", "&#32;", "&#160;x", "cat\xa0dog",
    "the&#xA0;the", "dog,\xa0cat", "1\xa0%", "\xa7\xa01", "\xa7", "&#x0A0;", "&#009;",
    "\n\n", "\r\n \r\n", '<b n="%d">{x}</b>', '<i n="%d"><img n="%d"/></i>', "1", "https://a.b",
    '<kbd n="%d" translate="no">a\n\nb</kbd>', "\u65e5\u672c\u8a9e\u3002", "a_b", "_", "x'y",
    "\u0301", "\xb2", "e\u0301t", "\u2028", '<img n="%d"/>', '<x n="%d"/>,',
    '<code n="%d" translate="no">a b</code>', '<kbd n="%d" translate="NO"> cat </kbd>',
    '<i n="%d" class="a notranslate">dog,</i>', '<s n="%d"></s>', "cat", "dog,",
]  # fmt: skip

# Elements of HTML without end tags, and its references.
WITHOUT_END = ["&nbsp;", "&nbsp",
    "&#XA0;", "&#0032", "&#xD", "&NonBreakingSpace;", "&Tab;", "&NewLine;",
    '<li n="%d" translate="no">', '<p n="%d" class="notranslate">a', '<p n="%d">', "<rt>",
    '<rt translate="no">x', "</ul>", "</p>", '<td n="%d" translate="no">', "<tr>", "<hr/>",
]  # fmt: skip


@pytest.fixture(scope="module")
def check(library: Library) -> Iterator[Probe]:
    with library.probe("translate_trt_markup_check") as program:
        yield program


@pytest.mark.parametrize("markup", ["html", "xml", "text"])
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_random_texts(check: Probe, markup: str, first: int) -> None:
    for seed in range(first, first + 250):
        maker = Maker(seed, markup, WORDS + WITHOUT_END if markup == "html" else WORDS)
        chance = maker.random
        texts = [
            maker.block(1) if chance.random() < 0.5 else maker.inline(4)
            for _ in range(chance.randint(0, 3))
        ]
        assert_same(check, texts, markup, chance.random() < 0.5, random_translator(chance, 3))


def test_elements_of_html(check: Probe) -> None:
    """Each element separates texts, is empty, or is not translated, as in Python."""
    names = sorted(python._BLOCKS | python._VOID | python._UNTRANSLATED | python._OBJECTS)
    texts = [f"a <{name}>b c</{name}> <{name}>d" for name in [*names, "b", "unknown"]]
    assert_same(check, texts, "html", True, random_translator(random.Random(3), 1))


@pytest.mark.parametrize("name", sorted(python._ENDED_BY))
def test_elements_without_end_tags(check: Probe, name: str) -> None:
    """The same tags end an element that is not translated, as in Python."""
    element = f"<div><{name} translate=no>a <b>b</b><br>c "
    others = sorted({*python._BLOCKS, *python._ENDED_BY, "b", "unknown"})
    tags = [f"<{other}>" for other in others] + ["</div>", "</b>", "<hr/>", f"<b><{name}></b>"]
    texts = [f"a <{name} translate=no><{name}>, b"]
    texts += [f"{element}{tag}d e</{name}>f</div> g" for tag in tags] + [
        element + tag for tag in tags
    ]
    assert_same(check, texts, "html", True, random_translator(random.Random(4), 1))


def test_large_texts(check: Probe) -> None:
    translate = random_translator(Maker(0, "html").random, 2)
    deep = "<b>" * 3000 + "a b" + "</b>" * 3000
    wide = " ".join(f"<a>w{n}</a>" for n in range(300))
    code = " ".join(f"<code>w{n}</code> x" for n in range(300))
    nested = "<b>a " * 150 + "</b>" * 150
    long = f"a <b>{'x' * 20_000}</b> <i>{'y' * 20_000}</i> {'b ' * 300}"
    assert_same(check, [deep, wide, code, nested, long], "html", True, translate)


def assert_same(
    check: Probe, texts: Sequence[str], markup: str, whole: bool, translate: Translate
) -> None:
    """Compare what is translated, and the translations of the texts."""
    rounds: list[tuple[list[str], Sequence[Translation]]] = []

    def recording(lines: Sequence[str]) -> Sequence[Translation]:
        found = translate(lines)
        rounds.append((list(lines), found))
        return found

    expected = translate_with(recording, texts, markup, whole)
    found = check.ask(
        texts=texts, markup=markup, whole=whole,
        rounds=[[_as_json(one) for one in found] for _, found in rounds],
    )  # fmt: skip
    assert [[line for line, _ in lines] for lines in found["rounds"]] == [one for one, _ in rounds]
    assert found["texts"] == [
        [[one.text, pytest.approx(one.score, rel=1e-12)] for one in translation.hypotheses]
        for translation in expected
    ]


def _as_json(translation: Translation) -> list[dict[str, Any]]:
    return [
        {
            "text": one.text,
            "score": one.score,
            "segments": [
                {
                    "source": segment.source,
                    "target": segment.target,
                    "weights": segment.weights.tolist(),
                }
                for segment in (one.alignment or Alignment("", one.text)).segments
            ],
        }
        for one in translation.hypotheses
    ]

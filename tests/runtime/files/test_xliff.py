"""XLIFF 1.2 and 2."""

import random
import xml.etree.ElementTree as ET

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import ReadOptions, read_file_text

FIRST = """\
<?xml version='1.0' encoding="utf-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language='en' original="a"><body>
    <group translate="no"><trans-unit id="g"><source>fixed</source></trans-unit></group>
    {}
  </body></file>
</xliff>
"""
SECOND = """\
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.1" srcLang="en">
  <file id="f"><unit id="u">
    {}
    <ignorable><source> </source></ignorable>
  </unit><unit id="n" translate="no"><segment><source>fixed</source></segment></unit></file>
</xliff>
"""
DONE = 'target state="needs-review-translation"'


@pytest.mark.parametrize(
    ("unit", "translated"),
    [
        (
            '<trans-unit id="1">\n  <source>a <g id="1">b</g></source>\n</trans-unit>',
            '<trans-unit id="1">\n  <source>a <g id="1">b</g></source>\n'
            f'  <{DONE}>A <g id="1">B</g></target>\n</trans-unit>',
        ),
        (
            "<trans-unit><source>a</source><target\n/><note>n</note></trans-unit>",
            f"<trans-unit><source>a</source><{DONE}>A</target><note>n</note></trans-unit>",
        ),
        (
            '<trans-unit><source>a</source><target x="y" state="new">b</target></trans-unit>',
            '<trans-unit><source>a</source><target x="y" state="needs-review-translation">A'
            "</target></trans-unit>",
        ),
        (
            '<trans-unit><source>a <ph id="1">code</ph><bpt id="2">c</bpt>d<ept id="2">e</ept>'
            '<mrk mtype="protected">f</mrk></source></trans-unit>',
            '<trans-unit><source>a <ph id="1">code</ph><bpt id="2">c</bpt>d<ept id="2">e</ept>'
            f'<mrk mtype="protected">f</mrk></source><{DONE}>A <ph id="1">code</ph>'
            '<bpt id="2">c</bpt>D<ept id="2">e</ept><mrk mtype="protected">f</mrk></target>'
            "</trans-unit>",
        ),
        (
            '<trans-unit><source>a b</source><seg-source><mrk mtype="seg" mid="1">a</mrk> '
            '<mrk mtype="seg" mid="2">b</mrk></seg-source></trans-unit>',
            '<trans-unit><source>a b</source><seg-source><mrk mtype="seg" mid="1">a</mrk> '
            f'<mrk mtype="seg" mid="2">b</mrk></seg-source><{DONE}><mrk mtype="seg" mid="1">A</mrk>'
            ' <mrk mtype="seg" mid="2">B</mrk></target></trans-unit>',
        ),
    ],
)
def test_first_version(unit: str, translated: str) -> None:
    found = rendered(FIRST.format(unit).encode(), "a.xlf", capitals, target_language="de")
    head = FIRST.replace('original="a">', 'original="a" target-language="de">')
    assert found.decode() == head.format(translated)


@pytest.mark.parametrize(
    ("unit", "overwritten"),
    [
        ("<trans-unit><source>a</source><target>b</target></trans-unit>", True),
        ('<trans-unit><source>a</source><target state="final">b</target></trans-unit>', True),
        ('<trans-unit approved="yes"><source>a</source><target>b</target></trans-unit>', False),
        ('<trans-unit translate="no"><source>a</source></trans-unit>', False),
        ("<trans-unit><source/></trans-unit>", False),
        ("<alt-trans><source>a</source><target>b</target></alt-trans>", False),
    ],
)
def test_kept_units(unit: str, overwritten: bool) -> None:
    content = FIRST.format(unit).encode()
    assert rendered(content, "a.xliff", capitals, target_language="de") == content
    assert texts(content, "a.xliff", overwrite=True) == (["a"] if overwritten else [])


def test_second_version() -> None:
    content = SECOND.format(
        '<segment>\n<source>a <pc id="1">b</pc><sc id="2"/>c<ec startRef="2"/></source></segment>'
        '<segment state="initial"><source>d</source><target>e</target></segment>'
        '<segment state="final"><source>f</source><target>g</target></segment>'
    )
    found = rendered(content.encode(), "a.xlf", capitals, target_language="de").decode()
    assert found == content.replace('srcLang="en"', 'srcLang="en" trgLang="de"').replace(
        "<segment>\n", '<segment state="translated">\n', 1).replace(
        "</source></segment>", '</source>\n<target>A <pc id="1">B</pc><sc id="2"/>C'
        '<ec startRef="2"/></target></segment>', 1).replace("initial", "translated").replace(
        "<target>e", "<target>D")  # fmt: skip
    assert texts(content.encode(), "a.xlf", overwrite=True)[-2:] == ["d", "f"]


def test_lines_lengths_and_prefixes() -> None:
    unit = ('<x:trans-unit id="i" maxwidth="9" size-unit="char" xml:space="preserve"><x:source>a\nb'
            "</x:source></x:trans-unit>")  # fmt: skip
    text = FIRST.replace("<", "<x:").replace("<x:?", "<?").replace("<x:/", "</x:")
    content = text.replace("xmlns", "xmlns:x").format(unit).encode()
    found = read_file_text(content, "a.xlf", ReadOptions()).segments
    assert [(one.text, one.place, one.length) for one in found] == [
        ("a", "unit i", 9), ("b", "unit i", 9),
    ]  # fmt: skip
    assert b"</x:source><x:target" in rendered(content, "a.xlf", capitals)


def random_inline(source: random.Random, depth: int = 0) -> str:
    pieces = []
    for _ in range(source.randrange(1, 4)):
        number = source.randrange(9)
        inner = random_inline(source, depth + 1) if depth < 3 else ""
        pieces.append(source.choice((
            "word", "é &amp; ", "{n}", f'<x id="{number}"/>', f'<g id="{number}">{inner}</g>',
            f'<ph id="{number}">code</ph>', f'<bx id="{number}"/>{inner}', "<!-- c -->",
            f'<bpt id="{number}">c</bpt>{inner}<ept id="{number}"/>',
        )))  # fmt: skip
    return "".join(pieces)


def test_random_documents() -> None:
    source = random.Random(0)
    name = "{urn:oasis:names:tc:xliff:document:1.2}"
    for _ in range(500):
        units = "\n".join(
            f"<trans-unit><source>{random_inline(source)}</source></trans-unit>"
            for _ in range(source.randrange(4))
        )
        content = FIRST.format(units).encode()
        once = rendered(content, "a.xlf", target_language="de")
        assert rendered(once, "a.xlf", capitals, target_language="de") == once
        for unit in ET.fromstring(once).iter(f"{name}trans-unit"):
            children = [*unit]
            if len(children) == 2:
                before, after = (
                    ET.tostring(one, encoding="unicode").partition(">")[2].rpartition("<")[0]
                    for one in children
                )
                assert after == before
        translated = ET.fromstring(rendered(content, "a.xlf", capitals, target_language="de"))
        assert not any(
            "word" in "".join(child.text or "" for child in target.iter(f"{name}g"))
            for target in translated.iter(f"{name}target")
        )


def test_damaged_files_are_refused() -> None:
    unit = '<trans-unit id="1"><source>a <g id="1">b</g></source></trans-unit>'
    assert read_damaged(FIRST.format(unit).encode(), "a.xlf") > 20
    for text in ("<a/>", '<xliff version="3.0"/>', "", '<!DOCTYPE a [<!ENTITY b "c">]><xliff/>'):
        with pytest.raises(InputError):
            texts(text.encode(), "a.xlf")

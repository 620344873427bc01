"""Strings of Android and resources of .NET."""

import random
import xml.etree.ElementTree as ET

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

ANDROID = """\
<?xml version="1.0" encoding="utf-8"?>
<!-- c -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2">
    {}
</resources>
"""


@pytest.mark.parametrize(
    ("string", "translated"),
    [
        (r"Don\'t  &lt;go&gt;\n\u00e9 \u0020", r"DON\'T &lt;GO&gt;\nÉ \u0020"),
        ('"Don\'t   \\"go\\""', '"DON\'T   \\"GO\\""'),
        ("\n  two\n  lines\n", "\n  TWO LINES\n"),
        (r"\@ a", r"\@ A"),
        (r"a <b>don\'t</b> %1$s\nnext", r"A <b>DON\'T</b> %1$S\nNEXT"),
        ('a <xliff:g id="x">n</xliff:g>!', 'A <xliff:g id="x">n</xliff:g>!'),
        ('<![CDATA[<a href="x">It\\\'s</a> & b]]>', '<![CDATA[<a href="x">IT\\\'S</a> & B]]>'),
        ("a <!-- c --> b", "A <!-- c --> B"),
        ("@string/other", "@string/other"),
        (r"\ud83d\ude00 a", "😀 A"),
    ],
)
def test_strings_of_android(string: str, translated: str) -> None:
    text = ANDROID.format(f'<string name="a">{string}</string>')
    content = text.encode()
    assert rendered(content, "a.xml") == content
    assert rendered(content, "a.xml", capitals).decode() == text.replace(string, translated)


def test_arrays_and_plurals_of_android() -> None:
    content = ANDROID.format(
        '<string name="no" translatable="false">x</string>'
        '<string-array name="list"><item>a</item><item>b</item></string-array>'
        '<plurals name="days"><item quantity="one">%d day</item>'
        '<item quantity="other">%d days</item></plurals><integer name="n">1</integer>'
    ).encode()
    assert texts(content, "strings.xml") == ["a", "b", "%d day", "%d days"]
    assert texts(content, "a.xml", keys=("list.1", "*.one")) == ["b", "%d day"]


RESX = """\
<?xml version="1.0" encoding="utf-8"?>
<root>
  <resheader name="version"><value>2.0</value></resheader>
  <data name="A" xml:space="preserve"><value>Tom &amp; {0}</value><comment>note</comment></data>
  <data name="B" type="System.Drawing.Point"><value>x</value></data>
  <data name=">>c.Name" xml:space="preserve"><value>c</value></data>
  <data name="D" mimetype="application/x"><value>x</value></data>
  <data name="E"><value><![CDATA[<b>x</b>]]></value></data>
  <data name="F"><value /></data>
</root>
"""


def test_resources_of_net() -> None:
    content = RESX.encode("utf-8-sig")
    assert rendered(content, "a.resx") == content
    assert texts(content, "a.resx") == ["Tom & {0}", "<b>x</b>"]
    assert texts(content, "a.resx", keys=("A",)) == ["Tom & {0}"]
    found = rendered(content, "a.resx", capitals).decode("utf-8-sig")
    assert found == RESX.replace("Tom", "TOM").replace("<b>x", "<b>X")


def test_random_strings_of_android() -> None:
    source = random.Random(0)
    pieces = ["one", r"\'", r"\n", r"\"", "&amp;", " ", "  ", "\n", "<b>x</b>", "%d", r"\u00e9",
              '"a  b"', "@", "?", "&lt;b&gt;", "\\\\", "é"]  # fmt: skip
    for _ in range(500):
        strings = ["".join(source.choices(pieces, k=source.randrange(8)))
                   for _ in range(source.randrange(4))]  # fmt: skip
        content = ANDROID.format(
            "\n".join(f'<string name="a">{string}</string>' for string in strings)
        ).encode()
        assert rendered(content, "a.xml") == content
        found = rendered(content, "a.xml", capitals)
        ET.fromstring(found)
        upper = [text if "&" in text else text.upper().replace("<B>", "<b>").replace("</B>", "</b>")
                 for text in texts(content, "a.xml")]  # fmt: skip
        assert [text for text in texts(found, "a.xml") if "&" not in text] == [
            text for text in upper if "&" not in text
        ]


def test_other_xml_is_refused() -> None:
    assert texts(b'<xliff version="1.2"/>', "a.xml") == []
    for name in ("a.xml", "a.resx"):
        assert read_damaged(RESX.encode(), name) > 20
        with pytest.raises(InputError):
            texts(b"<page>a</page>", name)

"""Translation memories."""

import random
import xml.etree.ElementTree as ET

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

MEMORY = """\
<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-US" datatype="x"/><body>
{}
</body></tmx>
"""
UNIT = """\
  <tu tuid="1">
    <note>n</note>
    <tuv xml:lang="en-US" creationid="me">
      <seg>a <bpt i="1">code</bpt>b<ept i="1">code</ept> <ph>x</ph></seg>
    </tuv>{}
  </tu>"""
VARIANT = """
    <tuv xml:lang="{}">
      <seg>{}</seg>
    </tuv>"""
TRANSLATED = 'A <bpt i="1">code</bpt>B<ept i="1">code</ept> <ph>x</ph>'


def test_variants_are_added() -> None:
    french = VARIANT.format("fr", "x")
    content = MEMORY.format(UNIT.format(french))
    found = rendered(content.encode(), "a.tmx", capitals, target_language="deu_Latn").decode()
    assert found == MEMORY.format(UNIT.format(french + VARIANT.format("de", TRANSLATED)))


def test_variants_are_kept_unless_overwritten() -> None:
    content = MEMORY.format(UNIT.format(VARIANT.format("de-AT", "x"))).encode()
    assert rendered(content, "a.tmx", capitals, target_language="de") == content
    found = rendered(content, "a.tmx", capitals, target_language="de", overwrite=True).decode()
    assert found == MEMORY.format(UNIT.format(VARIANT.format("de-AT", TRANSLATED)))


def test_source_variants() -> None:
    unit = UNIT.format(VARIANT.format("fr", "Bonjour") + VARIANT.format("fr-CA", "Allo"))
    content = MEMORY.format(unit + "<tu/>").encode()
    for language, text in (("fra_Latn", "Bonjour"), ("fr-CA", "Allo")):
        assert texts(content, "a.tmx", source_language=language, target_language="de") == [text]
    assert texts(content, "a.tmx", target_language="en") == []


def test_random_memories() -> None:
    source = random.Random(0)
    for _ in range(500):
        units = "\n".join(
            UNIT.format("".join(VARIANT.format(code, code) for code in ("fr", "de", "es")
                                if source.random() < 0.5))
            for _ in range(source.randrange(4))
        )  # fmt: skip
        content = MEMORY.format(units).encode()
        found = rendered(content, "a.tmx", target_language="de")
        assert rendered(found, "a.tmx", capitals, target_language="de") == found
        for unit in ET.fromstring(found).iter("tu"):
            segments = {one.attrib["{http://www.w3.org/XML/1998/namespace}lang"]: one[0]
                        for one in unit.iter("tuv")}  # fmt: skip
            text = ET.tostring(segments["de"]).strip()
            assert text == b"<seg>de</seg>" or text == ET.tostring(segments["en-US"]).strip()


def test_damaged_files_are_refused() -> None:
    content = MEMORY.format(UNIT.format("")).encode()
    assert read_damaged(content, "a.tmx") > 20
    for damaged, options in ((content, {}), (b"<tmx/>", {"target_language": "de"})):
        with pytest.raises(InputError):
            texts(damaged, "a.tmx", **options)

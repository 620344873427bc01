"""Packed documents: bounds, encryption, macros, damage, and parts that stay as they are."""

from __future__ import annotations

import contextlib
import io
import random
import zipfile

import pytest
from support.documents import docx, epub, opendocument, xlsx
from support.file_damage import read_damaged, spoiled
from support.file_texts import capitals, packed, parts, rendered, texts

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files import ReadOptions
from translate_trt.runtime.files.zip_packages import Package

DOCUMENT = docx("<w:p><w:r><w:t>text</w:t></w:r></w:p>")


def test_parts_keep_their_order_method_and_date() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, (name, content) in enumerate(parts(DOCUMENT).items()):
            part = zipfile.ZipInfo(name, (2001, 2, 3, 4, 5, 2 * number))
            part.extra, part.comment = b"\1\2\0\0", b"comment"
            archive.writestr(part, content, compress_type=(0, 8)[number % 2])
        archive.comment = b"archive"
    found = []
    for content in (file.getvalue(), rendered(file.getvalue(), "a.docx", capitals)):
        archive = zipfile.ZipFile(io.BytesIO(content))
        assert archive.comment == b"archive"
        found.append(
            [(one.filename, one.date_time, one.compress_type, one.external_attr, one.comment)
             for one in archive.infolist()]
        )  # fmt: skip
    assert found[0] == found[1]


def test_names_beyond_ascii() -> None:
    content = opendocument("<text:p>text</text:p>", **{"Bilder/Straße.png": "x"})
    assert parts(rendered(content, "a.odt", capitals))["Bilder/Straße.png"] == b"x"


def _with_flag(content: bytes) -> bytes:
    """Return a zip file whose parts claim encryption."""
    for sign, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        pieces = content.split(sign)
        content = sign.join(
            piece if not number else piece[: at - 4] + b"\1" + piece[at - 3 :]
            for number, piece in enumerate(pieces)
        )
    return content


def _with_size(content: bytes) -> bytes:
    """Return a zip file whose directory states a size of 1 for each part."""
    pieces = content.split(b"PK\1\2")
    return b"PK\1\2".join(
        piece if not number else piece[:20] + (1).to_bytes(4, "little") + piece[24:]
        for number, piece in enumerate(pieces)
    )


REFUSED = [
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "password"),
    (b"text", "damaged"),
    (b"", "damaged"),
    (DOCUMENT[:-30], "damaged"),
    (_with_flag(DOCUMENT), "encrypted"),
    (_with_size(docx("<w:p/>" * 99)), "damaged"),
    (packed(parts(DOCUMENT) | {"word/vbaProject.bin": b""}), "macros"),
    (packed({"word/document.xml": "<a/>"}), r"no part \[Content_Types\]"),
    (packed({name: part for name, part in parts(DOCUMENT).items() if "word" not in name}), "main"),
    (docx("<w:p>"), "word/document.xml is not well-formed"),
    (docx("<w:p>" * 300 + "</w:p>" * 300), "deep"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_packages(number: int) -> None:
    content, message = REFUSED[number]
    with pytest.raises(InputError, match=message):
        texts(content, "a.docx")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_parts_of_one_name_are_refused() -> None:
    file = io.BytesIO(DOCUMENT)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("word/document.xml", "<a/>")
    with pytest.raises(InputError, match="one name"):
        texts(file.getvalue(), "a.docx")


def test_macros_of_opendocument_are_refused_and_empty_libraries_are_not() -> None:
    empty = {"Basic/Standard/script-lb.xml": "", "Basic/script-lc.xml": ""}
    assert texts(opendocument("<text:p>text</text:p>", **empty), "a.odt") == ["text"]
    for name in ("Basic/Standard/Module1.xml", "Scripts/python/a.py"):
        with pytest.raises(InputError, match="macros"):
            texts(opendocument("", **{name: ""}), "a.odt")


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = packed({"a": "", "b": bytes(20_000_000)})
    with pytest.raises(InputError, match="unpacked"):
        Package(bomb, ReadOptions(max_bytes=10_000_000))
    with pytest.raises(InputError, match="parts"):
        Package(b"PK\1\2" * 100_001, ReadOptions())


SOUND = {
    "a.docx": DOCUMENT,
    "a.xlsx": xlsx("<si><t>text</t></si>"),
    "a.odt": opendocument("<text:p>a<text:span>b</text:span></text:p>"),
    "a.epub": epub("<html><p>a <b>b</b></p></html>"),
}


@pytest.mark.parametrize("name", SOUND)
def test_damage_is_an_input_error(name: str) -> None:
    """Change packages, and the XML in them, at random."""
    content, rng = SOUND[name], random.Random(1)
    assert read_damaged(content, name, 100) > 20
    unpacked = parts(content)
    part = max(unpacked, key=lambda one: len(unpacked[one]))
    for _ in range(100):
        with contextlib.suppress(InputError):
            rendered(packed({**unpacked, part: spoiled(unpacked[part], rng)}), name, capitals)

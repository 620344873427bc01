"""PDF: paragraphs of its text."""

from __future__ import annotations

import io

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

pytest.importorskip("pypdf")

from pypdf import PdfReader, PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

LINES = ("The first para-", "graph is of a line that ends", "here.", "Another one has one line.")


def _pdf(lines: tuple[str, ...] = LINES, password: str = "") -> bytes:
    writer = PdfWriter()
    page = writer.add_blank_page(300, 300)
    text = DecodedStreamObject()
    body = " ".join(f"({line}) Tj T*" for line in lines)
    text.set_data(f"BT /F1 10 Tf 14 TL 20 250 Td {body} ET".encode())
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    names = {NameObject(key): NameObject(value) for key, value in font.items()}
    fonts = DictionaryObject({NameObject("/F1"): DictionaryObject(names)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    page[NameObject("/Contents")] = writer._add_object(text)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def test_paragraphs() -> None:
    assert texts(_pdf(), "a.pdf") == [
        "The first paragraph is of a line that ends here.", "Another one has one line.",
    ]  # fmt: skip
    found = rendered(_pdf(), "a.pdf", capitals).decode()
    assert (
        found == "THE FIRST PARAGRAPH IS OF A LINE THAT ENDS HERE.\n\nANOTHER ONE HAS ONE LINE.\n"
    )


@pytest.mark.parametrize(
    ("content", "options"),
    [(_pdf(password="secret"), {}), (_pdf(()), {}), (_pdf()[:400], {}), (_pdf(), {"max_bytes": 9})],
    ids=["encrypted", "pictures", "truncated", "large"],
)  # fmt: skip
def test_files_without_readable_text(content: bytes, options: dict[str, int]) -> None:
    with pytest.raises(InputError):
        texts(content, "a.pdf", **options)


def test_damaged_files_are_refused_or_read() -> None:
    assert len(PdfReader(io.BytesIO(_pdf())).pages) == 1
    assert 0 < read_damaged(_pdf(), "a.pdf") < 60

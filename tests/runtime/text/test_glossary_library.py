"""Glossaries of libtranslate_trt against those of Python: tables, matches, terms, errors."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.scripts import load_script

from translate_trt.runtime import native
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.native import abi
from translate_trt.runtime.text.glossary import Glossary

pytestmark = pytest.mark.slow

INPUT_ERROR, OPTION_ERROR = 1, 2

# Characters that differ in how they compose, fold, join or separate: letters with marks in any
# order, Hangul, ligatures, scripts with and without spaces, and white space of all kinds.
ALPHABET = [
    *"aAbBcCzZ09_-.,#'", *"\u0300\u0301\u0307\u0308\u0323\u0327\u0328\u0345\u05b0\u093c\u3099",
    *"\u00e9\u00c9\u00df\u1e9e\u0130\u0131\u017f\u212a\u212b\u2126\u03a3\u03c2\u03c3\ufb01\ufb03",
    *"\u0149\u01f0\u1f80\u1fb3\u0390\u1e69\u1ea5\u0958\u0915\u093f\u0340\u0344\u2adc\uf900\u2f800",
    *"\u1100\u1161\u11a8\uac00\uac01\ud55c\u11a7\u0e01\u0e35\u0e41\u1780\u732b\u304b\u304c\u30ab",
    *"\u0661\u00b2\u2160\u24b6\u10d0\u1c90\u13a0\uab70\U00010400\U0001f600\u200d\ufe0f",
    *"   \t\u00a0\u2003\u3000\x0b\x1c\x85\u2028",
]  # fmt: skip


class _Term(ctypes.Structure):
    _fields_ = (
        ("source", abi.TextFound),
        ("target", abi.TextFound),
        ("translation", abi.TextFound),
        ("found", ctypes.c_int32),
    )


class Library:
    """The glossary functions of the library."""

    def __init__(self, path: Path) -> None:
        self._library = native.open_library(path)
        pointer, size = ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t
        for name, returned, taken in (
            ("read", ctypes.c_int32, (ctypes.c_char_p, ctypes.c_int32, pointer)),
            ("parse", ctypes.c_int32, (abi.Text, ctypes.c_char_p, ctypes.c_int32, pointer)),
            ("terms", ctypes.c_int32, (ctypes.c_void_p, abi.Text, abi.Text, pointer)),
            ("size", size, (ctypes.c_void_p,)),
            ("free", None, (ctypes.c_void_p,)),
        ):
            function = getattr(self._library, f"tt_glossary_{name}")
            function.restype, function.argtypes = returned, taken
        terms = self._library
        terms.tt_terms_size.restype, terms.tt_terms_size.argtypes = size, (ctypes.c_void_p,)
        terms.tt_terms_term.restype = _Term
        terms.tt_terms_term.argtypes = (ctypes.c_void_p, size)
        terms.tt_terms_free.restype, terms.tt_terms_free.argtypes = None, (ctypes.c_void_p,)

    def read(self, path: Path, ignore_case: int = 0) -> Any:
        """Open a file; return a handle, or the status and the message of the failure."""
        handle = ctypes.c_void_p()
        status = self._library.tt_glossary_read(str(path).encode(), ignore_case, handle)
        return handle if status == 0 else (status, self._library.tt_last_error().decode())

    def parse(self, content: bytes, ignore_case: int = 0, name: bytes | None = b"terms.tsv") -> Any:
        """Parse a content, likewise."""
        handle = ctypes.c_void_p()
        text = abi.Text(content, len(content))
        status = self._library.tt_glossary_parse(text, name, ignore_case, handle)
        return handle if status == 0 else (status, self._library.tt_last_error().decode())

    def size(self, glossary: Any) -> int:
        """Return the number of entries."""
        return int(self._library.tt_glossary_size(glossary))

    def terms(
        self, glossary: Any, line: str, translation: str
    ) -> list[tuple[str, str, str | None]]:
        """Return source, preferred target and found translation of each term."""
        handle = ctypes.c_void_p()
        texts = [abi.Text(text, len(text)) for text in (line.encode(), translation.encode())]
        assert self._library.tt_glossary_terms(glossary, *texts, handle) == 0
        try:
            count = self._library.tt_terms_size(handle)
            found = [self._library.tt_terms_term(handle, index) for index in range(count)]
            return [
                (text_of(one.source), text_of(one.target),
                 text_of(one.translation) if one.found else None)
                for one in found
            ]  # fmt: skip
        finally:
            self._library.tt_terms_free(handle)

    def free(self, glossary: Any) -> None:
        """Free a glossary."""
        self._library.tt_glossary_free(glossary)


def text_of(text: Any) -> str:
    return ctypes.string_at(text.data, text.size).decode()


@pytest.fixture(scope="module")
def library() -> Library:
    path = native.library()
    if path is None:
        pytest.skip("libtranslate_trt is not built")
    return Library(path)


def terms_in_python(glossary: Glossary, line: str, translation: str) -> list[Any]:
    return [
        (one.source, one.targets[0], one.translation) for one in glossary.terms(line, translation)
    ]


def in_python(lines: list[str], ignore_case: bool) -> Glossary | str:
    """Return the glossary of lines, or the message of the failure."""
    try:
        return Glossary.parse(lines, "terms.tsv", ignore_case)
    except InputError as error:
        return str(error)


def test_the_tables_are_those_of_python() -> None:
    module = load_script("unicode_tables")
    written = (ROOT / module.TABLES).read_text(encoding="utf-8")
    if f'"{unicodedata.unidata_version}"' not in written:
        pytest.skip(f"the tables are not of Unicode {unicodedata.unidata_version}")
    assert module.tables() == written


def test_every_character_folds_as_in_python(library: Library) -> None:
    """Each line of the text has a character, alone, with a mark, and between two letters."""
    if f'"{unicodedata.unidata_version}"' not in (
        ROOT / "runtime/cpp/src/text/unicode_tables.inc"
    ).read_text(encoding="utf-8"):
        pytest.skip("the tables of the library are of another version of Unicode")
    codes = [
        code
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"
        and not 0x3400 < code < 0x9FF0 and not 0x17000 < code < 0x18CFF
        and not 0x20000 < code < 0x2F800 and not 0x30000 < code < 0x31340
        and not 0xAC20 < code < 0xD790 and code < 0xE0200
        and not (0xE000 < code < 0xF8FF)
    ]  # fmt: skip
    characters = [chr(code) for code in codes]
    for ignore_case in (False, True):
        entries = []
        for character in characters:
            # Other spellings of the character: decomposed, or in another case.
            spelled = character.upper() if ignore_case else unicodedata.normalize("NFD", character)
            if spelled.strip() and spelled[0] not in "#\ufffd" and "\n" not in spelled:
                entries.append(f"{spelled}\u0301\tx\n{spelled}\ty")
        content = "\n".join(entries)
        ours = library.parse(content.encode(), ignore_case)
        theirs = Glossary.parse(content.split("\n"), "terms.tsv", ignore_case)
        assert library.size(ours) == len(theirs.entries)
        for begin in range(0, len(characters), 500):
            part = characters[begin : begin + 500]
            line = " ".join(f"{one} {one}\u0301 a{one}b -{one}-" for one in part)
            assert library.terms(ours, line, "") == terms_in_python(theirs, line, "")
        library.free(ours)


def texts(numbers: random.Random, count: int, longest: int) -> Iterator[str]:
    for _ in range(count):
        yield "".join(numbers.choices(ALPHABET, k=numbers.randint(1, longest)))


@pytest.mark.parametrize("ignore_case", [False, True])
def test_random_glossaries_find_the_same_terms(library: Library, ignore_case: bool) -> None:
    numbers = random.Random(29)
    terms = found = 0
    for _ in range(1500):
        # Few characters of many per case, so that phrases recur.
        alphabet = [*numbers.sample(ALPHABET, 7), " "]
        drawn = ["".join(numbers.choices(alphabet, k=numbers.randint(1, 4))) for _ in range(10)]
        lines = [
            "\t".join(numbers.choices(drawn, k=numbers.randint(2, 4)))
            for _ in range(numbers.randint(1, 6))
        ]
        content = "\n".join(lines).encode()
        ours = library.parse(content, ignore_case)
        theirs = in_python(content.decode().split("\n"), ignore_case)
        if isinstance(theirs, str):
            assert ours == (INPUT_ERROR, theirs)
            continue
        assert library.size(ours) == len(theirs.entries), content
        for _ in range(4):
            line, translation = (
                "".join(numbers.choices([*drawn, *alphabet], k=12)) for _ in range(2)
            )
            expected = terms_in_python(theirs, line, translation)
            assert library.terms(ours, line, translation) == expected, (content, line)
            terms += len(expected)
            found += sum(one[2] is not None for one in expected)
        library.free(ours)
    assert terms > 2000
    assert found > 300


def test_a_large_glossary(library: Library) -> None:
    numbers = random.Random(3)
    words = ["".join(letters) for letters in itertools.product("abcdef", repeat=4)]
    lines = [
        "\t".join(" ".join(numbers.choices(words, k=k)) for k in (n, 1))
        for n in (1, 2, 3) for _ in range(4000)
    ]  # fmt: skip
    ours = library.parse("\n".join(lines).encode())
    theirs = Glossary.parse(lines, "terms.tsv")
    assert library.size(ours) == len(theirs.entries) > 8000
    line, translation = (" ".join(numbers.choices(words, k=2000)) for _ in range(2))
    expected = terms_in_python(theirs, line, translation)
    assert library.terms(ours, line, translation) == expected
    assert 500 < len(expected) < 2000
    library.free(ours)


def test_many_terms(library: Library) -> None:
    """Time does not grow with the square of the number of terms, of phrases or of targets."""
    for lines, line, translation in (
        (["cat\tKatze", "dog\tKatze"], "cat " * 50_000 + "dog " * 50_000, "Katze " * 75_000),
        ([f"a{' a' * n} b\tx" for n in range(1_500)], "a " * 50_000, "x"),
        ([f"a{' a' * n}\tx" for n in range(1_500)], "a " * 3_100, "x x"),
        (["\t".join(["a", *map(str, range(100_000))])], "a a", "99999 7"),
    ):
        ours, theirs = library.parse("\n".join(lines).encode()), Glossary.parse(lines, "terms.tsv")
        assert library.terms(ours, line, translation) == terms_in_python(theirs, line, translation)
        library.free(ours)


FILES = {
    "good": b"# terms\n\ncar\tAuto\tWagen\t\t\n New  York \tNew York\r\ncar\tPkw\tAuto\n",
    "byte order mark": "\ufeffHaus\thouse\n".encode(),
    "only a byte order mark": b"\xef\xbb\xbf",
    "no final newline": b"a\tb",
    "a carriage return alone": b"a\tb\rc\td\r",
    "empty": b"",
    "only comments": b"# nothing\n\n",
    "no tab": b"car\tAuto\ncat\n",
    "blank target": b"car\t \t\n",
    "blank source": b"\tAuto\n",
    "latin-1": b"car\tAuto\ncaf\xe9\tcoffee\n",
    "UTF-16": "car\tAuto\n".encode("utf-16"),
    "UTF-16 without a mark": "car\tAuto\n".encode("utf-16-le"),
    "UTF-16 of the other order": "car\tAuto\n".encode("utf-16-be"),
    "UTF-32": "car\tAuto\n".encode("utf-32"),
    "NUL bytes in the second line": b"car\tAuto\n\0c\0a\0t\0\t\n",
    "a NUL": b"car\0s\tAuto\n",
}


@pytest.mark.parametrize("name", FILES)
def test_files_and_their_errors(library: Library, tmp_path: Path, name: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(FILES[name])
    ours = library.read(path)
    try:
        theirs: Glossary | str = Glossary.read(path)
    except InputError as error:
        theirs = str(error)
    if isinstance(theirs, str):
        assert ours == (INPUT_ERROR, theirs)
        assert library.parse(FILES[name], name=str(path).encode()) == ours
        return
    assert library.size(ours) == len(theirs.entries)
    line = " ".join(entry.source for entry in theirs.entries)
    assert library.terms(ours, line, "Wagen") == terms_in_python(theirs, line, "Wagen")
    library.free(ours)


def test_files_that_cannot_be_read(library: Library, tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError) as caught:
            Glossary.read(path)
        assert library.read(path) == (INPUT_ERROR, str(caught.value))
    for content, packed in ((b"\x1f\x8b\x08\0", "gzip"), (b"\x28\xb5\x2f\xfd\0", "zstd")):
        status, message = library.parse(content)
        assert (status, message) == (
            INPUT_ERROR,
            f"terms.tsv is compressed with {packed}; unpack it, because the library reads plain "
            "text.",
        )


def test_arguments_that_are_wrong(library: Library) -> None:
    assert library.parse(b"a\tb", ignore_case=2) == (
        OPTION_ERROR, "ignore_case is 2; it must be 0 or 1.",
    )  # fmt: skip
    status, message = library.parse(b"", name=None)
    assert status == INPUT_ERROR
    assert message.startswith("the glossary has no entries")
    status, message = library.parse(b"a\tb\nc", name=None)
    assert message.startswith("the glossary, line 2 has no target phrase")

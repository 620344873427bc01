"""Glossaries: files, matching against a brute-force reference, and terms in translations."""

from __future__ import annotations

import itertools
import pickle
import random
import unicodedata
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripts import load_script

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.text.glossary import Entry, Glossary, Match

UNSPACED_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def glossary(*sources: str, ignore_case: bool = False) -> Glossary:
    return Glossary([Entry(source, (source.upper(),)) for source in sources], ignore_case)


def found(text: str, *sources: str, ignore_case: bool = False) -> list[str]:
    return [
        text[begin:end] for begin, end, _ in glossary(*sources, ignore_case=ignore_case).find(text)
    ]


def write(directory: Path, content: str) -> Path:
    path = directory / "glossary.tsv"
    path.write_text(content, encoding="utf-8")
    return path


# ---- files ----


def test_a_file_has_variants_comments_and_blank_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path, "# terms\n\ncar\tAuto\tWagen\t\t\n New  York \tNew York\r\ncar\tPkw\tAuto\n"
    )
    read = Glossary.read(path)
    assert read.entries == [
        Entry("car", ("Auto", "Wagen", "Pkw")),
        Entry("New  York", ("New York",)),
    ]
    assert [match.entry.source for match in read.find("New York by car")] == ["New  York", "car"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"car\tAuto\ncat\n", "line 2 has no target phrase"),
        (b"car\t \t\n", "line 1 has no target phrase"),
        (b"\tAuto\n", "line 1 has no source phrase"),
        (b"car\tAuto\ncaf\xe9\tcoffee\n", "line 2 is not valid UTF-8"),
        (b"# nothing\n", "has no entries"),
        (b"", "has no entries"),
        (b"\xef\xbb\xbf", "has no entries"),
        ("car\tAuto\n".encode("utf-16"), "is not text in UTF-8"),
        (b"\xfd7zXZ\0", "is compressed with xz"),
    ],
    ids=range(9),
)
def test_errors_name_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "glossary.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"glossary\.tsv,? {message}"):
        Glossary.read(path)


def test_a_pickled_one_has_the_same_entries() -> None:
    own = Glossary([Entry("#car", ("Auto", "a\tb"))], ignore_case=True)
    copy = pickle.loads(pickle.dumps(own))
    assert (copy.entries, copy.ignore_case) == (own.entries, True)


def test_the_tables_are_those_of_python() -> None:
    module = load_script("unicode_tables")
    written = (ROOT / module.TABLES).read_text(encoding="utf-8")
    if f'"{unicodedata.unidata_version}"' not in written:
        pytest.skip(f"the tables are not of Unicode {unicodedata.unidata_version}")
    assert module.tables() == written


@pytest.mark.parametrize(
    "entry",
    [Entry(" ", ("x",)), Entry("x", ()), Entry("x", ("y", ""))],
    ids=["source", "no target", "target"],
)
def test_blank_phrases_are_refused(entry: Entry) -> None:
    with pytest.raises(InputError, match="blank phrase"):
        Glossary([entry])


# ---- matching ----


@pytest.mark.parametrize(
    ("text", "sources", "expected"),
    [
        ("a cat, a catfish", ["cat"], ["cat"]),
        ("New York Times", ["York Times", "New York", "New"], ["New York"]),  # leftmost first
        ("New Yorkshire", ["New York", "New"], ["New"]),  # the longest ends within a word
        ("C++ and .NET, C++11", ["C++", ".NET"], ["C++", ".NET", "C++"]),
        ("foo_bar foo-bar", ["foo"], ["foo"]),
        ("x  New\u00a0 York", ["New York"], ["New\u00a0 York"]),  # any white space
        ("Straße STRASSE", ["Straße"], ["Straße"]),
        ("一只猫和猫咪", ["猫"], ["猫", "猫"]),
        ("使用GPU显卡", ["GPU", "显卡"], ["GPU", "显卡"]),
        ("นี่คือแมวดำ", ["แมว"], ["แมว"]),
        ("กี", ["ก"], []),  # a vowel sign belongs to its letter
        ("काम का", ["क", "का"], ["का"]),
        ("서울은", ["서울"], []),  # Korean has spaces, and particles are parts of words
        ("cafe\u0301 caf\u00e9", ["caf\u00e9"], ["cafe\u0301", "caf\u00e9"]),
        ("cafe\u0301", ["cafe"], []),
    ],
)
def test_phrases_match_at_word_boundaries(
    text: str, sources: list[str], expected: list[str]
) -> None:
    assert found(text, *sources) == expected


def test_case_is_ignored_on_request() -> None:
    assert found("STRASSE Straße ΣΊΣΥΦΟΣ", "straße", "σίσυφος", ignore_case=True) == [
        "STRASSE", "Straße", "ΣΊΣΥΦΟΣ",
    ]  # fmt: skip
    assert found("İstanbul", "i̇stanbul", ignore_case=True) == ["İstanbul"]


def brute_force(phrases: set[str], text: str, ignore_case: bool) -> list[tuple[int, int]]:
    """Try every phrase on every part of the text, by Unicode names and Python's own folding."""

    def same(part: str, phrase: str) -> bool:
        a, b = (" ".join(unicodedata.normalize("NFC", x).split()) for x in (part, phrase))
        if part != part.strip():
            return False
        return a.casefold() == b.casefold() if ignore_case else a == b

    def in_word(character: str) -> bool:
        name = unicodedata.name(character, "")
        return not name.startswith(UNSPACED_NAMES) and (
            character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"
        )

    def is_edge(at: int) -> bool:
        if at in (0, len(text)):
            return True
        if unicodedata.category(text[at])[0] == "M":
            return text[at - 1].isspace()
        return not (in_word(text[at - 1]) and in_word(text[at]))

    matches, at = [], 0
    while at < len(text):
        ends = [
            end
            for end in range(len(text), at, -1)
            if is_edge(at) and is_edge(end) and any(same(text[at:end], one) for one in phrases)
        ]
        if ends:
            matches.append((at, ends[0]))
            at = ends[0]
        else:
            at += 1
    return matches


@pytest.mark.parametrize("ignore_case", [False, True])
def test_matches_equal_those_of_a_brute_force_search(ignore_case: bool) -> None:
    random_numbers = random.Random(17)
    alphabet = [*"abAß\u00e9-_1猫แก\u0e35か", "e\u0301", " ", "  "]
    total = 0
    for _ in range(800):
        drawn = ("".join(random_numbers.choices(alphabet, k=n)).strip() for n in (1, 1, 2, 2, 3, 4))
        sources = {one for one in drawn if one and unicodedata.category(one[0])[0] != "M"}
        text = "".join(random_numbers.choices(alphabet, k=12))
        matches = glossary(*sorted(sources), ignore_case=ignore_case).find(text)
        expected = brute_force(sources, text, ignore_case)
        assert [(match.begin, match.end) for match in matches] == expected, (text, sources)
        total += len(expected)
    assert total > 500


def test_a_large_glossary_gives_the_matches_of_its_part_in_the_text() -> None:
    random_numbers = random.Random(3)
    words = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=4)]
    phrases = {
        " ".join(random_numbers.choices(words, k=k)) for k in (1, 2, 3) for _ in range(12_000)
    }
    large = glossary(*sorted(phrases))
    assert len(large.entries) > 25_000
    text = " ".join(random_numbers.choices(words, k=40))
    near = {phrase for phrase in phrases if phrase in text}
    matches = [(match.begin, match.end) for match in large.find(text)]
    assert matches == [(match.begin, match.end) for match in glossary(*sorted(near)).find(text)]
    assert len(matches) > 10


# ---- terms in translations ----


def terms(source: str, translation: str, *entries: Entry, ignore_case: bool = False) -> list[bool]:
    return [term.found for term in Glossary(entries, ignore_case).terms(source, translation)]


def test_phrases_are_compared_in_nfc_and_folded() -> None:
    """Each character, spelled otherwise, is found alone, with a mark, and not within a word."""
    for ignore_case in (False, True):
        spelled = {}
        for character in map(chr, [*range(0x2C00), *range(0xA640, 0xAC80), *range(0xF900, 0xFB50)]):
            own = character.upper() if ignore_case else unicodedata.normalize("NFD", character)
            if own.strip() and not unicodedata.category(own[0]).startswith(("M", "C")):
                spelled[character] = own
        found = glossary(*spelled.values(), ignore_case=ignore_case)
        for character in spelled:
            (match, *_) = found.find(f"- {character} -")
            assert (match.begin, match.end) in ((2, 3), (0, 1)), ascii(character)


def test_each_term_needs_an_occurrence_of_its_own() -> None:
    cat = Entry("cat", ("Katze", "Kater"))
    assert terms("cat and cat", "Katze", cat) == [True, False]
    assert terms("cat and cat", "Kater und Katze", cat) == [True, True]
    york = Entry("York", ("York",)), Entry("New York", ("New York",))
    assert terms("York, New York", "New York", *york) == [False, True]
    assert terms("cat", "Katzen", cat) == [False]
    assert terms("cat", "KATZE", cat) == [False]
    assert terms("Cat", "KATZE", cat, ignore_case=True) == [True]
    assert terms("dog", "Katze", cat) == []


def test_many_terms() -> None:
    """Time does not grow with the square of the number of terms, of phrases or of targets."""
    repeated = Glossary([Entry("cat", ("Katze",)), Entry("dog", ("Katze",))])
    found = repeated.terms("cat " * 20_000 + "dog " * 20_000, "Katze " * 30_000)
    assert [term.found for term in found] == [True] * 30_000 + [False] * 10_000
    # None of the phrases is in the text, which has the beginnings of all.
    long = Glossary([Entry(f"a{' a' * n} b", ("x",)) for n in range(1_500)])
    assert long.find("a " * 20_000) == []
    nested = Glossary([Entry(f"a{' a' * n}", ("x",)) for n in range(1_500)])
    assert [match.end for match in nested.find("a " * 3_100)] == [2_999, 5_999, 6_199]
    variants = Glossary([Entry("a", (str(n),)) for n in range(30_000)])
    assert [len(entry.targets) for entry in variants.entries] == [30_000]


@pytest.mark.parametrize("ignore_case", [False, True])
def test_many_marks(ignore_case: bool) -> None:
    """Time does not grow with the square of a run of marks, and NFC is that of Python."""
    long = Glossary([Entry("x" + "\u0315\u0300" * 500_000, ("y",))], ignore_case)
    assert long.find("x") == []
    marks = "\u0300\u0301\u0308\u0315\u0316\u0323\u0345\u0344\u0f71\u3099\u0903\u20dd"
    rng = random.Random(7)
    for count in (*range(30, 36), 90):
        text = rng.choice("aeiou\u03c5\u304b") + "".join(rng.choices(marks, k=count))
        for other in (unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)):
            found = Glossary([Entry(text, ("y",))], ignore_case).find(f"a {other} b")
            assert [(match.begin, match.end) for match in found] == [(2, 2 + len(other))]


def test_a_term_has_the_spelling_of_both_texts() -> None:
    (term,) = Glossary([Entry("cat", ("Katze",))], ignore_case=True).terms("A CAT!", "Die KATZE!")
    assert (term.source, term.targets, term.translation) == ("CAT", ("Katze",), "KATZE")


def test_a_match_has_its_entry() -> None:
    entry = Entry("cat", ("Katze",))
    assert Glossary([entry]).find("the cat") == [Match(4, 7, entry)]

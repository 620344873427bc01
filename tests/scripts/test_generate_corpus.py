"""Generated corpus: correct German, determined by the English, held-out text unseen."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

CASES = ("nominative", "accusative", "dative")


def run(generator: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(generator), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def noun(english: str):
    from corpus import lexicon

    tables = (lexicon.PERSONS, lexicon.ANIMALS, lexicon.THINGS, lexicon.FOODS, lexicon.PLACES)
    return next(n for n in itertools.chain(*tables) if n.english[0] == english)


def verb(english: str):
    from corpus import lexicon

    tables = (
        lexicon.WITH_PERSON, lexicon.WITH_THING, lexicon.WITH_FOOD, lexicon.GIVING,
        lexicon.HELPING, lexicon.DOING, lexicon.GOING, lexicon.SAYING, lexicon.TRYING,
    )  # fmt: skip
    return next(v for v in itertools.chain(*tables) if v.english[0] == english)


def phrase(english: str, determiner: str = "the", adjective: str = "", plural: bool = False):
    from corpus.phrases import NounPhrase

    return NounPhrase(noun(english), determiner, adjective, plural)


def clause(subject, english_verb: str, **parts: object):
    from corpus.clauses import Clause

    return Clause(subject, verb(english_verb), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("determiner", "word", "expected"),
    [
        ("the", "man", ("der alte Mann", "den alten Mann", "dem alten Mann")),
        ("the", "woman", ("die alte Frau", "die alte Frau", "der alten Frau")),
        ("the", "child", ("das alte Kind", "das alte Kind", "dem alten Kind")),
        ("a", "man", ("ein alter Mann", "einen alten Mann", "einem alten Mann")),
        ("a", "woman", ("eine alte Frau", "eine alte Frau", "einer alten Frau")),
        ("a", "child", ("ein altes Kind", "ein altes Kind", "einem alten Kind")),
        ("no", "man", ("kein alter Mann", "keinen alten Mann", "keinem alten Mann")),
        ("my", "child", ("mein altes Kind", "mein altes Kind", "meinem alten Kind")),
        ("our", "woman", ("unsere alte Frau", "unsere alte Frau", "unserer alten Frau")),
        ("his", "dog", ("sein alter Hund", "seinen alten Hund", "seinem alten Hund")),
    ],
)
def test_singular_phrases_in_every_case(
    determiner: str, word: str, expected: tuple[str, ...]
) -> None:
    from corpus.phrases import german

    found = tuple(german(phrase(word, determiner, "old"), case) for case in CASES)
    assert found == expected


@pytest.mark.parametrize(
    ("determiner", "word", "expected"),
    [
        ("the", "man", ("die alten Männer", "die alten Männer", "den alten Männern")),
        ("", "apple", ("alte Äpfel", "alte Äpfel", "alten Äpfeln")),
        ("three", "child", ("drei alte Kinder", "drei alte Kinder", "drei alten Kindern")),
        ("no", "woman", ("keine alten Frauen", "keine alten Frauen", "keinen alten Frauen")),
        ("my", "hotel", ("meine alten Hotels", "meine alten Hotels", "meinen alten Hotels")),
    ],
)
def test_plural_phrases_in_every_case(
    determiner: str, word: str, expected: tuple[str, ...]
) -> None:
    from corpus.phrases import german

    found = tuple(german(phrase(word, determiner, "old", plural=True), case) for case in CASES)
    assert found == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [("boy", "den Jungen"), ("neighbour", "den Nachbarn"), ("student", "den Studenten"),
     ("bear", "den Bären"), ("lion", "den Löwen"), ("farmer", "den Bauern")],
)  # fmt: skip
def test_weak_nouns(word: str, expected: str) -> None:
    from corpus.phrases import german

    assert german(phrase(word), "accusative") == expected


def test_an_adjective_in_e_does_not_double_it() -> None:
    from corpus.phrases import german

    assert german(phrase("man", "a", "tired"), "nominative") == "ein müder Mann"


def test_a_becomes_an_before_a_vowel() -> None:
    from corpus.phrases import english

    assert english(phrase("apple", "a")) == "an apple"
    assert english(phrase("apple", "a", "green")) == "a green apple"
    assert english(phrase("man", "a", "old")) == "an old man"


def test_separable_verb_in_every_position() -> None:
    from corpus.clauses import german_infinitive, german_main, german_question, german_subordinate

    call = clause(phrase("man"), "call", direct=phrase("woman"))
    perfect = clause(phrase("man"), "call", direct=phrase("woman"), tense="perfect")
    modal = clause(phrase("man"), "call", direct=phrase("woman"), modal="must")
    assert german_main(call) == "der Mann ruft die Frau an"
    assert german_question(call) == "ruft der Mann die Frau an"
    assert german_subordinate(call) == "der Mann die Frau anruft"
    assert german_infinitive(call) == "die Frau anzurufen"
    assert german_main(perfect) == "der Mann hat die Frau angerufen"
    assert german_subordinate(perfect) == "der Mann die Frau angerufen hat"
    assert german_main(modal) == "der Mann muss die Frau anrufen"
    assert german_subordinate(modal) == "der Mann die Frau anrufen muss"


def test_verb_second_with_the_time_in_front() -> None:
    from corpus.clauses import english_clause, german_main

    found = clause(
        phrase("man"), "find", tense="past", direct=phrase("book", "a"), time="yesterday"
    )
    assert english_clause(found, time_first=True) == "yesterday the man found a book"
    assert german_main(found, time_first=True) == "gestern fand der Mann ein Buch"
    assert german_main(found) == "der Mann fand gestern ein Buch"


def test_in_takes_the_dative_for_a_place_and_the_accusative_for_a_direction() -> None:
    from corpus.clauses import Prepositional, german_prepositional

    assert german_prepositional(Prepositional("in", phrase("garden"))) == "im Garten"
    assert german_prepositional(Prepositional("to", phrase("house"))) == "ins Haus"
    assert german_prepositional(Prepositional("into", phrase("garden"))) == "in den Garten"
    assert german_prepositional(Prepositional("in", phrase("kitchen"))) == "in der Küche"
    assert german_prepositional(Prepositional("with", phrase("boy"))) == "mit dem Jungen"
    assert german_prepositional(Prepositional("for", phrase("boy", "a"))) == "für einen Jungen"


def test_relative_pronouns() -> None:
    from corpus.clauses import english_relative, german_relative

    sees = clause(phrase("man"), "see", direct=phrase("dog"))
    assert german_relative(phrase("woman"), sees, as_subject=True) == "die den Hund sieht"
    assert english_relative(phrase("woman"), sees, as_subject=True) == "who sees the dog"
    buys = clause(phrase("woman"), "buy")
    assert german_relative(phrase("chair"), buys, as_subject=False) == "den die Frau kauft"
    assert english_relative(phrase("chair"), buys, as_subject=False) == "that the woman buys"


def test_negation() -> None:
    from corpus.clauses import english_clause, german_main

    some = clause(phrase("man"), "buy", direct=phrase("book", "a"), negated=True)
    many = clause(phrase("man"), "buy", direct=phrase("book", "", plural=True), negated=True)
    this = clause(phrase("man"), "buy", direct=phrase("book"), negated=True)
    assert english_clause(some) == "the man does not buy a book"
    assert german_main(some) == "der Mann kauft kein Buch"
    assert german_main(many) == "der Mann kauft keine Bücher"
    assert german_main(this) == "der Mann kauft das Buch nicht"


def test_questions_and_do() -> None:
    from corpus.clauses import english_question, german_question

    works = clause(phrase("man"), "work", tense="past")
    assert english_question(works, "where") == "where did the man work"
    assert german_question(works, "wo") == "wo arbeitete der Mann"
    plural = clause(phrase("man", plural=True), "sleep")
    assert english_question(plural) == "do the men sleep"
    assert german_question(plural) == "schlafen die Männer"


@pytest.mark.parametrize(
    ("word", "english", "german"),
    [
        ("work", "two men are working", "zwei Männer arbeiten"),
        ("run", "two men are running", "zwei Männer laufen"),
        ("dance", "two men are dancing", "zwei Männer tanzen"),
        ("fall_asleep", "two men are falling asleep", "zwei Männer schlafen ein"),
    ],
)
def test_german_has_no_progressive(word: str, english: str, german: str) -> None:
    from corpus.clauses import english_clause, english_question, german_main

    found = clause(phrase("man", "two", plural=True), word, progressive=True)
    assert english_clause(found) == english
    assert german_main(found) == german
    past = clause(phrase("man"), word, progressive=True, tense="past", negated=True)
    assert english_clause(past).startswith("the man was not ")
    assert english_question(past, "why").startswith("why was the man ")


def test_dative_before_accusative_and_pronouns() -> None:
    from corpus.clauses import english_clause, german_main
    from corpus.phrases import NounPhrase

    gives = clause(phrase("man"), "give", direct=phrase("book"), indirect=phrase("boy"))
    assert english_clause(gives) == "the man gives the book to the boy"
    assert german_main(gives) == "der Mann gibt dem Jungen das Buch"
    back = clause(NounPhrase(word="I"), "give_back", direct=phrase("book"),
                  indirect=NounPhrase(word="she"))  # fmt: skip
    assert english_clause(back) == "I give the book back to her"
    assert german_main(back) == "ich gebe ihr das Buch zurück"


def test_perfect_with_sein() -> None:
    from corpus.clauses import Prepositional, english_clause, german_main
    from corpus.phrases import NounPhrase

    to_school = (Prepositional("to", phrase("school")),)
    gone = clause(NounPhrase(word="we"), "go", tense="perfect", place=to_school)
    assert english_clause(gone) == "we have gone to the school"
    assert german_main(gone) == "wir sind in die Schule gegangen"


def test_english_determines_german() -> None:
    from corpus.grammar import Grammar

    known: dict[str, str] = {}
    for english, german in itertools.islice(Grammar(3).sentences(), 30_000):
        assert known.setdefault(english, german) == german, english
    assert len(known) > 25_000


def test_files_are_deterministic_and_held_out_text_is_unseen(
    generator: Path, tmp_path: Path
) -> None:
    sizes = ("--sentences", 2000, "--valid", 100, "--test", 200)
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert run(generator, "--out", tmp_path / name, "--seed", seed, *sizes).returncode == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for name in names:
        text = (tmp_path / "a" / name).read_bytes()
        assert text == (tmp_path / "b" / name).read_bytes()
        assert text != (tmp_path / "c" / name).read_bytes()
    for language in ("en", "de"):
        parts = {
            part: (tmp_path / "a" / f"{part}.{language}")
            .read_text(encoding="utf-8")
            .split("\n")[:-1]
            for part in ("train", "valid", "test")
        }
        assert [len(parts[part]) for part in ("train", "valid", "test")] == [2000, 100, 200]
        sentences = [line for lines in parts.values() for line in lines]
        assert len(set(sentences)) == len(sentences)


def test_an_existing_directory_is_kept(generator: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    refused = run(generator, "--out", tmp_path, "--sentences", 10)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]

"""Values of resources: ICU messages, markup and placeholders."""

import random

import pytest

from translate_trt.runtime.files.message_text import read_fragment, read_message


def translated(value: str, java: bool = False) -> tuple[list[str], str]:
    """Return the texts of a message, and the message with each text in brackets."""
    message = read_message(value, java=java)
    texts = [segment.text for segment in message.segments]
    assert message.render(texts) == value
    return texts, message.render([f"[{text}]" for text in texts])


@pytest.mark.parametrize(
    ("value", "texts", "message"),
    [
        (
            "{n, plural, one {# day} other {# days}}", ["{0} day", "{0} days"],
            "{n, plural, one {[# day]} other {[# days]}}",
        ),
        (
            "#1: {n, plural, =0 {No file} other {# files}} in {d, date, long}.",
            ["#1: No file in {0}.", "#1: {0} files in {1}."],
            "{n, plural, =0 {['#'1: No file in {d, date, long}.]}"
            " other {['#'1: # files in {d, date, long}.]}}",
        ),
        (
            "{a, plural, other {# cats}} of {b, plural, other {# dogs}}",
            ["{0} cats of {1} dogs"],
            "{a, plural, other {{b, plural, other {[{a, number} cats of # dogs]}}}}",
        ),
        (
            "{g, select, f {her {n, plural, other {books}}} other {their}} are {x}",
            ["her books are {x}", "their are {x}"],
            "{g, select, f {{n, plural, other {[her books are {x}]}}} other {[their are {x}]}}",
        ),
        (
            "It''s {n, plural, other {''{x}'' and '{y}'}}", ["It's '{x}' and {0}"],
            "{n, plural, other {[It''s ''{x}'' and '{y}']}}",
        ),
        (
            "{n, plural, offset:1 one {you} other {you and # others}} like it",
            ["you", "you and {0} others", " like it"],
            "{n, plural, offset:1 one {[you]} other {[you and # others]}}[ like it]",
        ),
        (
            "<a href='{u}'>{n, plural, other {<b>#</b> x}}</a>", ["<a href='{u}'><b>{0}</b> x</a>"],
            "{n, plural, other {[<a href='{u}'><b>#</b> x</a>]}}",
        ),
        (
            "$NAME$ has {n, plural, other {# dogs}}", ["{0} has {1} dogs"],
            "{n, plural, other {[$NAME$ has # dogs]}}",
        ),
        ("{n, plural, other {}}", [], "{n, plural, other {}}"),
    ],
)  # fmt: skip
def test_cases_are_sentences(value: str, texts: list[str], message: str) -> None:
    assert translated(value) == (texts, message)


def test_many_combinations_are_translated_case_by_case() -> None:
    argument = "{n, plural, =0 {a} =1 {b} one {c} few {d} other {e}}"
    texts, _ = translated(f"{argument} and {argument}")
    assert texts == [*"abcde", " and ", *"abcde"]


@pytest.mark.parametrize(
    ("value", "segments"),
    [
        ("Save <b>all</b> {files}", [("xml", "Save <b>all</b> {files}")]),
        ("<b>One</b>\n\nTwo <i>x</i>", [("xml", "<b>One</b>"), ("xml", "Two <i>x</i>")]),
        ("One<br>two", [("html", "One<br>two")]),
        ("Caf&eacute;", [("html", "Caf&eacute;")]),
        ("see <file> & go", [("text", "see <file> & go")]),
        ("%{n} of $TOTAL$ for :name", [("text", "{0} of {1} for {2}")]),
        ("v%s of %dx: 100%sure %s", [("text", "v{0} of {1}x: 100%sure %s")]),
        ("{0} %zu %lld {{x}}", []),
        ("<br> %s {name} &nbsp;", []),
        ("\ud800 broken", []),
    ],
)
def test_kinds(value: str, segments: list[tuple[str, str]]) -> None:
    message = read_message(value)
    assert [(one.kind, one.text) for one in message.segments] == segments
    assert message.render([one.text for one in message.segments]) == value


@pytest.mark.parametrize(
    ("fragment", "texts"),
    [
        ('a <x id="{}"/>\nb &amp; c', ['a <x id="{}"/>\nb &amp; c']),
        ('{n, plural, one {<x id="{1}"/> day} other {days}}', ['<x id="{1}"/> day', "days"]),
        ("<g>{n, plural, other {a</g>}}", ["<g>a</g>"]),
        ("<g>{n, select, a {b</g>} other {c}}", ["<g>{n, select, a {b</g>} other {c}}"]),
        ('<x id="1"/>', []),
    ],
)
def test_fragments(fragment: str, texts: list[str]) -> None:
    message = read_fragment(fragment)
    assert [segment.text for segment in message.segments] == texts
    assert {segment.kind for segment in message.segments} <= {"xml"}
    assert message.render(texts) == fragment


def test_lines_of_fragments() -> None:
    message = read_fragment("a <b>c</b>\n\n d", has_lines=True)
    assert [segment.text for segment in message.segments] == ["a <b>c</b>", " d"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("It''s {0}", "[It''s {0}]"),
        ("Open {0,number} '{x}' now", "[Open {0,number} '{x}' now]"),
        ("Can't open {0}", "[Can't open {0}]"),
    ],
)
def test_patterns_of_java(value: str, message: str) -> None:
    assert translated(value, java=True)[1] == message
    apostrophe = read_message(value, java=True).render(["l'eau"])
    assert apostrophe == ("l'eau" if "Can't" in value else "l''eau")


def test_random_messages_keep_their_structure() -> None:
    source = random.Random(1)
    pieces = ["{n, plural, one {", "# x", "} other {", "}}", "'", "''", "{a}", "<b>", "</b>", "y ",
              "'{", "#", "{g, select, other {", "\n", "%d", "{", "}"]  # fmt: skip
    for _ in range(500):
        value = "".join(source.choices(pieces, k=source.randrange(1, 12)))
        for java in (False, True):
            message = read_message(value, java=java)
            texts = [segment.text for segment in message.segments]
            assert message.render(texts) == value
            again = message.render([text + "ö" for text in texts])
            found = [segment.text for segment in read_message(again, java=java).segments]
            if "plural" in value and len(texts) == 1 and "<" not in value:
                assert len(found) == 1

"""Formats of lines, compared with Python's json and csv modules."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.record_formats import (
    JsonLinesFormat,
    RecordFormat,
    TextFormat,
    TsvFormat,
)
from translate_trt.runtime.results import TextHypothesis, Translation

JSON = JsonLinesFormat("text", {"translation": lambda found: found.text})
REPLACING = JsonLinesFormat(
    "text", {"translation": lambda found: found.text, "score": lambda found: found.score}, True
)


def translation(text: str) -> Translation:
    return Translation((TextHypothesis(text.upper(), -0.5),))


def rendered(form: RecordFormat, lines: Iterable[str], name: str = "in") -> list[str | None]:
    return [
        record.render(list(map(translation, record.texts))) for record in form.read(lines, name)
    ]


def tsv(column: int | str = 1, header: bool = False, replace: bool = False) -> TsvFormat:
    return TsvFormat(column, header, {"translation": lambda found: found.text}, replace)


def test_text() -> None:
    form = TextFormat(lambda source, found: f"{source}={found.text}")
    assert rendered(form, ["a", "", "\tb"]) == ["a=A", "=", "\tb=\tB"]


# ---- JSON lines ----


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text":"a"}', '{"text":"a", "translation": "A"}'),
        (' { "text" : "a" } ', ' { "text" : "a" , "translation": "A"} '),
        ('{"n":1e400,"text":"ü\\u00fc"}', '{"n":1e400,"text":"ü\\u00fc", "translation": "ÜÜ"}'),
        ('{"text": null}', '{"text": null, "translation": null}'),
        ('{"text": ""}', '{"text": "", "translation": ""}'),
        ('{"text": ["a", null]}', '{"text": ["a", null], "translation": ["A", null]}'),
        ('{"text": []}', '{"text": [], "translation": []}'),
        ('{"text": "a}"}', '{"text": "a}", "translation": "A}"}'),
        ('{"text": 1, "text": "b"}', '{"text": 1, "text": "b", "translation": "B"}'),
        ("", ""),
        (" \t", " \t"),
    ],
    ids=["compact", "spaces", "spelling", "null", "blank", "list", "empty list", "brace", "twice",
         "empty line", "blank line"],
)  # fmt: skip
def test_json_lines_are_extended(line: str, expected: str) -> None:
    assert rendered(JSON, [line]) == [expected]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(5 if depth == 3 else 7)
    if kind == 5:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return random_object(rng, depth + 1)
    return (
        None, rng.random() < 0.5, rng.randrange(10**30), rng.uniform(-1e300, 1e300),
        "".join(rng.choices('a"\\{}[],: \u2028\x00ü😀\ud800', k=rng.randrange(6))),
    )[kind]  # fmt: skip


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = ["a", "translation", "score", 'q"', "}", "", "ü"]
    return {name: random_value(rng, depth) for name in rng.sample(names, rng.randrange(len(names)))}


@pytest.mark.parametrize("seed", range(50))
def test_all_other_fields_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    members = [*random_object(rng).items(), ("text", rng.choice(["x", None, ["x", "y"]]))]
    rng.shuffle(members)
    value = dict(members)
    line = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    (found,) = rendered(REPLACING, [line.replace("\n", rng.choice((" ", "\t ")))])
    of = {"x": ("X", -0.5), "y": ("Y", -0.5)}
    for index, name in enumerate(("translation", "score")):
        text = value["text"]
        one = None if text is None else of["x"][index]
        value[name] = [of[part][index] for part in text] if isinstance(text, list) else one
    assert found is not None
    assert json.loads(found) == value
    assert list(json.loads(found)) == list(value)  # fields that are replaced stay in their place


@pytest.mark.parametrize("number", ["1.10", "-0.0", "1E+2", "9" * 5000, "0.1234567890123456789"])
def test_numbers_are_not_written_anew(number: str) -> None:
    line = f'{{"id": {number}, "text": "a", "translation": {number}, "after": {number}}}'
    (found,) = rendered(REPLACING, [line])
    assert found is not None
    kept = json.loads(found, parse_int=Decimal, parse_float=str)
    assert str(kept["id"]) == str(kept["after"]) == number
    assert kept["translation"] == "A"


def test_lone_surrogates_of_escapes_become_replacement_characters() -> None:
    line = r'{"text": ["Bye \ud83d.", null, "\ud83d\ude00"]}'
    (record,) = JSON.read([line], "in")
    assert record.texts == ["Bye \ufffd.", "\U0001f600"]
    assert rendered(JSON, [line]) == [
        line[:-1] + ', "translation": ["BYE \ufffd.", null, "\U0001f600"]}'
    ]


def test_the_text_itself_may_be_replaced() -> None:
    form = JsonLinesFormat("text", {"text": lambda found: found.text}, replace=True)
    assert rendered(form, ['{"text": "a", "id": 1}']) == ['{"text": "A", "id": 1}']


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1}', r"'text'.*--field"),
        ("{}", "has no field 'text'; it has none"),
        ('{"text": 1}', "the field 'text' is a number; it must be a string, a list of strings"),
        ('{"text": true}', "false"),
        ('{"text": {}}', "is an object"),
        ('{"text": ["a", 1]}', "the field 'text' has a number"),
        ('{"text": [["a"]]}', "has a list"),
        ('["text"]', "is a list, not an object"),
        ("null", "is null, not an object"),
        ('{"text": "a"', r"JSON.*13\)"),
        ('{"text": "a"} {}', r"\(Extra.*15\)"),
        ("{'text': 'a'}", "is not JSON"),
        ("text", r"column 1\).*--input-format"),
        ('{"text": "\t"}', "is not JSON"),
        ('{"text": "a", "translation": null}', r"'translation'.*--output-fie"),
    ],
)
def test_json_lines_that_are_refused(line: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^in, line 3:? .*{message}"):
        rendered(JSON, ['{"text": "a"}', "", line])


def test_names_in_messages_are_harmless_and_short() -> None:
    line = json.dumps({"\x1b[2J": 1, **{f"name{n}": 1 for n in range(999)}})
    with pytest.raises(InputError, match=r"'\\x1b\[2J', 'name0'") as raised:
        rendered(JSON, [line])
    assert len(str(raised.value)) < 500


def test_json_that_is_nested_too_deeply() -> None:
    with pytest.raises(InputError, match=r"line 1.*JSON"):
        rendered(JSON, ["[" * 100_000])


# ---- lines with their translations ----

SCORING = JsonLinesFormat("text", {"s": lambda found: found.text}, given_field="de")


def test_json_lines_with_translations() -> None:
    lines = [
        '{"text": "a", "de": "b"}',
        '{"text": ["a", null, "b", "c"], "de": ["d", "e", null, "f"]}',
        '{"text": null, "de": "b"}',
        '{"text": "a", "de": null}',
        '{"text": [], "de": []}',
        "",
    ]
    records = list(SCORING.read(lines, "in"))
    assert [(list(one.texts), list(one.given)) for one in records] == [
        (["a"], ["b"]), (["a", "c"], ["d", "f"]), ([], []), ([], []), ([], []), ([], []),
    ]  # fmt: skip
    found = [json.loads(line or "{}").get("s") for line in rendered(SCORING, lines)]
    assert found == ["A", ["A", None, None, "C"], None, None, [], None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', r"'text'.*--translation-field"),
        ('{"text": "a", "de": 1}', r"field 'de'.*--translation-field"),
        ('{"text": "a", "de": ["b"]}', r"'text'.*'de'"),
        ('{"text": ["a"], "de": []}', r"list.*1"),
    ],
)
def test_json_lines_without_the_translation(line: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^in, line 1:? .*{message}"):
        rendered(SCORING, [line])


def test_columns_with_translations() -> None:
    form = TsvFormat("en", True, {"s": lambda found: found.text}, given_column="de")
    records = list(form.read(["de\tid\ten", "b\t1\ta"], "in"))
    assert [(list(one.texts), list(one.given)) for one in records] == [([], []), (["a"], ["b"])]
    missing = TsvFormat(1, False, {}, given_column=3)
    with pytest.raises(InputError, match=r"column 3.*--translation-column"):
        list(missing.read(["a\tb"], "in"))


# ---- TSV ----


def rows(lines: Iterable[str | None]) -> list[list[str]]:
    text = "".join(f"{line}\n" for line in lines if line is not None)
    return list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))


def test_columns() -> None:
    lines = ['1\ta "b\t', "2\t\tx", "", '"3\tc\t\\t']
    assert rows(rendered(tsv(2), lines)) == [
        ["1", 'a "b', "", 'A "B'],
        ["2", "", "x", ""],
        [],
        ['"3', "c", "\\t", "C"],
    ]
    assert rendered(tsv(1), ["a", "", "b"]) == ["a\tA", "", "b\tB"]


def test_columns_by_name() -> None:
    lines = ["id\ttext", "1\ta"]
    for column in ("text", 2):
        form = tsv(column, header=True)
        assert rendered(form, lines) == ["id\ttext\ttranslation", "1\ta\tA"]
        assert rendered(form, [*lines, "2\tb"], "second") == [None, "1\ta\tA", "2\tb\tB"]
        assert rendered(form, [], "empty") == []


def test_a_column_that_is_replaced() -> None:
    form = tsv("text", header=True, replace=True)
    assert rendered(form, ["translation\ttext", "x\ta"]) == ["translation\ttext", "A\ta"]
    in_place = TsvFormat("a", True, {"a": lambda found: found.text, "b": str}, replace=True)
    lines = rendered(in_place, ["a", "x"])
    assert lines[0] == "a\tb"
    assert str(lines[1]).startswith("X\tTranslation(")


@pytest.mark.parametrize(
    ("form", "lines", "message"),
    [
        (tsv(3), ["a\tb"], r"line 1.*columns"),
        (tsv(2), ["a\tb", "", "c"], r"line 3.*columns"),
        (tsv(2), ["a\tb", "c\td\te"], r"line 2.*columns"),
        (tsv("x", True), ["a\tb"], r"column 'x'.*'a', 'b'"),
        (tsv("a", True), ["a\ta"], r"line 1.*columns 'a'"),
        (tsv("a", True), ["a\ttranslation"], r"'translation'.*--repl"),
        (tsv(1, True), ["a\tb", "c"], r"line 2.*column"),
    ],
    ids=["number", "missing", "too many", "name", "ambiguous", "exists", "after header"],
)
def test_columns_that_are_refused(form: TsvFormat, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rendered(form, lines)


@pytest.mark.parametrize(
    ("header", "second", "message"),
    [
        (True, ["b\ta", "1\t2"], "second, line 1: the header is not that of the first input"),
        (False, ["1"], "second, line 1 has 1 column, but the first row has 2"),
    ],
    ids=["other header", "other number of columns"],
)
def test_inputs_with_other_columns(header: bool, second: list[str], message: str) -> None:
    form = tsv(1, header)
    rendered(form, ["a\tb", "1\t2"])
    with pytest.raises(InputError, match=message):
        rendered(form, second, "second")

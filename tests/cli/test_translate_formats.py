"""`translate` with JSON lines, TSV and compressed files, read by other programs' libraries."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]

JSONL = ("--input-format", "jsonl")
TSV = ("--input-format", "tsv")


def objects(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def table(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return list(csv.reader(io.StringIO(result.stdout), delimiter="\t", quoting=csv.QUOTE_NONE))


# ---- JSON lines ----


def test_what_is_added_to_json_lines(translate: Run) -> None:
    line = b'{"s": ["a b", null, ""]}\n'
    flags = (*JSONL, "--field", "s", "--output-field", "de", "--scores", "--n-best", 2)
    (found,) = objects(translate(*flags, stdin=line))
    assert list(found) == ["s", "de", "de_score", "de_hypotheses"]
    assert found["de"] == ["b a", None, ""]
    assert found["de_score"] == [0.0, None, 0.0]
    hypotheses = found["de_hypotheses"]
    assert [one["text"] for one in hypotheses[0]] == ["b a", "b a #1"]
    assert hypotheses[1] is None
    # The objects of --json.
    (plain,) = objects(translate("--n-best", 2, stdin=b"a b\n"))
    assert hypotheses[0] == plain["hypotheses"]


def test_texts_of_lists_are_translated_together(
    translate: Run, fake_translator: Any, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("A\nB\nC\n")
    lines = b'{"text": ["a", null, "b"]}\n{"text": []}\n{"text": "c"}\n'
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 3)
    (tmp_path / "in").write_bytes(lines)
    found = objects(translate(*JSONL, tmp_path / "in", *flags))
    assert [one["translation"] for one in found] == [["a", None, "b"], [], "c"]
    call = fake_translator.calls[-1]
    assert (call["lines"], call["prefixes"]) == (["a", "b", "c"], ["A", "A", "C"])
    assert call["names"] == [f"{tmp_path / 'in'}, line {number}" for number in (1, 1, 3)]


def test_constraints_of_json_lines(translate: Run, fake_translator: Any, tmp_path: Path) -> None:
    lines = (
        b'{"text": "a", "must": ["A", "B b"]}\n\n{"text": "b", "must": null}\n'
        b'{"text": ["c", null, "d"], "must": [["C"], null, []]}\n'
    )
    (tmp_path / "in").write_bytes(lines)
    assert translate(*JSONL, "--constraints-field", "must", tmp_path / "in").exit_code == 0
    given = [own for call in fake_translator.calls for own in call["constraints"]]
    assert given == [["A", "B b"], [], ["C"], []]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', "--constraints-field"),
        ('{"text": "a", "must": "A"}', "line 2: the field 'must' is a string; it must be a list"),
        ('{"text": "a", "must": [["A"]]}', "the field 'must' has a list among the phrases of a"),
        ('{"text": "a", "must": ["A", 1]}', "the field 'must' has a number among the phrases"),
        ('{"text": ["a", "b"], "must": ["A"]}', "'text'"),
        ('{"text": ["a"], "must": ["A"]}', "the field 'must' is a string; it must be a list of"),
    ],
)
def test_fields_that_are_no_constraints(translate: Run, line: str, message: str) -> None:
    lines = '{"text": "a", "must": []}\n' + line
    result = translate(*JSONL, "--constraints-field", "must", stdin=lines.encode())
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


# ---- TSV ----


def test_what_is_added_to_tsv(translate: Run) -> None:
    flags = (*TSV, "--column", "en", "--header", "--output-field", "de", "--scores")
    rows = b"id\ten\n7\ta b\n8\t\n"
    header, first, second = table(translate(*flags, "--n-best", 2, stdin=rows))
    assert header == ["id", "en", "de", "de_score", "de_2", "de_2_score"]
    assert first == ["7", "a b", "b a", "0.000000", "b a #1", "-1.000000"]
    assert second[:4] == ["8", "", "", "0.000000"]
    assert table(translate(*flags, stdin=rows))[0] == ["id", "en", "de", "de_score"]


def test_prefixes_count_the_header(translate: Run, tmp_path: Path, fake_translator: Any) -> None:
    (tmp_path / "prefixes").write_text("header\nA\n")
    flags = (*TSV, "--column", 1, "--header", "--target-prefix", tmp_path / "prefixes")
    assert translate(*flags, stdin=b"text\na\n").exit_code == 0
    assert [call["prefixes"] for call in fake_translator.calls] == [["A"]]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--field", "x"], "--field"),
        ([*JSONL, "--column", "1"], "--column"),
        ([*TSV, "--constraints-field", "x", "--column", "1"], "--constraints-field"),
        ([*TSV], "--column"),
        ([*TSV, "--column", "0"], "--column"),
        ([*TSV, "--column", "x"], "--header"),
        ([*TSV, "--column", "1", "--attention"], "--input-format"),
        ([*JSONL, "--output-field", "a\tb"], "--output-field"),
    ],
)
def test_flags_that_do_not_fit(
    translate: Run, flags: list[str], named: str, fake_translator: Any
) -> None:
    result = translate(*flags, stdin=b"a\n")
    assert result.exit_code == 2
    assert not fake_translator.made
    assert named in result.stderr


# ---- alignments ----


def test_alignments_in_every_format(translate: Run) -> None:
    assert translate("--alignments", stdin=b"a b c\n\n").stdout == "c b a\t0-2 1-1 2-0\n\t\n"
    # A tab of the text is not one between columns.
    scored = translate("--alignments", "--scores", stdin=b"a b\tc\n")
    assert scored.stdout == "0.000000\tb a c\t0-2 1-1 2-0\n"
    (found,) = objects(translate("--alignments", "--json", stdin=b"a b\n"))
    assert [one["alignments"] for one in found["hypotheses"]] == ["0-1 1-0"]
    (found,) = objects(translate("--alignments", *JSONL, stdin=b'{"text": ["a b", "c"]}\n'))
    assert found["translation"] == ["b a", "c"]
    assert found["translation_alignments"] == ["0-1 1-0", "0-0"]
    assert table(
        translate("--alignments", *TSV, "--column", 1, "--n-best", 2, stdin=b"a b\tx\n")
    ) == [["a b", "x", "b a", "0-1 1-0", "b a #1", "0-1 1-0"]]


def test_a_threshold_asks_for_alignments(translate: Run) -> None:
    assert translate("--alignment-threshold", 0.5, stdin=b"a b\n").stdout == "b a\t0-1 1-0\n"
    failed = translate("--alignment-threshold", 1.5, stdin=b"a b\n")
    assert failed.exit_code == 2
    assert "number" in failed.stderr


# ---- documents ----

DOCUMENT = "# A title\r\n\r\n\tTwo words\nline"
REVERSED = "title A #\r\n\r\n\twords Two\nline"


def test_documents_are_read_and_written_as_they_are(
    translate: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, output = tmp_path / "given.md", tmp_path / "output.md"
    given.write_bytes(b"\xef\xbb\xbf" + DOCUMENT.encode())
    assert translate("--document", given, "--output", output).exit_code == 0
    assert output.read_bytes().decode() == REVERSED
    zipped = translate("--document", stdin=gzip.compress(DOCUMENT.encode()))
    assert zipped.stdout_bytes == REVERSED.encode()
    assert translate("--document", given, given).stdout_bytes == REVERSED.encode() * 2
    assert translate("--document", stdin=b"").stdout_bytes == b""
    assert not caplog.records
    assert translate("--document", stdin=b"a \xff b\n").stdout == "b \ufffd a\n"
    assert "UTF-8" in caplog.text


def test_documents_as_json(translate: Run) -> None:
    (found,) = objects(translate("--document", "--json", stdin=DOCUMENT.encode()))
    assert (found["source"], found["hypotheses"][0]["text"]) == (DOCUMENT, REVERSED)
    lines = json.dumps({"text": DOCUMENT, "id": 7}).encode() + b"\n\n"
    first, blank = translate("--document", *JSONL, "--scores", stdin=lines).stdout.splitlines()
    assert json.loads(first) == {
        "text": DOCUMENT, "id": 7, "translation": REVERSED, "translation_score": 0.0,
    }  # fmt: skip
    assert blank == ""


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("xml", b"<?xml version='1.0' encoding='ISO-8859-1'?>\n<d>a</d>"),
        ("html", b"<html><head><meta charset=ISO-8859-1></head>a</html>"),
        ("html", b"<META http-equiv=x content='text/html; charset=ISO-8859-1'>a"),
    ],
    ids=["xml", "html", "html 4"],
)
def test_documents_in_another_encoding_are_refused(
    translate: Run, markup: str, text: bytes
) -> None:
    refused = translate("--markup", markup, "--document", stdin=text)
    assert refused.exit_code != 0
    assert "ISO-8859-1" in refused.stderr
    accepted = translate(
        "--markup", markup, "--document", stdin=text.replace(b"ISO-8859-1", b"utf-8")
    )
    assert accepted.exit_code == 0, accepted.stderr


# ---- files whose names tell their format ----


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("a.jsonl", JSONL),
        ("a.tsv.gz", (*TSV, "--column", "1")),
        ("a.HTML", ("--markup", "html")),
        ("a.md", ("--document",)),
    ],
)
def test_a_format_that_flags_read_is_named(
    translate: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    flags: tuple[str, ...],
) -> None:
    path = tmp_path / name
    content = b'{"text": "a"}\n'
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert translate(path, path).exit_code == 0
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert name in warning
    assert " ".join(flags[:2]) in warning
    caplog.clear()
    translate(path, *flags)
    assert translate(path, "--input-format", "text").exit_code == 0
    assert not [one for one in caplog.records if name in one.getMessage()]


@pytest.mark.parametrize("name", ["a.xlf", "a.po", "a.csv", "a.pdf"])
def test_a_format_that_translation_would_damage_is_refused(
    translate: Run, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text("a b\n")
    result = translate(path, "--markup", "xml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert name in result.stderr
    assert ("translate-file" in result.stderr) is (name != "a.csv")
    assert translate(path, "--input-format", "text").stdout == "b a\n"

"""`translate` with JSON lines, TSV and compressed files, read by other programs' libraries."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.cli.format_flags import FormatFlags
from translate_trt.runtime.cli.translate import translate as command

JSONL = ("--input-format", "jsonl")
TSV = ("--input-format", "tsv")


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle()


@pytest.fixture
def run(bundle: Path, fake_translator: Any) -> Callable[..., Result]:
    def run(*arguments: object, stdin: bytes = b"") -> Result:
        flags = ["translate", "--bundle", str(bundle), *map(str, arguments)]
        return CliRunner().invoke(main, flags, input=stdin)

    return run


def objects(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def table(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return list(csv.reader(io.StringIO(result.stdout), delimiter="\t", quoting=csv.QUOTE_NONE))


# ---- JSON lines ----

LINES = b'{"id": 7, "text": "a b", "tags": ["x"]}\n\n{"id": 12345678901234567890, "text": null}\n'


def test_json_lines(run: Callable[..., Result]) -> None:
    result = run(*JSONL, stdin=LINES)
    assert result.exit_code == 0, result.output
    first, blank, second = result.stdout.splitlines()
    assert json.loads(first) == {"id": 7, "text": "a b", "tags": ["x"], "translation": "b a"}
    assert blank == ""
    assert second == '{"id": 12345678901234567890, "text": null, "translation": null}'


def test_what_is_added_to_json_lines(run: Callable[..., Result]) -> None:
    line = b'{"s": ["a b", null, ""]}\n'
    flags = (*JSONL, "--field", "s", "--output-field", "de", "--scores", "--n-best", 2)
    (found,) = objects(run(*flags, stdin=line))
    assert list(found) == ["s", "de", "de_score", "de_hypotheses"]
    assert found["de"] == ["b a", None, ""]
    assert found["de_score"] == [0.0, None, 0.0]
    hypotheses = found["de_hypotheses"]
    assert [one["text"] for one in hypotheses[0]] == ["b a", "b a #1"]
    assert hypotheses[1] is None
    # The objects of --json.
    (plain,) = objects(run("--n-best", 2, stdin=b"a b\n"))
    assert hypotheses[0] == plain["hypotheses"]
    (attention,) = objects(run(*JSONL, "--attention", stdin=b'{"text": "a"}\n'))
    assert attention["translation_hypotheses"][0]["attention"] == [[[1.0, 0.0], [0.0, 1.0]]]


def test_texts_of_lists_are_translated_together(
    run: Callable[..., Result], fake_translator: Any, tmp_path: Path
) -> None:
    (tmp_path / "prefixes").write_text("A\nB\nC\n")
    lines = b'{"text": ["a", null, "b"]}\n{"text": []}\n{"text": "c"}\n'
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 3)
    (tmp_path / "in").write_bytes(lines)
    found = objects(run(*JSONL, tmp_path / "in", *flags))
    assert [one["translation"] for one in found] == [["a", None, "b"], [], "c"]
    (texts, _, prefixes) = fake_translator.calls[-1]
    assert (texts, prefixes) == (["a", "b", "c"], ["A", "A", "C"])


def test_constraints_of_json_lines(
    run: Callable[..., Result], fake_translator: Any, tmp_path: Path
) -> None:
    lines = (
        b'{"text": "a", "must": ["A", "B b"]}\n\n{"text": "b", "must": null}\n'
        b'{"text": ["c", null, "d"], "must": [["C"], null, []]}\n'
        b'{"text": ["e"], "must": null}\n{"text": null, "must": ["F"]}\n'
    )
    before = len(fake_translator.constraints)
    found = objects(run(*JSONL, "--constraints-field", "must", stdin=lines.replace(b"\n\n", b"\n")))
    assert [one["translation"] for one in found] == ["a", "b", ["c", None, "d"], ["e"], None]
    assert all("must" in one for one in found)
    (tmp_path / "in").write_bytes(lines)
    assert run(*JSONL, "--constraints-field", "must", tmp_path / "in").exit_code == 0
    given = [own for call in fake_translator.constraints[before:] for own in call]
    assert given == [["A", "B b"], [], ["C"], [], []] * 2


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
def test_fields_that_are_no_constraints(
    run: Callable[..., Result], line: str, message: str
) -> None:
    lines = '{"text": "a", "must": []}\n' + line
    result = run(*JSONL, "--constraints-field", "must", stdin=lines.encode())
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_what_a_field_of_constraints_goes_with(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "phrases").write_text("A\n")
    for flags, message in (
        ((), "--constraints-field is given, but --input-format is text; it must be"),
        ((*TSV, "--column", 1), "--constraints-field is given, but --input-format is tsv"),
        ((*JSONL, "--constraints", tmp_path / "phrases"), "them out"),
        ((*JSONL, "--document"), "--constraints-field and --document"),
        ((*JSONL, "--markup", "html"), "--markup and --constraints-field"),
    ):
        result = run("--constraints-field", "must", *flags, stdin=b"{}\n")
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_long_texts_are_told_with_their_line(run: Callable[..., Result]) -> None:
    lines = b'{"text": ["a", "b"]}\n{"text": ["a", "' + b"word " * 33 + b'"]}\n'
    result = run(*JSONL, stdin=lines)
    assert "line 2" in result.stderr


# ---- TSV ----


def test_tsv(run: Callable[..., Result]) -> None:
    result = run(*TSV, "--column", 2, stdin=b'7\ta b\t"x\r\n8\t\ty\n')
    assert table(result) == [["7", "a b", '"x', "b a"], ["8", "", "y", ""]]


def test_what_is_added_to_tsv(run: Callable[..., Result]) -> None:
    flags = (*TSV, "--column", "en", "--header", "--output-field", "de", "--scores")
    rows = b"id\ten\n7\ta b\n8\t\n"
    header, first, second = table(run(*flags, "--n-best", 2, stdin=rows))
    assert header == ["id", "en", "de", "de_score", "de_2", "de_2_score"]
    assert first == ["7", "a b", "b a", "0.000000", "b a #1", "-1.000000"]
    assert second[:4] == ["8", "", "", "0.000000"]
    assert table(run(*flags, stdin=rows))[0] == ["id", "en", "de", "de_score"]


def test_prefixes_count_the_header(
    run: Callable[..., Result], tmp_path: Path, fake_translator: Any
) -> None:
    (tmp_path / "prefixes").write_text("header\nA\n")
    flags = (*TSV, "--column", 1, "--header", "--target-prefix", tmp_path / "prefixes")
    assert run(*flags, stdin=b"text\na\n").exit_code == 0
    assert [prefixes for *_, prefixes in fake_translator.calls] == [["A"]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--field", "x"], "--field is given, but --input-format is text; it must be jsonl"),
        (["--header"], r"--header.*--input-format"),
        (["--replace-field"], "jsonl"),
        ([*JSONL, "--column", "1"], r"--column.*--input-format"),
        ([*TSV, "--field", "x", "--column", "1"], "--field is given, but --input-format is tsv"),
        ([*TSV], "--column is missing"),
        ([*TSV, "--column", "0"], "--column is missing"),
        ([*TSV, "--column", "x"], r"--column.*--header"),
        ([*TSV, "--column", "1", "--json"], "--input-format"),
        ([*TSV, "--column", "1", "--attention"], "--input-format"),
        ([*JSONL, "--output-field", "a\tb"], "--output-field"),
        (["--input-format", "csv"], "'text', 'jsonl'"),
    ],
)
def test_flags_that_do_not_fit(
    run: Callable[..., Result], flags: list[str], message: str, fake_translator: Any
) -> None:
    result = run(*flags, stdin=b"a\n")
    assert result.exit_code == 2
    assert not fake_translator.made
    assert re.search(message, result.stderr)


def test_every_value_has_a_flag() -> None:
    parameters = {parameter.name for parameter in command.params}
    assert {field.name for field in dataclasses.fields(FormatFlags)} <= parameters


# ---- pipes ----


# ---- compression ----


def unpack(path: Path) -> bytes:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    with pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd") as stream:
        content: bytes = stream.read()
    return content


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_outputs_are_compressed_inputs(
    run: Callable[..., Result], tmp_path: Path, suffix: str
) -> None:
    source = b"".join(b"%d b c\n" % n for n in range(500))
    out, again, back = tmp_path / f"out{suffix}", tmp_path / f"again{suffix}", tmp_path / "back"
    assert run("--output", out, "--chunk-lines", 7, stdin=source).exit_code == 0
    assert run("--output", again, stdin=source).exit_code == 0
    assert out.read_bytes() == again.read_bytes()
    assert unpack(out).splitlines()[-1] == b"c b 499"
    assert run(out, "--output", back).exit_code == 0
    assert back.read_bytes() == source
    empty = run("--output", out, "--force", stdin=b"")
    assert empty.exit_code == 0
    assert unpack(out) == b""
    assert run(out).stdout_bytes == b""
    assert sorted(path.name for path in tmp_path.glob("out*")) == [out.name]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_lines_of_an_interrupted_run_are_kept(
    run: Callable[..., Result], tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "in").write_bytes(b'{"text": "a b"}\n' * 9 + b"x\n")
    flags = (*JSONL, "--output", tmp_path / f"out{suffix}", "--chunk-lines", 2)
    result = run(tmp_path / "in", *flags)
    assert result.exit_code == 1
    (partial,) = tmp_path.glob(f"out{suffix}.*.partial")
    assert str(partial) in result.stderr
    left = partial.rename(tmp_path / f"left{suffix}")
    assert unpack(left) == b'{"text": "a b", "translation": "b a"}\n' * 8


# ---- alignments ----


def test_alignments_in_every_format(run: Callable[..., Result]) -> None:
    assert run("--alignments", stdin=b"a b c\n\n").stdout == "c b a\t0-2 1-1 2-0\n\t\n"
    scored = run("--alignments", "--scores", stdin=b"a b\n")
    assert scored.stdout == "0.000000\tb a\t0-1 1-0\n"
    (found,) = objects(run("--alignments", "--json", stdin=b"a b\n"))
    assert [one["alignments"] for one in found["hypotheses"]] == ["0-1 1-0"]
    (found,) = objects(run("--alignments", *JSONL, stdin=b'{"text": ["a b", "c"]}\n'))
    assert found["translation"] == ["b a", "c"]
    assert found["translation_alignments"] == ["0-1 1-0", "0-0"]
    assert table(run("--alignments", *TSV, "--column", 1, "--n-best", 2, stdin=b"a b\tx\n")) == [
        ["a b", "x", "b a", "0-1 1-0", "b a #1", "0-1 1-0"]
    ]
    pytest.importorskip("sentencex")
    split = run("--alignments", "--split-language", "en", stdin=b" One two.  Three four.\n")
    assert split.stdout == " two. One  four. Three\t0-3 1-2 2-1 3-0\n"
    split = run("--alignments", "--split-language", "en", stdin=b"One two.\tThree four.\n")
    assert split.stdout == "two. One four. Three\t0-3 1-2 2-1 3-0\n"


def test_a_threshold_asks_for_alignments(run: Callable[..., Result]) -> None:
    assert run("--alignment-threshold", 0.5, stdin=b"a b\n").stdout == "b a\t0-1 1-0\n"
    failed = run("--alignment-threshold", 1.5, stdin=b"a b\n")
    assert failed.exit_code == 2
    assert "number" in failed.stderr


# ---- markup ----


def test_markup_of_lines(run: Callable[..., Result]) -> None:
    html = run("--markup", "html", stdin=b"Go <b>on &amp; up</b> now\n\n<br>\n")
    assert html.stdout == "Go <b>up &amp; on</b> now\n\n<br>\n"
    xml = run("--markup", "xml", "--scores", stdin=b'a <x id="1"/> b\n')
    assert xml.stdout == '0.000000\ta <x id="1"/> b\n'
    (found,) = objects(run("--markup", "text", *JSONL, stdin=b'{"text": ["Hi {0}", ""]}\n'))
    assert found["translation"] == ["{0} Hi", ""]


def test_markup_of_documents(run: Callable[..., Result], tmp_path: Path) -> None:
    page = "<p>One two</p>\r\n <ul><li>three <i>four</i>\n five</ul>\n"
    (tmp_path / "page.html").write_text(page, newline="")
    found = run("--markup", "html", "--document", tmp_path / "page.html")
    assert found.stdout_bytes.decode() == (
        "<p>two One</p>\r\n <ul><li>three <i>four</i>\n five</ul>\n"
    )


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
    run: Callable[..., Result], markup: str, text: bytes
) -> None:
    refused = run("--markup", markup, "--document", stdin=text)
    assert refused.exit_code != 0
    assert "ISO-8859-1" in refused.stderr
    accepted = run("--markup", markup, "--document", stdin=text.replace(b"ISO-8859-1", b"utf-8"))
    assert accepted.exit_code == 0, accepted.stderr


@pytest.mark.parametrize(
    "flags", [("--alignments",), ("--document", "--unwrap"), ("--target-prefix", "prefix")]
)
def test_markup_goes_without(run: Callable[..., Result], flags: tuple[str, ...]) -> None:
    failed = run("--markup", "html", *flags, stdin=b"a\n")
    assert failed.exit_code in (1, 2)
    assert "--markup" in failed.stderr or "prefix" in failed.stderr


# ---- files whose names tell their format ----


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("a.jsonl", JSONL), ("a.tsv.gz", (*TSV, "--column", "1")), ("a.HTML", ("--markup", "html")),
        ("a.xml", ("--markup", "xml", "--document")), ("a.md", ("--document",)),
        ("a.srt", ("--document",)),
    ],
)  # fmt: skip
def test_a_format_that_flags_read_is_named(
    run: Callable[..., Result],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    flags: tuple[str, ...],
) -> None:
    path = tmp_path / name
    content = b'{"text": "a"}\n'
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert run(path, path).exit_code == 0
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert name in warning
    assert " ".join(flags[:2]) in warning
    caplog.clear()
    run(path, *flags)
    assert run(path, "--input-format", "text").exit_code == 0
    assert not [one for one in caplog.records if name in one.getMessage()]


@pytest.mark.parametrize("name", ["a.xlf", "a.po"])
def test_a_format_that_translation_would_damage_is_refused(
    run: Callable[..., Result], tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text("a b\n")
    result = run(path, "--markup", "xml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert name in result.stderr
    assert run(path, "--input-format", "text").stdout == "b a\n"

"""`translate-trt translate` of lines split into sentences, and of documents."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

pytest.importorskip("sentencex")
pytest.importorskip("langcodes")

Run = Callable[..., Result]


@pytest.fixture
def run(make_bundle: Callable[..., Path], fake_translator: Any) -> Run:
    bundle = make_bundle()

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        flags = ["translate", "--bundle", str(bundle), *map(str, arguments)]
        return CliRunner().invoke(main, flags, input=stdin)

    return run


def test_lines_are_split_on_request(run: Run, fake_translator: Any) -> None:
    lines = b"One two. Three four!  Five six?\n\n  \n\tSeven eight\n"
    found = run("--split-sentences", stdin=lines)
    assert found.stdout == "two. One four! Three  six? Five\n\n  \n\teight Seven\n"
    assert run(stdin=b"One two. Three.\n").stdout == "Three. two. One\n"
    assert run("--split-language", "de", stdin=b"Am 3. Oktober. Ja.\n").stdout == (
        "Oktober. 3. Am Ja.\n"
    )
    assert fake_translator.splits == [True, False, "de"]


def test_json_has_all_sentences_of_a_line(run: Run) -> None:
    found = run("--split-sentences", "--n-best", 2, stdin=b"One two. Three four.\n")
    (line,) = map(json.loads, found.stdout.splitlines())
    assert line["source"] == "One two. Three four."
    assert [one["text"] for one in line["hypotheses"]] == [
        "two. One four. Three", "two. One #1 four. Three #1"
    ]  # fmt: skip
    assert [one["score"] for one in line["hypotheses"]] == [0, -2]


def test_only_sentences_that_are_too_long_are_reported(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="translate_trt"):
        run("--split-sentences", stdin=b"One. Two. Three. Four.\n")
        assert "longer than the model" not in caplog.text
        run("--split-sentences", stdin=b"One. " + b"word " * 1000 + b"\n")
    assert "line 1" in caplog.text


DOCUMENT = "# A title\r\n\r\n- One two.  Three four.\r\n***\r\n\r\n\tA last\r\nline"
TRANSLATED = "# title A\r\n\r\n- two. One  four. Three\r\n***\r\n\r\n\tlast A\r\nline"


def test_documents_keep_their_structure(run: Run, tmp_path: Path) -> None:
    given, output = tmp_path / "given.md", tmp_path / "output.md"
    given.write_bytes(b"\xef\xbb\xbf" + DOCUMENT.encode())
    assert run("--document", given, "--output", output).exit_code == 0
    assert output.read_bytes().decode() == TRANSLATED
    assert run("--document", stdin=gzip.compress(DOCUMENT.encode())).stdout_bytes == (
        TRANSLATED.encode()
    )
    assert run("--document", given, given).stdout_bytes == TRANSLATED.encode() * 2
    assert run("--document", stdin=b"").stdout_bytes == b""
    unwrapped = run("--document", "--unwrap", given)
    assert unwrapped.stdout_bytes.decode() == TRANSLATED.replace("last A\r\nline", "line last A")


def test_a_document_is_one_json_object(run: Run) -> None:
    found = run("--document", "--json", stdin=DOCUMENT.encode())
    (line,) = map(json.loads, found.stdout.splitlines())
    assert line["source"] == DOCUMENT
    assert line["hypotheses"][0]["text"] == TRANSLATED


def test_bad_bytes_of_a_document_are_reported(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="translate_trt"):
        assert run("--document", stdin=b"a \xff b\n").stdout == "b \ufffd a\n"
    assert "UTF-8" in caplog.text


def test_documents_in_json_lines(run: Run) -> None:
    lines = b'{"text": "One two.\\n\\n- Three four. Five", "id": 7}\n\n{"text": null}\n'
    found = run("--document", "--input-format", "jsonl", "--scores", stdin=lines)
    first, blank, none = found.stdout.splitlines()
    assert json.loads(first) == {
        "text": "One two.\n\n- Three four. Five",
        "id": 7,
        "translation": "two. One\n\n- four. Three Five",
        "translation_score": 0.0,
    }
    assert (blank, json.loads(none)["translation"]) == ("", None)
    # Without --document a text is a line, and has no line ends.
    found = run("--split-sentences", "--input-format", "jsonl", stdin=lines)
    assert json.loads(found.stdout.splitlines()[0])["translation"] == "two. One  four. Three - Five"


@pytest.mark.parametrize(
    "flags",
    [
        ["--document", "--scores"],
        ["--document", "--target-prefix", __file__],
        ["--document", "--input-format", "tsv", "--column", "1"],
        ["--unwrap"],
    ],
)
def test_flags_that_do_not_go_together(run: Run, flags: list[str]) -> None:
    found = run(*flags, stdin=b"a")
    assert found.exit_code == 2
    assert flags[0] in found.stderr

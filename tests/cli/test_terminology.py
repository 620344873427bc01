"""`translate --terminology` around a fake translator, and `translate-trt terminology`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main


@pytest.fixture
def glossary(tmp_path: Path) -> Path:
    path = tmp_path / "glossary.tsv"
    path.write_text("# source\ttarget\none\tone\ntwo\tzwei\tdeux\n", encoding="utf-8")
    return path


LINES = b"one two\n\nOne\nthree\n"


def test_the_recall_is_printed(translate: Callable[..., Result], glossary: Path) -> None:
    done = translate("--terminology", glossary, stdin=LINES)
    assert done.exit_code == 0, done.output
    assert done.stdout == "two one\n\nOne\nthree\n"
    assert "1 of 2" in done.stderr
    flags = ("--terminology", glossary, "--terminology-ignore-case", "--chunk-lines", 1)
    assert "2 of 3" in translate(*flags, stdin=LINES).stderr
    assert translate(*flags, "--quiet", stdin=LINES).stderr == ""


def test_json_has_the_terms_of_every_hypothesis(
    translate: Callable[..., Result], glossary: Path
) -> None:
    done = translate("--terminology", glossary, "--json", "--n-best", 2, stdin=LINES)
    first, blank, _, last = map(json.loads, done.stdout.splitlines())
    assert [one["terms"] for one in first["hypotheses"]] == [
        [
            {"source": "one", "targets": ["one"], "found": True},
            {"source": "two", "targets": ["zwei", "deux"], "found": False},
        ]
    ] * 2
    assert blank["hypotheses"][0]["terms"] == last["hypotheses"][0]["terms"] == []


def test_recall_of_any_translations(tmp_path: Path, glossary: Path) -> None:
    source, translation = tmp_path / "text.en", tmp_path / "text.de"
    source.write_text("one two\ntwo, two\nthree\n")
    translation.write_text("one deux\nzwei\nONE\n")

    def invoke(*flags: object) -> Result:
        files = (glossary, "--source", source, "--translation", translation)
        return CliRunner().invoke(main, ["terminology", *map(str, (*files, *flags))])

    assert invoke().stdout == (
        "3 of 4 terms in the translations (75.0 %)\n"
        "term  target phrases  missing\n"
        "two   zwei | deux     1 of 3\n"
    )
    value = json.loads(invoke("--json").stdout)
    assert value == {
        "lines": 3, "terms": 4, "found": 3, "recall": 0.75,
        "entries": [
            {"source": "two", "targets": ["zwei", "deux"], "terms": 3, "found": 2},
            {"source": "one", "targets": ["one"], "terms": 1, "found": 1},
        ],
    }  # fmt: skip
    assert invoke("--missed", 0).stdout.count("\n") == 1
    translation.write_text("one\n")
    assert "lines" in invoke().stderr

"""`translate --terminology` around a fake translator, and `translate-trt terminology`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main


@pytest.fixture
def glossary(tmp_path: Path) -> Path:
    path = tmp_path / "glossary.tsv"
    path.write_text("# source\ttarget\none\tone\ntwo\tzwei\tdeux\n", encoding="utf-8")
    return path


def invoke(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), input=stdin.encode())


@pytest.fixture
def translate(
    make_bundle: Callable[..., Path], fake_translator: Any, glossary: Path
) -> Callable[..., Result]:
    bundle = make_bundle()

    def run(*flags: object, stdin: str = "one two\n\nOne\nthree\n") -> Result:
        return invoke("translate", "--bundle", bundle, "--terminology", glossary, *flags,
                      stdin=stdin)  # fmt: skip

    return run


def test_the_recall_is_printed(translate: Callable[..., Result]) -> None:
    done = translate()
    assert done.exit_code == 0, done.output
    assert done.stdout == "two one\n\nOne\nthree\n"
    assert "1 of 2" in done.stderr
    done = translate("--terminology-ignore-case", "--chunk-lines", 1)
    assert "2 of 3" in done.stderr
    assert translate("--quiet").stderr == ""


def test_json_has_the_terms_of_every_hypothesis(translate: Callable[..., Result]) -> None:
    done = translate("--json", "--n-best", 2)
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
    arguments = ("terminology", glossary, "--source", source, "--translation", translation)
    assert invoke(*arguments).stdout == (
        "3 of 4 terms in the translations (75.0 %)\n"
        "term  target phrases  missing\n"
        "two   zwei | deux     1 of 3\n"
    )
    value = json.loads(invoke(*arguments, "--json").stdout)
    assert value == {
        "lines": 3, "terms": 4, "found": 3, "recall": 0.75,
        "entries": [
            {"source": "two", "targets": ["zwei", "deux"], "terms": 3, "found": 2},
            {"source": "one", "targets": ["one"], "terms": 1, "found": 1},
        ],
    }  # fmt: skip
    assert invoke(*arguments, "--missed", 0).stdout.count("\n") == 1
    translation.write_text("one\n")
    assert "lines" in invoke(*arguments).stderr

"""`translate-trt score` on a real bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.cli import main

LINES = ["the cat runs.", "a dog eats green", "", "Haus Hund läuft."]
TRANSLATIONS = ["Hund the cat.", "a", "", ""]


@pytest.fixture
def run(compiled_bundle: Path, tmp_path: Path) -> Callable[..., Result]:
    def run(lines: list[str], translations: list[str], *flags: object) -> Result:
        paths = tmp_path / "text.en", tmp_path / "text.de"
        for path, text in zip(paths, (lines, translations), strict=True):
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        arguments = ["score", "--bundle", compiled_bundle, *paths, "--threads", 1, *flags]
        return CliRunner().invoke(main, [str(one) for one in arguments])

    return run


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, threads=1)


def test_a_score_per_line(run: Callable[..., Result], translator: Translator) -> None:
    expected = [one.score for one in translator.score(LINES, TRANSLATIONS)]
    for flags in ((), ("--chunk-lines", 3), ("--workers", 2)):
        found = run(LINES, TRANSLATIONS, *flags)
        assert found.exit_code == 0, found.output
        assert [float(line) for line in found.stdout.splitlines()] == pytest.approx(
            expected, abs=1e-4
        )
    sums = run(LINES, TRANSLATIONS, "--length-penalty", 0)
    without = translator.score(LINES, TRANSLATIONS, SearchOptions(length_penalty=0.0))
    assert [float(line) for line in sums.stdout.splitlines()] == pytest.approx(
        [sum(one.token_log_probs) for one in without], abs=1e-4
    )


def test_json(run: Callable[..., Result], translator: Translator) -> None:
    found = run(LINES[:2], TRANSLATIONS[:2], "--attention")
    entries = [json.loads(line) for line in found.stdout.splitlines()]
    assert [one["source"] for one in entries] == LINES[:2]
    for entry, one in zip(entries, translator.score(LINES[:2], TRANSLATIONS[:2]), strict=True):
        (hypothesis,) = entry["hypotheses"]
        assert hypothesis["text"] == one.text
        assert hypothesis["token_log_probs"] == pytest.approx(one.token_log_probs, abs=1e-4)
        assert len(hypothesis["attention"][0]) == len(one.token_log_probs)


def test_lines_without_a_score(run: Callable[..., Result], translator: Translator) -> None:
    long = " ".join(["the dog runs over the big river."] * 60)
    lines, translations = [*LINES[:2], long, " ", "a"], [*TRANSLATIONS[:2], "a", "b", "c"]
    found = run(lines, translations)
    assert found.exit_code == 0
    scores = found.stdout.splitlines()
    assert [number for number, score in enumerate(scores) if score == "nan"] == [2, 3]
    alone = [translator.score(line, text).score for line, text in zip(LINES[:2], TRANSLATIONS)]  # noqa: B905
    assert [float(score) for score in scores[:2]] == pytest.approx(alone, abs=1e-4)
    for told in ("line 3 of this call has more than", "line 4 of this call is blank",
                 "2 of 5 lines have no score"):  # fmt: skip
        assert told in found.stderr
    entries = [json.loads(line) for line in run(lines, translations, "--json").stdout.splitlines()]
    assert [len(entry["hypotheses"]) for entry in entries] == [1, 1, 0, 0, 1]


def test_the_perplexity_of_all_lines(run: Callable[..., Result]) -> None:
    found = run(LINES, TRANSLATIONS, "-v")
    assert "4 lines, " in found.stderr
    assert "perplexity" in found.stderr
    assert run([], [], "-v").exit_code == 0


def test_errors(run: Callable[..., Result], compiled_bundle: Path, tmp_path: Path) -> None:
    missing = run(LINES, TRANSLATIONS[:2])
    assert missing.exit_code == 1
    assert "has 4 lines and" in missing.stderr
    assert "each line must be the translation of its counterpart" in missing.stderr
    flags = ["score", "--bundle", str(compiled_bundle), "-", "-"]
    both = CliRunner().invoke(main, flags)
    assert both.exit_code != 0
    assert "both standard input" in both.stderr
    output = tmp_path / "scores"
    assert run(LINES, TRANSLATIONS[:2], "--output", output).exit_code == 1
    assert not output.exists()
    assert run(LINES, TRANSLATIONS, "--output", output).exit_code == 0
    assert len(output.read_text().splitlines()) == 4


def test_alignments_follow_the_score(run: Callable[..., Result], translator: Translator) -> None:
    scored = translator.score(LINES, TRANSLATIONS, alignments=True)
    expected = [one.alignment.pharaoh() for one in scored if one.alignment is not None]
    found = run(LINES, TRANSLATIONS, "--alignments")
    assert [line.split("\t")[1] for line in found.stdout.splitlines()] == expected
    assert expected[0]
    several = run(LINES, TRANSLATIONS, "--alignment-threshold", 0, "--json").stdout.splitlines()
    objects = [json.loads(line)["hypotheses"][0] for line in several]
    assert len(objects[0]["alignments"].split()) == 9
    none = run(["", "a"], ["no source", "b"], "--alignments").stdout.splitlines()
    assert none[0] == "nan\t"

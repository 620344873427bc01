"""`translate-trt score` on a real bundle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.cli import main
from translate_trt.runtime.cli.score import perplexity

Run = Callable[..., Result]

LINES = ["the cat runs.", "a dog eats green", "", "Haus Hund läuft."]
TRANSLATIONS = ["Hund the cat.", "a", "", ""]


@pytest.fixture
def run(compiled_bundle: Path, tmp_path: Path) -> Run:
    def run(lines: list[str], translations: list[str], *flags: object) -> Result:
        paths = tmp_path / "text.en", tmp_path / "text.de"
        for path, text in zip(paths, (lines, translations), strict=True):
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        arguments = ["score", "--bundle", compiled_bundle, *paths, "--threads", 1, *flags]
        return CliRunner().invoke(main, [str(one) for one in arguments])

    return run


@pytest.fixture
def run_piped(compiled_bundle: Path) -> Run:
    def run(content: str, *flags: object) -> Result:
        arguments = ["score", "--bundle", compiled_bundle, "--threads", 1, *flags]
        return CliRunner().invoke(main, list(map(str, arguments)), input=content.encode())

    return run


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, threads=1)


def test_a_score_per_line(run: Run, translator: Translator) -> None:
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


def test_lines_without_a_score(run: Run, translator: Translator) -> None:
    long = " ".join(["the dog runs over the big river."] * 60)
    lines, translations = [*LINES[:2], long, " ", "a"], [*TRANSLATIONS[:2], "a", "b", "c"]
    found = run(lines, translations)
    assert found.exit_code == 0
    scores = found.stdout.splitlines()
    assert [number for number, score in enumerate(scores) if score == "nan"] == [2, 3]
    alone = [translator.score(line, text).score for line, text in zip(LINES[:2], TRANSLATIONS)]  # noqa: B905
    assert [float(score) for score in scores[:2]] == pytest.approx(alone, abs=1e-4)
    for told in ("text.en, line 3 has more than", "text.en, line 4 is blank",
                 "2 of 5 lines have no score"):  # fmt: skip
        assert told in found.stderr
    entries = [json.loads(line) for line in run(lines, translations, "--json").stdout.splitlines()]
    assert [len(entry["hypotheses"]) for entry in entries] == [1, 1, 0, 0, 1]


def test_errors(run: Run, compiled_bundle: Path, tmp_path: Path) -> None:
    missing = run(LINES, TRANSLATIONS[:2])
    assert missing.exit_code == 1
    assert "lines" in missing.stderr
    assert "translation" in missing.stderr
    flags = ["score", "--bundle", str(compiled_bundle), "-", "-"]
    both = CliRunner().invoke(main, flags)
    assert both.exit_code != 0
    assert "both standard input" in both.stderr
    one = CliRunner().invoke(main, flags[:-1])
    assert one.exit_code == 2
    assert "inputs" in one.stderr
    output = tmp_path / "scores"
    assert run(LINES, TRANSLATIONS[:2], "--output", output).exit_code == 1
    assert not output.exists()
    assert run(LINES, TRANSLATIONS, "--output", output).exit_code == 0
    assert len(output.read_text().splitlines()) == 4


def test_alignments_follow_the_score(run: Run, translator: Translator) -> None:
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


# ---- JSON lines and TSV ----


def test_json_lines(run_piped: Run, translator: Translator) -> None:
    objects = [
        {"id": 1, "text": [LINES[0], None, ""], "translation": [TRANSLATIONS[0], "b", ""]},
        {"text": " ", "translation": "b"},
    ]
    content = "\n\n".join(json.dumps(one) for one in objects)
    found = run_piped(content, "--input-format", "jsonl", "--chunk-lines", 1)
    assert found.exit_code == 0, found.output
    first, blank, last = found.stdout.splitlines()
    expected = [one.score for one in translator.score([LINES[0], ""], [TRANSLATIONS[0], ""])]
    scores = [expected[0], None, expected[1]]
    assert json.loads(first) == {
        **objects[0], "translation_score": pytest.approx(scores, abs=1e-4),
    }  # fmt: skip
    assert (blank, json.loads(last)) == ("", {**objects[1], "translation_score": None})
    assert "line 3" in found.stderr


def test_tsv(run_piped: Run, translator: Translator) -> None:
    one = translator.score(LINES[0], TRANSLATIONS[0], alignments=True)
    row = f"{TRANSLATIONS[0]}\t{LINES[0]}\t7"
    flags = ("--input-format", "tsv", "--alignments")
    found = run_piped(f"{row}\n\nb\t\tx", *flags, "--column", 2, "--translation-column", 1)
    assert found.exit_code == 0, found.output
    first, *others = found.stdout.splitlines()
    *cells, score, alignments = first.split("\t")
    assert "\t".join(cells) == row
    assert float(score) == pytest.approx(one.score, abs=1e-4)
    assert one.alignment is not None
    assert alignments == one.alignment.pharaoh()
    assert others == ["", "b\t\tx\tnan\t"]
    assert "line 3" in found.stderr
    named = ("--header", "--column", "en", "--translation-column", "de")
    headed = run_piped(f"de\ten\tid\n{row}", *flags, *named)
    assert headed.stdout.splitlines() == ["de\ten\tid\tde_score\tde_alignments", first]


def test_perplexity_of_very_unlikely_text_is_infinite() -> None:
    assert perplexity(-2.0 * math.log(3.0), 2) == pytest.approx(3.0)
    assert perplexity(-1e6, 2) == math.inf
    assert math.isnan(perplexity(0.0, 0))

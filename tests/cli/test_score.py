"""`translate-trt score` on a real bundle."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow
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


def test_json(run: Run, translator: Translator) -> None:
    found = run(LINES[:2], TRANSLATIONS[:2], "--attention")
    entries = [json.loads(line) for line in found.stdout.splitlines()]
    assert [one["source"] for one in entries] == LINES[:2]
    for entry, one in zip(entries, translator.score(LINES[:2], TRANSLATIONS[:2]), strict=True):
        (hypothesis,) = entry["hypotheses"]
        assert hypothesis["text"] == one.text
        assert hypothesis["token_log_probs"] == pytest.approx(one.token_log_probs, abs=1e-4)
        assert len(hypothesis["attention"][0]) == len(one.token_log_probs)


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


def test_json_lines(run_piped: Run, translator: Translator, tmp_path: Path) -> None:
    objects = [
        {"id": 1e300, "text": LINES[0], "translation": TRANSLATIONS[0], "x": ["y"]},
        {"text": [LINES[1], None, "", LINES[3]], "translation": [TRANSLATIONS[1], "b", "", "c"]},
        {"text": None, "translation": "a"},
        {"text": " ", "translation": "b"},
    ]
    content = "\n\n".join(json.dumps(one) for one in objects) + "\n"
    found = run_piped(content, "--input-format", "jsonl", "--chunk-lines", 3)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[1::2] == ["", "", ""]
    given = [json.loads(line) for line in lines[::2]]
    scores = [one.pop("translation_score") for one in given]
    assert given == objects
    sources = [LINES[0], LINES[1], "", LINES[3]]
    expected = [one.score for one in translator.score(sources, [TRANSLATIONS[0], "a", "", "c"])]
    assert scores[0] == pytest.approx(expected[0], abs=1e-4)
    assert scores[1] == pytest.approx([expected[1], None, *expected[2:]], abs=1e-4)
    assert scores[2:] == [None, None]
    assert "line 7" in found.stderr
    assert "lines" in found.stderr
    # A compressed file with other names, and a field that is replaced.
    named = [{"en": LINES[0], "de": TRANSLATIONS[0], "de_score": 1}]
    path = tmp_path / "pairs.gz"
    path.write_bytes(gzip.compress(json.dumps(named[0]).encode()))
    flags = ("--input-format", "jsonl", "--field", "en", "--translation-field", "de", path)
    refused = run_piped("", *flags)
    assert refused.exit_code == 1
    assert "'de_score'" in refused.stderr
    output = tmp_path / "scored.zst"
    flags = (*flags, "--replace-field", "--json", "--alignments", "--output", output)
    assert run_piped("", *flags).exit_code == 0
    with pyarrow.CompressedInputStream(pyarrow.OSFile(str(output)), "zstd") as stream:
        (one,) = [json.loads(line) for line in stream.read().splitlines()]
    assert list(one) == ["en", "de", "de_score", "de_alignments", "de_hypotheses"]
    assert one["de_score"] == pytest.approx(expected[0], abs=1e-4)
    (hypothesis,) = one["de_hypotheses"]
    assert (hypothesis["text"], hypothesis["score"]) == (TRANSLATIONS[0], one["de_score"])
    assert one["de_alignments"] == hypothesis["alignments"]


def test_tsv(run_piped: Run, translator: Translator) -> None:
    expected = translator.score(LINES[:2], TRANSLATIONS[:2], alignments=True)
    rows = [f"{text}\t{line}\t{n}" for n, (line, text) in enumerate(zip(LINES, TRANSLATIONS))]  # noqa: B905
    flags = ("--input-format", "tsv", "--alignments")
    found = run_piped("\n".join([*rows[:2], "", "b\t\tx"]), *flags, "--column", 2,
                      "--translation-column", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    for row, line, one in zip(rows[:2], lines[:2], expected, strict=True):
        *cells, score, alignments = line.split("\t")
        assert "\t".join(cells) == row
        assert float(score) == pytest.approx(one.score, abs=1e-4)
        assert one.alignment is not None
        assert alignments == one.alignment.pharaoh()
    assert lines[2:] == ["", "b\t\tx\tnan\t"]
    assert "line 4" in found.stderr
    named = ("--header", "--column", "en", "--translation-column", "de")
    headed = run_piped("\n".join(["de\ten\tid", *rows[:2]]), *flags, *named)
    assert headed.stdout.splitlines() == ["de\ten\tid\tde_score\tde_alignments", *lines[:2]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input-format", "tsv", "--column", "1"], "--translation-column is missing"),
        (["--translation-field", "de"], "--translation-field"),
    ],
)
def test_flags_that_do_not_fit(run_piped: Run, flags: list[str], message: str) -> None:
    found = run_piped("", *flags)
    assert found.exit_code == 2
    assert message in found.stderr


def test_perplexity_of_very_unlikely_text_is_infinite() -> None:
    assert perplexity(-2.0 * math.log(3.0), 2) == pytest.approx(3.0)
    assert perplexity(-1e6, 2) == math.inf
    assert math.isnan(perplexity(0.0, 0))

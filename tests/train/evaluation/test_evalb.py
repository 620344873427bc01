"""Bracketing scores: EVALB's own samples, and the rules one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.data import folder_of

from translate_trt.runtime.errors import InputError
from translate_trt.train.evaluation.evalb import (
    COLLINS,
    Rules,
    SentenceScore,
    Status,
    score_lines,
    short,
    summarize,
    with_tags_of,
)

GOLD = "(S (NP (PRP It)) (VP (VBZ works) (ADVP (RB well))) (. .))"

#: sample.prm of EVALB
SAMPLE = dataclasses.replace(
    COLLINS,
    deleted=COLLINS.deleted - {"."},
    equal_labels=frozenset((frozenset(("T", "TT")),)),
    equal_words=frozenset((frozenset(("This", "this")),)),
)
#: For the trees of parsers whose root is S1, as in new.prm.
S1 = dataclasses.replace(COLLINS, deleted=COLLINS.deleted | {"S1"})
SUMMARY = {
    "Number of sentence": "sentences", "Number of Error sentence": "errors",
    "Number of Skip  sentence": "skipped", "Bracketing Recall": "recall",
    "Bracketing Precision": "precision", "Bracketing FMeasure": "f1", "Complete match": "complete",
    "Average crossing": "crossing", "No crossing": "not_crossing",
    "2 or less crossing": "at_most_two", "Tagging accuracy": "tagging",
}  # fmt: skip


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def row(number: int, one: SentenceScore) -> list[float]:
    """Return a line of EVALB's table."""
    recall = 100 * one.matched / one.gold if one.gold else 0
    precision = 100 * one.matched / one.test if one.test else 0
    tagging = 100 * one.tags / one.words if one.words else 0
    return [
        number, one.length, one.status, round(recall, 2), round(precision, 2), one.matched,
        one.gold, one.test, one.crossing, one.words, one.tags, round(tagging, 2),
    ]  # fmt: skip


def summary(scores: Sequence[SentenceScore]) -> dict[str, float]:
    """Return a summary of EVALB."""
    found = dataclasses.asdict(summarize(scores))
    return {label: round(found[name], 2) for label, name in SUMMARY.items()}


@pytest.mark.parametrize(
    ("name", "result", "rules"), [("sample", "sample.rsl", SAMPLE), ("bug", "bug.rsl-new", S1)]
)
def test_every_figure_is_that_of_the_c_program(name: str, result: str, rules: Rules) -> None:
    folder = folder_of("evalb-sample")
    scores = score_lines(lines(folder / f"{name}.tst"), lines(folder / f"{name}.gld"), rules)
    table, every, at_most_40 = (
        (folder / result).read_text(encoding="utf-8").replace("-- All --", "-- len<=40 --")
    ).split("-- len<=40 --")
    expected = [
        [float(cell) for cell in line.split()]
        for line in table.splitlines()
        if len(line.split()) == len(row(1, scores[0])) and line.split()[0].isdigit()
    ]
    assert [row(number, one) for number, one in enumerate(scores, start=1)] == expected
    for text, chosen in ((every, scores), (at_most_40, short(scores, rules))):
        shown = dict(line.split("=") for line in text.splitlines() if "=" in line)
        found = summary(chosen)
        assert {
            label.strip(): float(value)
            for label, value in shown.items()
            if label.strip() != "Number of Valid sentence"
        } == {label: found[label] for label in found if any(label in one for one in shown)}


@pytest.mark.parametrize(
    ("test", "matched", "counted", "crossing"),
    [
        (GOLD, 4, 4, 0),
        (GOLD.replace("(NP ", "(NP-SBJ-1 "), 4, 4, 0),
        (f"(TOP {GOLD})", 4, 4, 0),
        (GOLD.replace("ADVP", "PRT"), 4, 4, 0),
        (GOLD.replace("ADVP", "PP"), 3, 4, 0),
        (GOLD.replace("(NP (PRP It))", "(NP (NP (PRP It)))"), 4, 5, 0),
        ("(S (X (NP (PRP It)) (VBZ works)) (ADVP (RB well)) (. .))", 3, 4, 1),
        (GOLD.replace("(. .)", "(NP (-NONE- *)) (, ,) (. .)"), 4, 4, 0),
    ],
)
def test_brackets(test: str, matched: int, counted: int, crossing: int) -> None:
    (found,) = score_lines([test], [GOLD])
    assert found.status is Status.SCORED
    assert (found.matched, found.test, found.crossing) == (matched, counted, crossing)
    assert (found.gold, found.words, found.tags) == (4, 3, 3)
    assert found.complete == (matched == counted)


@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("", Status.SKIPPED),
        ("(. .)", Status.SKIPPED),
        (GOLD.replace("It", "This"), Status.ERROR),
        (GOLD.replace("(RB well)", "(RB well) (RB so)"), Status.ERROR),
        (GOLD[:-1], Status.ERROR),
        (GOLD + ")", Status.ERROR),
        (GOLD.replace("It", "It does"), Status.ERROR),
        ("It works well .", Status.ERROR),
        ("(", Status.ERROR),
        ("()", Status.SKIPPED),
    ],
)
def test_lines_without_a_score_have_a_status(test: str, status: Status) -> None:
    (found,) = score_lines([test], [GOLD])
    assert (found.status, found.length, found.matched, found.gold) == (status, 4, 0, 0)
    assert summarize([found]).f1 == 0


def test_a_gold_line_that_is_no_tree_is_named() -> None:
    with pytest.raises(InputError, match=r"line 2.*opening"):
        score_lines([GOLD, GOLD], [GOLD, GOLD[:-1]])


def test_ten_thousand_nested_brackets_are_no_crash() -> None:
    depth = 10_000
    deep = "(X " * depth + "(NN a)" + ")" * depth
    (found,) = score_lines([deep], ["(X (NN a))"])
    assert (found.matched, found.test) == (1, depth)


def test_gold_tags_keep_sentences_with_wrong_punctuation() -> None:
    gold = "(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (. .))"
    test = "(S (NP (DT the) (, dog)) (VP (VBZ runs) (NN .)))"
    assert summarize(score_lines([test], [gold])).errors == 1
    tagged = with_tags_of(gold, test)
    assert tagged == "(S (NP (DT the) (NN dog)) (VP (VBZ runs) (. .)))"
    assert summarize(score_lines([tagged], [gold])).f1 == 100
    for other in ("(S (NN the) (NN cat))", "(S (NN the)", ""):
        assert with_tags_of(gold, other) == other


def test_gold_tags_of_sentences_with_traces() -> None:
    gold = "(S (NP-SBJ-1 (NNP John)) (VP (VBD left) (NP (-NONE- *-1))) (, ,) (. .))"
    test = "(S (NP (NNP John)) (VP (VBD left)) (NN ,) (. .))"
    tagged = with_tags_of(gold, test)
    assert tagged == "(S (NP (NNP John)) (VP (VBD left)) (, ,) (. .))"
    assert summarize(score_lines([tagged], [gold])).f1 == 100
    traced = test.replace("left)", "left) (NP (-NONE- *))")
    assert with_tags_of(gold, traced) == tagged.replace("left)", "left) (NP (-NONE- *))")
    assert with_tags_of(gold.replace("*-1", "*-2"), traced) == with_tags_of(gold, traced)

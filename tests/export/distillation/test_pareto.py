"""Pareto front of the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from translate_trt.export.distillation import pareto
from translate_trt.export.distillation.pareto import Row, System, mark_front, table
from translate_trt.runtime.benchmark import BenchOptions
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.glossary import Entry, Glossary, Recall


def row(name: str, bleu: float, speed: float) -> Row:
    return Row(name, "onnx-int8", 1, bleu, 50.0, speed, 2.0, 10.0)


def test_the_front_has_the_rows_that_none_dominates() -> None:
    rows = [row("a", 30, 100), row("b", 29, 200), row("c", 29, 150), row("d", 28, 200),
            row("e", 27, 500), row("f", 27, 500)]  # fmt: skip
    marked = {one.system: one.on_front for one in mark_front(rows)}
    assert marked == {"a": True, "b": True, "c": False, "d": False, "e": True, "f": True}


def test_the_table_compares_with_the_first_row() -> None:
    student = dataclasses.replace(row("student", 29, 1250), terms=12, terms_found=9)
    lines = table(mark_front([row("teacher", 30, 100), student]))
    assert lines[0].split()[:3] == ["system", "target", "beam"]
    assert lines[2].split() == [
        "student", "onnx-int8", "1", "29.00", "50.00", "9", "of", "12", "1,250", "12.50x", "2.0",
        "10.0", "*",
    ]  # fmt: skip
    assert "terms" not in table([row("teacher", 30, 100)])[0]


@pytest.mark.parametrize("reads_annotations", [False, True])
def test_terms_of_the_test_set(reads_annotations: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Student:
        """Copies its source; the terms of a glossary take the place of their source phrases."""

        manifest = SimpleNamespace(
            term_annotation="replace" if reads_annotations else None, prompt=Prompt()
        )

        def __init__(self, *_: object, **__: object) -> None: ...

        def translate(
            self, lines: list[str], _: SearchOptions, *, terminology: Glossary | None = None
        ) -> list[Translation]:
            word = "cat" if terminology is None else "Katze"
            texts = [line.replace("cat", word) for line in lines]
            return [Translation((TextHypothesis(text, 0.0),)) for text in texts]

    monkeypatch.setattr(pareto, "Translator", Student)
    lines = ["the cat and the dog", "a cat", ""]
    glossary = Glossary([Entry("cat", ("Katze",)), Entry("dog", ("dog",))])
    system = System("a", Path("bundle"), "onnx-int8", SearchOptions())
    options = BenchOptions(rounds=1, cores=1)
    texts, recall = pareto._translate(system, lines, options, glossary)
    assert texts == lines  # BLEU is that of translations without the glossary
    assert recall == Recall(3, 3 if reads_annotations else 1)
    assert pareto._translate(system, lines, options, None) == (lines, None)

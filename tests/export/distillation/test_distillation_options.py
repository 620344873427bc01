"""Students and options of a distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from translate_trt.export.distillation.distillation_options import (
    DistillationOptions,
    SelectionOptions,
    Student,
)
from translate_trt.runtime.errors import OptionError

PAIR = (Path("a"), Path("b"))


def options(**changes: Any) -> DistillationOptions:
    given: dict[str, Any] = {
        "teacher": Path("t"), "sources": (Path("s"),), "valid": PAIR,
        "students": (Student("student-tiny"),),
    }  # fmt: skip
    return DistillationOptions(**(given | changes))


def test_a_student_with_settings() -> None:
    student = Student.parse("student-tiny,decoder-mixer=self-attention, steps=100,dropout=0.1")
    assert student == Student(
        "student-tiny", {"decoder_mixer": "self-attention", "steps": 100, "dropout": 0.1}
    )
    assert "/" not in student.name
    assert student.with_settings({"steps": 5, "patience": 2}).settings["steps"] == 100
    assert Student.parse("tiny").name == "tiny"


@pytest.mark.parametrize(
    "text",
    ["huge", "student-tiny,steps", "student-tiny,steps=many", "student-tiny,colour=red",
     "student-tiny,vocabulary-size=9", "student-tiny,heads=7", "student-tiny,dropout=1",
     "student-tiny,source-end=false"],
)  # fmt: skip
def test_students_that_cannot_be(text: str) -> None:
    with pytest.raises(OptionError):
        Student.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": ()}, "give --source"),
        ({"references": PAIR}, r"1 texts.*references"),
        ({"selection": SelectionOptions(keep_references=True)}, "keep_references needs"),
        ({"students": ()}, "each student"),
        ({"students": (Student("tiny"), Student("tiny"))}, "each student"),
        ({"annotated": True}, "--terminology"),
        ({"beams": (0,)}, "least 1"),
        ({"training": {"patience": 1, "validate_every": 0}}, "patience 1"),
        ({"training": {"guided_alignment": 0.1}}, "guided_alignment"),
        ({"training": {"best_metric": "f1"}}, "best_metric f1"),
        ({"training": {"corpus_weights": "1,2"}}, "corpus_weights has 2 numbers"),
        ({"targets": ("onnx-int8-shortlits",)}, "no target 'onnx-int8-shortlits'"),
    ],
)
def test_options_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**changes)


def test_number_of_hypotheses() -> None:
    assert options().hypotheses == 1
    assert options(references=(Path("r"),)).hypotheses == 8
    assert options(selection=SelectionOptions(hypotheses=3)).hypotheses == 3

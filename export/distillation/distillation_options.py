"""Options of a distillation, validated without importing PyTorch."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.settings import check_settings, setting
from translate_trt.train.config import ModelConfig, TrainConfig, apply, check_trainable, preset
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.terminology import TerminologyOptions

#: Settings of a student that its training data determines.
_OF_DATA = ("vocabulary_size", "max_length", "seed")
_TYPES = {
    field.name: str(field.type)
    for kind in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(kind)
}

#: Targets of a student: with the shortlist, which is the default, and with the whole vocabulary.
TARGETS = ("onnx-int8-shortlist", "onnx-int8")


@dataclass(frozen=True)
class Student:
    """Student to train.

    Attributes:
        preset: Preset of shape and recipe.
        settings: Fields of ModelConfig and TrainConfig that differ from the preset.

    Raises:
        OptionError: There is no such preset, or a setting is unknown or out of range.
    """

    preset: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.settings:
            if name not in _TYPES or name in _OF_DATA:
                raise OptionError(
                    f"student {self.preset}: {name} is not a setting of a student; the settings "
                    "are those of `translate-trt train`, without those of the data."
                )
        chosen = preset(self.preset)
        check_trainable(apply(chosen.model, self.settings))
        apply(chosen.train, self.settings)

    @classmethod
    def parse(cls, text: str) -> Student:
        """Parse `PRESET[,SETTING=VALUE...]`, such as `student-tiny,decoder-mixer=self-attention`.

        Raises:
            OptionError: See the class; or a value has the wrong type.
        """
        name, *parts = text.split(",")
        settings = {}
        for part in parts:
            key, equals, value = part.partition("=")
            key = key.strip().replace("-", "_")
            if not equals:
                raise OptionError(
                    f"student {text!r}: write PRESET,SETTING=VALUE, such as "
                    "student-tiny,decoder-mixer=self-attention."
                )
            settings[key] = _value(text, key, _TYPES.get(key, "str"), value.strip())
        return cls(name, settings)

    @property
    def name(self) -> str:
        """Name of the student's directory: preset and settings."""
        parts = [f"{key.replace('_', '-')}-{value}" for key, value in self.settings.items()]
        return re.sub(r"[^A-Za-z0-9.-]", "-", "--".join([self.preset, *parts]))

    def with_settings(self, settings: dict[str, Any]) -> Student:
        """Return the student with further settings, which its own settings override."""
        return Student(self.preset, settings | self.settings)


def _value(text: str, key: str, kind: str, value: str) -> Any:
    try:
        return {"int": int, "float": float}.get(kind, str)(value)
    except ValueError as error:
        raise OptionError(f"student {text!r}: {key} is {value!r}; it must be {kind}.") from error


@dataclass(frozen=True)
class SelectionOptions:
    """Options of the selection.

    Raises:
        OptionError: A value is out of range.
    """

    hypotheses: int | None = setting(
        None, "Hypotheses of the teacher per line. [8 with references, else 1]",
        flag="--n-best", least=1,
    )  # fmt: skip
    metric: str = setting(
        "bleu", "Sentence metric that compares hypotheses with the reference.", ("bleu", "chrf")
    )
    keep: float = setting(
        1.0, "Share of the pairs to keep: those that the teacher finds most probable per token.",
        above=0, most=1,
    )  # fmt: skip
    keep_references: bool = setting(False, "Train on the references, too.")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class DistillationOptions:
    """Inputs and options of a distillation.

    Attributes:
        teacher: Bundle of the teacher.
        sources: Texts to translate.
        valid: Source and reference for validation.
        students: Students to train.
        references: Reference of each source, or none.
        test: Source and reference for verification and the table; None: those of validation.
        teacher_target: Target of the teacher; None: the bundle's default.
        search: Search options of the teacher, without the number of hypotheses; None: the bundle's.
        selection: Selection of the training pairs.
        prepare: Cleaning and vocabulary of the training data.
        terminology: Glossary of which the teacher's translations have the terms; None for none.
        annotated: Whether a share of the training pairs is annotated with these terms, so that
            students read annotations (docs/terminology.md).
        training: Settings of all students, which a student's own override.
        targets: Targets of the students' bundles, the default first.
        beams: Beam sizes of the table; the first is the default of the students' bundles.
        rounds: Translations of the test set by each system of the table.

    Raises:
        OptionError: Options contradict each other or are out of range.
    """

    teacher: Path
    sources: tuple[Path, ...]
    valid: tuple[Path, Path]
    students: tuple[Student, ...]
    references: tuple[Path, ...] = ()
    test: tuple[Path, Path] | None = None
    teacher_target: str | None = None
    search: SearchOptions | None = None
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    terminology: TerminologyOptions | None = None
    annotated: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = TARGETS
    beams: tuple[int, ...] = (1, 4)
    rounds: int = 3

    def __post_init__(self) -> None:
        if not self.sources:
            raise OptionError("there is no text to translate; give --source.")
        if self.references and len(self.references) != len(self.sources):
            raise OptionError(
                f"there are {len(self.sources)} texts to translate and {len(self.references)} "
                "references; give --reference for each --source, in the same order, or not at all."
            )
        if self.selection.keep_references and not self.references:
            raise OptionError("keep_references needs the references; give --reference.")
        if self.annotated and self.terminology is None:
            raise OptionError("annotated pairs need a glossary; give --terminology.")
        names = [student.name for student in self.students]
        if not names or len(set(names)) < len(names):
            raise OptionError(f"name each student once, not: {', '.join(names) or 'none'}.")
        for student in self.students:
            self._check_training(student.with_settings(self.training))
        BuildOptions(self.targets)  # refuses unknown targets
        if not self.beams or min(self.beams) < 1 or self.rounds < 1:
            raise OptionError("beam sizes and rounds of the table must be at least 1.")

    def _check_training(self, student: Student) -> None:
        """Refuse settings that would fail on the data of a distillation."""
        recipe = apply(preset(student.preset).train, student.settings)
        if recipe.guided_alignment:
            raise OptionError(
                "guided_alignment needs word alignments, which a distillation does not make."
            )
        if recipe.best_metric == "f1":
            raise OptionError("best_metric f1 is for treebanks; choose another.")
        corpora = 1 + self.selection.keep_references * len(self.references)
        if (weights := len(recipe.weights_of_corpora)) not in (0, corpora):
            raise OptionError(
                f"corpus_weights has {weights} numbers, and the data {corpora} corpora."
            )

    @property
    def hypotheses(self) -> int:
        """Hypotheses of the teacher per line."""
        return self.selection.hypotheses or (8 if self.references else 1)

    @property
    def test_set(self) -> tuple[Path, Path]:
        """Source and reference for verification and the table."""
        return self.test or self.valid

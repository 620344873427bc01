"""`translate-trt distill`: train fast students on the translations of a compiled teacher."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

# No torch yet: this module is imported for --help too.
from translate_trt.export.distillation.distillation_options import (
    TARGETS,
    DistillationOptions,
    SelectionOptions,
    Student,
)
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.bundle.term_annotation import FORMS
from translate_trt.runtime.cli.bundle_flags import BUNDLE
from translate_trt.runtime.cli.command import Command, given
from translate_trt.runtime.cli.names import (
    PATH,
    default_note,
    field_options,
    note_of_value,
    output_option,
    processes_flag,
    torch_device_option,
)
from translate_trt.runtime.cli.output import print_lines
from translate_trt.runtime.cli.search_flags import (
    replace_options,
    search_flags,
    terminology_flags,
)
from translate_trt.runtime.cli.shard_progress import ShardProgress
from translate_trt.runtime.cli.verbosity import is_quiet, show_progress
from translate_trt.runtime.errors import OptionError
from translate_trt.train.cli.terminology_flags import take_terminology, terminology_share_flag
from translate_trt.train.config import DROPOUTS, ModelConfig, TrainConfig, preset
from translate_trt.train.data.corpora import PrepareOptions

#: Settings of the data; they are settings of the training, too, where it has them.
_DATA = dataclasses.fields(PrepareOptions)
_OF_DATA = tuple(field.name for field in _DATA)
#: Prefix of their parameters: the search of the teacher has a max_length and a seed, too.
_DATA_PREFIX = "data_"
#: Settings of the training that apply to every student.
_TRAINING = [
    *(field for field in dataclasses.fields(TrainConfig) if field.name not in _OF_DATA),
    *(field for field in dataclasses.fields(ModelConfig) if field.name in DROPOUTS),
]
_SELECTION = dataclasses.fields(SelectionOptions)
#: Flags that are fields of `DistillationOptions`, and of `Resources`.
_INPUTS = (
    "sources", "references", "valid", "test", "teacher_target", "targets", "beams", "rounds",
)  # fmt: skip
_OF_RESOURCES = ("workers", "address", "device", "processes", "concurrent_students")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.name == "vocabulary_size":
        return "[that of the first student]"
    return default_note(field)


@click.command(cls=Command)
@click.option("--teacher", type=BUNDLE, required=True, help="Bundle of the teacher, or its name.")
@click.option(
    "--teacher-target", help="Target of the teacher, such as onnx-int8. [the bundle's first]"
)
@click.option(
    "--source", "sources", type=PATH, multiple=True, required=True,
    help="Text to translate, one sentence per line, plain, gzip or zstd; repeatable.",
)  # fmt: skip
@click.option(
    "--reference", "references", type=PATH, multiple=True,
    help="Reference translations of the --source at the same position; repeatable. Of the "
    "teacher's hypotheses, the one nearest to the reference is taken.",
)  # fmt: skip
@click.option(
    "--valid", nargs=2, type=PATH, required=True, help="Source, reference for validation."
)
@click.option(
    "--test", nargs=2, type=PATH, default=None,
    help="Source, reference for verification and the table. [those of --valid]",
)  # fmt: skip
@click.option(
    "--student", "students", multiple=True, default=("student-tiny",), show_default=True,
    metavar="PRESET[,SETTING=VALUE...]",
    help="Student to train; repeatable. Settings are those of `train`, such as "
    "student-tiny,decoder-mixer=self-attention.",
)  # fmt: skip
@output_option("Directory for all results.")
@click.option("--force", is_flag=True, help="Repeat stages whose inputs or settings have changed.")
@field_options(_SELECTION, note_of_value)
@click.option(
    "--target", "targets", multiple=True, default=TARGETS, show_default=True,
    help="Target of the students' bundles, the default first; repeatable.",
)  # fmt: skip
@click.option(
    "--beam", "beams", type=click.IntRange(min=1), multiple=True, default=(1, 4),
    show_default=True,
    help="Beam size of the table; repeatable. The first is the students' default.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True,
    help="Translations of the test set by each system of the table; the median counts.",
)  # fmt: skip
@processes_flag
@click.option("--address", help="Ray cluster that translates, host:port or auto. [this machine]")
@torch_device_option("Device of the training")
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True,
    help="Processes that train a student together, one per GPU.",
)  # fmt: skip
@click.option(
    "--concurrent-students", type=click.IntRange(min=1), default=1, show_default=True,
    help="Students that train at the same time: small ones do not fill a GPU.",
)  # fmt: skip
@click.option("--no-progress", is_flag=True, help="Show no progress of the translation.")
@terminology_flags
@click.option(
    "--terminology-form", type=click.Choice(FORMS),
    help="Annotate training pairs with the terms, too, so that the students read the glossary of "
    "a translation: the target phrase follows the source phrase, or replaces it. [no annotations]",
)  # fmt: skip
@terminology_share_flag
@search_flags
@field_options(_DATA, _default, _DATA_PREFIX)
@field_options(_TRAINING, lambda _: "[the student's preset]")
def distill(
    teacher: Path,
    students: tuple[str, ...],
    out: Path,
    force: bool,
    no_progress: bool,
    **flags: Any,
) -> None:
    """Train fast students on the translations of a compiled teacher.

    The teacher translates --source; of its hypotheses, one per line is selected. The students are
    trained on the pairs, compiled with a shortlist, and verified. The result is a table of quality
    and speed of teacher and students: an asterisk marks the Pareto front of BLEU and words per
    second.

    After Ctrl-C or a failure, the same command continues where it stopped. Changed inputs or
    settings are refused by name; --force repeats their stages.

    \b
    translate-trt distill --teacher bundle/ --source train.en --reference train.de \\
        --valid val.en val.de --test test.en test.de --student student-tiny --output distilled/
    """  # noqa: D301
    show_progress()
    parsed = tuple(Student.parse(text) for text in students)
    prepare: dict[str, Any] = {"vocabulary_size": preset(parsed[0].preset).model.vocabulary_size}
    prepare |= given({name: flags.pop(_DATA_PREFIX + name) for name in _OF_DATA})
    annotated = flags["terminology_form"] is not None
    if flags["terminology_share"] is not None and not annotated:
        raise OptionError("--terminology-share is of annotated pairs; add --terminology-form.")
    quiet = is_quiet(click.get_current_context())
    resources = {name: flags.pop(name) for name in _OF_RESOURCES}
    inputs = {name: flags.pop(name) for name in _INPUTS}
    options = DistillationOptions(
        teacher=teacher,
        students=parsed,
        selection=SelectionOptions(
            **given({field.name: flags.pop(field.name) for field in _SELECTION})
        ),
        prepare=PrepareOptions(**prepare),
        terminology=take_terminology(flags),
        annotated=annotated,
        training=given({field.name: flags.pop(field.name) for field in _TRAINING}),
        search=replace_options(read_manifest(teacher).search_options(), flags),
        **inputs,
    )
    from translate_trt.export.distillation.pareto import table
    from translate_trt.export.distillation.stages import Distillation, Resources

    progress = ShardProgress(no_progress)
    work = Distillation(
        options, out, Resources(**resources, quiet=quiet), force, progress.planned,
        progress.finished, progress.close,
    )  # fmt: skip
    try:
        rows = work.run()
    finally:
        progress.close()
    print_lines(table(rows))

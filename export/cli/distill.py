"""`translate-trt distill`: train fast students on the translations of a compiled teacher."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import click

# No torch yet: this module is imported for --help too.
from translate_trt.export.distillation.distillation_options import (
    TARGETS,
    DistillationOptions,
    Student,
)
from translate_trt.export.distillation.selection_options import METRICS, SelectionOptions
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.bundle.term_annotation import FORMS
from translate_trt.runtime.cli.bundle_flags import BUNDLE
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.names import default_note, field_options, output_option
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.cli.search_flags import (
    replace_options,
    search_flags,
    terminology_flags,
)
from translate_trt.runtime.cli.shard_progress import ShardProgress
from translate_trt.runtime.cli.verbosity import is_quiet
from translate_trt.runtime.errors import OptionError
from translate_trt.train.config import DROPOUTS, ModelConfig, TrainConfig, preset
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.terminology import TerminologyOptions

log = logging.getLogger("translate_trt")

_PATH = click.Path(path_type=Path)
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
    "--source", "sources", type=_PATH, multiple=True, required=True,
    help="Text to translate, one sentence per line, plain, gzip or zstd; repeatable.",
)  # fmt: skip
@click.option(
    "--reference", "references", type=_PATH, multiple=True,
    help="Reference translations of the --source at the same position; repeatable. Of the "
    "teacher's hypotheses, the one nearest to the reference is taken.",
)  # fmt: skip
@click.option(
    "--valid", nargs=2, type=_PATH, required=True, help="Source, reference for validation."
)
@click.option(
    "--test", nargs=2, type=_PATH, default=None,
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
@click.option(
    "--n-best", "hypotheses", type=click.IntRange(min=1),
    help="Hypotheses of the teacher per line. [8 with references, else 1]",
)  # fmt: skip
@click.option(
    "--metric", type=click.Choice(METRICS), default="bleu", show_default=True,
    help="Sentence metric that compares hypotheses with the reference.",
)  # fmt: skip
@click.option(
    "--keep", type=float, default=1.0, show_default=True,
    help="Share of the pairs to keep: those that the teacher finds most probable per token.",
)  # fmt: skip
@click.option("--keep-references", is_flag=True, help="Train on the references, too.")
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
@click.option("--workers", type=click.IntRange(min=1), help="Number of processes. [all cores]")
@click.option("--address", help="Ray cluster that translates, host:port or auto. [this machine]")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
    help="Device of the training.",
)  # fmt: skip
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
@click.option(
    "--terminology-share", type=float,
    help="Share of the pairs with terms on both sides to annotate. [0.5]",
)  # fmt: skip
@search_flags
@field_options(_DATA, _default, _DATA_PREFIX)
@field_options(_TRAINING, lambda _: "[the student's preset]")
@click.pass_context
def distill(
    ctx: click.Context,
    /,
    teacher: Path,
    teacher_target: str | None,
    sources: tuple[Path, ...],
    references: tuple[Path, ...],
    valid: tuple[Path, Path],
    test: tuple[Path, Path] | None,
    students: tuple[str, ...],
    out: Path,
    force: bool,
    hypotheses: int | None,
    metric: str,
    keep: float,
    keep_references: bool,
    targets: tuple[str, ...],
    beams: tuple[int, ...],
    rounds: int,
    no_progress: bool,
    terminology: Path | None,
    terminology_ignore_case: bool,
    terminology_form: str | None,
    terminology_share: float | None,
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
    if not is_quiet(ctx):
        log.setLevel(min(log.level or logging.INFO, logging.INFO))  # show progress
    parsed = tuple(Student.parse(text) for text in students)
    prepare = {name: flags.pop(_DATA_PREFIX + name) for name in _OF_DATA}
    prepare = {name: value for name, value in prepare.items() if value is not None}
    prepare.setdefault("vocabulary_size", preset(parsed[0].preset).model.vocabulary_size)
    training = {
        field.name: value for field in _TRAINING if (value := flags.pop(field.name)) is not None
    }
    names = ("workers", "address", "device", "processes", "concurrent_students")
    resources = {name: flags.pop(name) for name in names}
    options = DistillationOptions(
        teacher=teacher,
        sources=sources,
        valid=valid,
        students=parsed,
        references=references,
        test=test,
        teacher_target=teacher_target,
        search=replace_options(read_manifest(teacher).search_options(), flags),
        selection=SelectionOptions(hypotheses, metric, keep, keep_references),
        prepare=PrepareOptions(**prepare),
        terminology=_terminology(
            terminology, terminology_ignore_case, terminology_form, terminology_share
        ),
        annotated=terminology_form is not None,
        training=training,
        targets=targets,
        beams=beams,
        rounds=rounds,
    )
    from translate_trt.export.distillation.pareto import table
    from translate_trt.export.distillation.stages import Distillation, Resources

    progress = ShardProgress(no_progress)
    work = Distillation(
        options, out, Resources(**resources, quiet=is_quiet(ctx)), force, progress.planned,
        progress.finished, progress.close,
    )  # fmt: skip
    try:
        rows = work.run()
    finally:
        progress.close()
    with open_output(None, force=False) as output:
        output.write(table(rows))


def _terminology(
    path: Path | None, ignore_case: bool, form: str | None, share: float | None
) -> TerminologyOptions | None:
    """Return the options of the glossary, if there is one."""
    if path is None:
        for name, value in (("ignore-case", ignore_case), ("form", form), ("share", share)):
            if value not in (None, False):
                raise OptionError(f"--terminology-{name} needs --terminology.")
        return None
    if share is not None and form is None:
        raise OptionError("--terminology-share is of annotated pairs; add --terminology-form.")
    given = {"terminology_form": form, "terminology_share": share}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return TerminologyOptions(path, terminology_ignore_case=ignore_case, **chosen)

"""`translate-trt export`: checkpoint to bundle."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

# Neither torch nor passes yet: this module is imported for --help too.
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.cli.command import Command, given
from translate_trt.runtime.cli.names import PATH, field_options, note_of_value, output_option
from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.io.report import columns

if TYPE_CHECKING:
    from translate_trt.export.passes.pipeline import Report
    from translate_trt.train.checkpoint import Checkpoint

log = logging.getLogger("translate_trt")


@click.command(cls=Command)
@click.argument("checkpoints", nargs=-1, required=True, metavar="CHECKPOINT...", type=PATH)
@output_option("The bundle to write.")
@click.option(
    "--ensemble",
    is_flag=True,
    help="Compile several checkpoints of one vocabulary as an ensemble, into one step graph.",
)
@field_options(
    [field for field in dataclasses.fields(BuildOptions) if field.name != "engines"], note_of_value
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print what each pass did to each graph and what it left alone.",
)
@field_options(
    [field for field in dataclasses.fields(EngineOptions) if field.name != "cache"], note_of_value
)
@click.option(
    "--engine-cache",
    type=PATH,
    help="Engines: cache of engines of earlier exports. Default: the user's cache directory.",
)
@click.option("--no-engine-cache", is_flag=True, help="Engines: do not use the cache.")
@click.option("--force", is_flag=True, help="Replace the bundle at --output.")
def export(
    checkpoints: tuple[Path, ...],
    out: Path,
    ensemble: bool,
    explain: bool,
    force: bool,
    **flags: Any,
) -> None:
    """Compile CHECKPOINT, a directory made by `translate-trt train`, into a bundle.

    Of a whole run, export takes the averaged checkpoint or, without one, the latest, and warns if
    the best one is clearly better.

    With --ensemble, the probability of a next token is the mean of the checkpoints' probabilities.
    Decoding defaults are those of the first.
    """
    _check_number(checkpoints, ensemble)
    check_apart(out, checkpoints)  # also if a checkpoint is a whole run
    options = _build_options(flags)  # checked before PyTorch is imported, which takes seconds
    from translate_trt.export.compile import compile_bundle
    from translate_trt.train.checkpoint import open_checkpoint

    first, *others = opened = [*map(open_checkpoint, checkpoints)]
    for run, checkpoint in zip(checkpoints, opened, strict=True):
        _warn_of_better(run, checkpoint)
    compiled = compile_bundle(first, out, options, force, others)
    for name, target in compiled.manifest.targets.items():
        if explain:
            click.echo(f"{name}\n{_table(compiled.reports[name])}\n")
        size = sum(file.bytes for file in target.files.values())
        click.echo(f"{out}: {name}, {size / 1e6:.1f} MB")


def _build_options(flags: dict[str, Any]) -> BuildOptions:
    """Make the options of the build from all other flags."""
    from translate_trt.runtime.io.cache_files import engine_directory

    cache, off = flags.pop("engine_cache"), flags.pop("no_engine_cache")
    chosen = given(flags)
    names = {field.name for field in dataclasses.fields(EngineOptions)} & chosen.keys()
    engines = EngineOptions(
        cache=None if off else cache or engine_directory(),
        **{name: chosen.pop(name) for name in names},
    )
    return BuildOptions(engines=engines, **chosen)


def _warn_of_better(run: Path, checkpoint: Checkpoint) -> None:
    """Warn if another checkpoint of the run validates better."""
    from translate_trt.export.distillation.student_training import best_checkpoint

    try:
        best = best_checkpoint(run)
    except TranslateTrtError as error:
        log.warning("it is unknown whether another checkpoint validates better: %s", error)
        return
    if best != checkpoint.path:
        log.warning("%s is exported, but %s validates better; name it", checkpoint.path, best)


def _check_number(checkpoints: tuple[Path, ...], ensemble: bool) -> None:
    """Refuse several checkpoints without --ensemble, and --ensemble with a single one."""
    if ensemble and len(checkpoints) == 1:
        raise OptionError(
            f"--ensemble needs at least two checkpoints, and {checkpoints[0]} is the only one; "
            "name the others, or leave out --ensemble."
        )
    if len(checkpoints) > 1 and not ensemble:
        raise OptionError(
            f"{len(checkpoints)} checkpoints are given: add --ensemble to compile them into one "
            "bundle, or export each into a bundle of its own."
        )


def _table(reports: list[Report]) -> str:
    """Table of all passes, followed by the reasons why they left subgraphs alone."""
    rows = [("graph", "pass", "matches", "expected", "nodes before", "nodes after", "summary")]
    rows += [
        (
            report.graph,
            report.name,
            "off" if report.matches is None else str(report.matches),
            "-" if report.expected is None else str(report.expected),
            str(report.nodes_before),
            str(report.nodes_after),
            report.summary,
        )
        for report in reports
    ]
    refused = [
        f"{report.graph}, {report.name} left alone {reason}"
        for report in reports
        for reason in report.refused
    ]
    return "\n".join([*columns(rows), *refused])

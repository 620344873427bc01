"""`translate-trt export`: checkpoint to bundle."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.names import PATH, output_option
from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.io.outputs import check_apart
from translate_trt.runtime.io.report import columns

if TYPE_CHECKING:
    from translate_trt.export.build_options import BuildOptions
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
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="onnx-fp32, onnx-int8, onnx-fp16, or tensorrt-, tensorrt-rtx-, torch- with fp16, bf16 or "
    "fp32; the first two also with -shortlist; may be given several times, the first is the "
    "default. Default: onnx-fp32, or onnx-fp32-shortlist if there is a shortlist.",
)
@click.option(
    "--shortlist",
    type=PATH,
    help="Table made by translate-trt shortlist, for targets that end in -shortlist. Default: that "
    "of the checkpoint; imported models may have one.",
)
@click.option(
    "--max-source-length",
    type=int,
    help="Longest source in tokens, end symbol included. Default: the --max-pair-length that the "
    "model was trained with.",
)
@click.option(
    "--max-target-length",
    type=int,
    help="Longest translation in tokens, end symbol included. Default: that of the source plus 50, "
    "or the model's own extra length.",
)
@click.option(
    "--attention",
    is_flag=True,
    help="Return cross-attention with translations, which alignments and markup need: that of the "
    "model's alignment heads, or the last layer's, averaged over the heads.",
)
@click.option(
    "--attention-layer",
    type=int,
    help="Decoder layer whose cross-attention is returned, from 0; -1 is the last. Implies "
    "--attention.",
)
@click.option(
    "--attention-heads",
    metavar="N,...",
    help="Heads of the layer that are averaged, from 0. Default: all. Implies --attention.",
)
@click.option(
    "--beam-size",
    type=int,
    default=4,
    show_default=True,
    help="Beam size of engines and torch targets; other targets take any.",
)
@click.option(
    "--all-options",
    is_flag=True,
    help="Engines, torch: compile penalties, banned tokens, sampling and constraints in, which "
    "other targets always have. Every step then has more operators.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print what each pass did to each graph and what it left alone.",
)
@click.option(
    "--disable-pass",
    "disabled_passes",
    multiple=True,
    help="Leave out an optimization pass, by its name in --explain; may be given several times.",
)
@click.option(
    "--dump-passes",
    "dump",
    type=PATH,
    help="Write every graph after every pass to this directory, as ONNX.",
)
@click.option(
    "--max-batch",
    type=int,
    help="Engines, torch: largest batch. Default: that of --profiles, or 64.",
)
@click.option(
    "--profiles",
    help="Engines: buckets of batch x source length that kernels are tuned for, such as "
    "1x64,8x64,64x256. Default: one sentence, and --max-batch sentences.",
)
@click.option(
    "--target-lengths",
    help="Engines, torch: translation lengths in tokens. A step reads as many cache slots as the "
    "smallest that holds its batch. Default: 32,64,128; --max-target-length is always added.",
)
@click.option(
    "--optimization-level",
    type=int,
    default=3,
    show_default=True,
    help="Engines: from 0, the fastest build, to 5, the longest search for fast kernels.",
)
@click.option("--tf32", is_flag=True, help="Engines: allow TF32 in fp32 matmuls (10 bits).")
@click.option("--workspace-mib", type=int, help="Engines: limit of the workspace of kernels.")
@click.option(
    "--version-compatible",
    is_flag=True,
    help="TensorRT engines: loadable by newer TensorRT versions of the same major version.",
)
@click.option(
    "--hardware-compatible",
    default="none",
    show_default=True,
    help="TensorRT engines: none, same_compute_capability or ampere_plus.",
)
@click.option(
    "--compute-capability",
    "compute_capabilities",
    multiple=True,
    help="TensorRT-RTX engines: GPUs to build for, as 8.9, or current or portable; may be given "
    "several times. Default: the GPU of this machine, or portable if it has none.",
)
@click.option(
    "--strip-weights",
    is_flag=True,
    help="Engines: leave out the weights, which the loader restores from the graph (needs a GPU).",
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
    from translate_trt.export.build_options import BuildOptions, parse_heads
    from translate_trt.export.engines.options import EngineOptions, parse_lengths, parse_profiles
    from translate_trt.runtime.io.cache_files import engine_directory

    for name, parse in (
        ("attention_heads", parse_heads),
        ("profiles", parse_profiles),
        ("target_lengths", parse_lengths),
    ):
        flags[name] = () if flags[name] is None else parse(flags[name])
    cache, off = flags.pop("engine_cache"), flags.pop("no_engine_cache")
    flags["cache"] = None if off else cache or engine_directory()
    return BuildOptions(engines=take(flags, EngineOptions), **flags)


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

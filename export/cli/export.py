"""`translate-trt export`: checkpoint to bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translate_trt.runtime.cli.names import output_option
from translate_trt.runtime.io.report import columns

if TYPE_CHECKING:
    from translate_trt.export.passes.pipeline import Report


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@output_option("The bundle to make.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("onnx-fp32",),
    show_default=True,
    help="onnx-fp32, onnx-int8, onnx-fp16, or tensorrt-, tensorrt-rtx- with fp16, bf16 or fp32; "
    "the first two also with -shortlist; may be given several times, the first is the default.",
)
@click.option(
    "--shortlist",
    type=click.Path(path_type=Path),
    help="Table of translate-trt shortlist, for targets that end in -shortlist.",
)
@click.option(
    "--max-source-length",
    type=int,
    help="Longest source in tokens with the end symbol. Default: the --max-pair-length that the "
    "model was trained with.",
)
@click.option(
    "--max-target-length",
    type=int,
    help="Longest translation in tokens with the end symbol. Default: the source's and 50.",
)
@click.option("--attention", is_flag=True, help="Let translations come with attention weights.")
@click.option(
    "--beam-size",
    type=int,
    default=4,
    show_default=True,
    help="Beams that engines are made for; the other targets take any.",
)
@click.option(
    "--explain", is_flag=True, help="Print what each pass did to each graph, and why it did not."
)
@click.option(
    "--disable-pass",
    "disabled_passes",
    multiple=True,
    help="Leave an optimization out, by the name that --explain has for it.",
)
@click.option(
    "--dump-passes",
    "dump",
    type=click.Path(path_type=Path),
    help="Keep every graph after every pass in this directory, as ONNX.",
)
@click.option(
    "--max-batch", type=int, help="Engines: sentences at most. Default: of the profiles, or 64."
)
@click.option(
    "--profiles",
    help="Engines: buckets of batch x source length that kernels are tuned for, such as "
    "1x64,8x64,64x256. Default: one sentence, and --max-batch.",
)
@click.option(
    "--optimization-level",
    type=int,
    default=3,
    show_default=True,
    help="Engines: 0 builds fastest, 5 searches longest for fast kernels.",
)
@click.option("--tf32", is_flag=True, help="Engines: let fp32 products round to 10 bits.")
@click.option("--workspace-mib", type=int, help="Engines: scratch memory of kernels at most.")
@click.option(
    "--version-compatible",
    is_flag=True,
    help="TensorRT engines: newer versions of the same major one load them.",
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
    "several times. Default: the GPU that is here, else portable.",
)
@click.option(
    "--strip-weights",
    is_flag=True,
    help="Engines: without weights, which are put back from the graph at load (needs a GPU).",
)
@click.option(
    "--engine-cache",
    type=click.Path(path_type=Path),
    help="Engines: where those of earlier exports are kept. Default: the user's cache directory.",
)
@click.option("--no-engine-cache", is_flag=True, help="Engines: keep and reuse nothing.")
@click.option("--force", is_flag=True, help="Replace the bundle at --output.")
def export(
    checkpoint: Path,
    out: Path,
    targets: tuple[str, ...],
    shortlist: Path | None,
    max_source_length: int | None,
    max_target_length: int | None,
    attention: bool,
    beam_size: int,
    explain: bool,
    disabled_passes: tuple[str, ...],
    dump: Path | None,
    profiles: str | None,
    engine_cache: Path | None,
    no_engine_cache: bool,
    force: bool,
    **engine: Any,
) -> None:
    """Compile CHECKPOINT, a directory made by `translate-trt train`, into a bundle.

    Given a whole run, its averaged checkpoint is taken, or the latest while there is none.
    """
    # Without PyTorch, whose import takes seconds: wrong options are reported at once.
    from translate_trt.export.build_options import BuildOptions
    from translate_trt.export.engines.options import (
        EngineOptions,
        default_cache,
        parse_profiles,
    )
    from translate_trt.runtime.io.outputs import check_apart

    check_apart(out, [checkpoint])  # a whole run, too
    options = BuildOptions(
        targets=targets,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
        attention=attention,
        beam_size=beam_size,
        disabled_passes=disabled_passes,
        dump=dump,
        engines=EngineOptions(
            profiles=() if profiles is None else parse_profiles(profiles),
            cache=None if no_engine_cache else engine_cache or default_cache(),
            **engine,
        ),
        shortlist=shortlist,
    )
    from translate_trt.export.compile import compile_bundle
    from translate_trt.train.checkpoint import open_checkpoint

    compiled = compile_bundle(open_checkpoint(checkpoint), out, options, force)
    for name, target in compiled.manifest.targets.items():
        if explain:
            click.echo(f"{name}\n{_table(compiled.reports[name])}\n")
        size = sum(file.bytes for file in target.files.values())
        click.echo(f"{out}: {name}, {size / 1e6:.1f} MB")


def _table(reports: list[Report]) -> str:
    """What each pass did, and under it why it left places alone."""
    rows = [("graph", "pass", "matches", "expected", "nodes before", "nodes after", "what it does")]
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

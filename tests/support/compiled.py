"""Bundles that are compiled once for all tests and runs that compile the same.

Tests of the compilation itself call `compile_bundle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.disk_cache import hash_files
from support.shared import SharedFiles
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.train.checkpoint import Checkpoint

#: Modules that `compile_bundle` only refuses models with.
APART = ("translate_trt.train.evaluation.validation",)


def compile_once(
    shared: SharedFiles,
    checkpoint: Checkpoint,
    options: BuildOptions,
    others: Sequence[Checkpoint] = (),
) -> Path:
    """Return the bundle of `compile_bundle`. Tests must copy it to change it."""
    assert options.dump is None, "a dump is written by the compilation alone"
    inputs = [
        (hash_files(one.path), replace(one, path=Path(), tokenizers=(Path(), Path())))
        for one in (checkpoint, *others)
    ]
    table = options.shortlist and hash_files(options.shortlist)
    engines = replace(options.engines, cache=None)
    asked = (inputs, table, replace(options, shortlist=None, engines=engines))
    return shared.kept(
        "bundle",
        ("translate_trt.export.compile",),
        asked,
        lambda path: compile_bundle(checkpoint, path, options, others=others),
        APART,
    )

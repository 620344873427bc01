"""`translate-trt calibrate`: calibrate the confidence of words on text with references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime.bundle.manifest import locked_manifest, read_manifest, write_manifest
from translate_trt.runtime.cli.bundle_flags import bundle_argument, target_flags
from translate_trt.runtime.cli.command import Command, take
from translate_trt.runtime.cli.loading import Loading, load_translator, loading_flags
from translate_trt.runtime.cli.names import PATH
from translate_trt.runtime.cli.search_flags import language_flags, replace_options
from translate_trt.runtime.confidence import learn_calibration, occurrences
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.io.lines import read_parallel


@click.command(cls=Command)
@bundle_argument
@target_flags
@click.option("--source", type=PATH, required=True, help="Lines to translate.")
@click.option("--reference", type=PATH, required=True, help="Reference translations of --source.")
@language_flags
@loading_flags
def calibrate(source: Path, reference: Path, chunk_lines: int, **flags: Any) -> None:
    """Calibrate the confidence that `translate --words` gives to the words of a target.

    The lines are translated with the bundle's options. A word is right if it stands in the
    reference, in the same order. The calibration is learned from every second line and measured on
    the others: its expected calibration error, before and after, is printed. It is stored in the
    manifest, in place of an earlier one. Use text like that to be translated, and none that the
    model was trained on.
    """
    loading = take(flags, Loading)
    pairs = list(read_parallel(source, reference))
    translator = load_translator(loading, [str(source)])
    options = replace(
        replace_options(translator.default_options, flags), num_hypotheses=1, alternatives=0
    )
    lines = []
    found = translator.translate_iter((line for line, _ in pairs), options, chunk_lines=chunk_lines)
    for translation, (_, wanted) in zip(found, pairs, strict=True):
        words = translator.words(translation.hypotheses[0])
        lines.append((words, occurrences([word.text for word in words], wanted)))
    calibration = learn_calibration(lines)
    entry, bundle = translator.target, loading.bundle
    with locked_manifest(bundle):
        manifest = read_manifest(bundle)
        now = manifest.targets.get(entry.name)
        if now is None or now.files != entry.files:
            raise BundleError(
                f"{bundle} was replaced while {entry.name} was calibrated; run calibrate again."
            )
        changed = replace(now, calibration=calibration.to_json())
        write_manifest(bundle, replace(manifest, targets={**manifest.targets, now.name: changed}))
    right = sum(map(sum, (marks for _, marks in lines)))
    count = sum(len(words) for words, _ in lines)
    click.echo(
        f"{entry.name}: {count} words of {len(lines)} lines, {right / count:.1%} of them in the "
        f"reference\nexpected calibration error on the words held out: "
        f"{calibration.error_before:.4f} before, {calibration.error_after:.4f} after"
    )

"""`translate-trt info`: contents and integrity of a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from translate_trt.runtime import kernels, native
from translate_trt.runtime.backends.engines import engine_records, supported_gpus
from translate_trt.runtime.backends.nvidia_driver import find_gpu
from translate_trt.runtime.backends.packages import extra, package_for
from translate_trt.runtime.bundle.contract import Contract, ShortlistForm
from translate_trt.runtime.bundle.manifest import (
    Manifest,
    ModelDescription,
    TargetEntry,
    read_manifest,
    verify_files,
)
from translate_trt.runtime.bundle.prompt import format_languages
from translate_trt.runtime.cli.bundle_flags import bundle_argument
from translate_trt.runtime.cli.command import Command
from translate_trt.runtime.cli.output import print_json, print_sections
from translate_trt.runtime.errors import BundleError, TranslateTrtError
from translate_trt.runtime.io.report import engine_not_run_note
from translate_trt.runtime.native.abi import EngineMemory
from translate_trt.runtime.native.core import engine_memory

Rows = list[tuple[str, str]]


@click.command(cls=Command)
@bundle_argument
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info(bundle: Path, as_json: bool) -> None:
    """Show the contents of a bundle and verify the hash of every file.

    The output also says whether libtranslate_trt and compiled kernels are used on this machine, or
    why not. The exit code is 1 if a file is damaged.
    """
    manifest = read_manifest(bundle)
    problems = {name: _problem(bundle, manifest, name) for name in manifest.targets}
    if as_json:
        checks = {name: problem or "ok" for name, problem in problems.items()}
        print_json(
            {
                **manifest.to_json(),
                "files": checks,
                "kernels": kernels.status(),
                "runtime": native.status(),
                "gpu": _gpu(),
                "engine_memory": _engine_memories(manifest, bundle),
            }
        )
    else:
        print_sections(_sections(manifest, bundle, problems))
    found = list(dict.fromkeys(problem for problem in problems.values() if problem))
    if found:
        raise BundleError("\n".join(found))


def _problem(bundle: Path, manifest: Manifest, target: str) -> str | None:
    try:
        verify_files(bundle, manifest, target)
    except BundleError as error:
        return str(error)
    return None


def _sections(manifest: Manifest, bundle: Path, problems: dict[str, str | None]) -> dict[str, Rows]:
    return {
        "bundle": _bundle_rows(manifest),
        **_model_sections(manifest),
        "tokenizer": [
            (side, f"{entry.path}, {_size(entry.bytes)}")
            for side, entry in manifest.tokenizer.items()
        ],
        **{
            f"target {name}": _target_rows(entry, bundle, problems[name])
            for name, entry in manifest.targets.items()
        },
        "this machine": [
            ("runtime", native.status()),
            ("compiled kernels", kernels.status()),
            ("GPU", _gpu() or "none found"),
        ],
    }


def _gpu() -> str | None:
    """Describe the first GPU and the package for it; None without a GPU or driver."""
    gpu = find_gpu()
    if gpu is None:
        return None
    package = package_for(gpu.compute_capability)
    return f"{gpu}; {'no engines' if package is None else f'{extra(package)} targets'}"


def _bundle_rows(manifest: Manifest) -> Rows:
    sides = {
        "source": (manifest.prompt.source_languages, manifest.source_language),
        "target": (manifest.prompt.target_languages, manifest.target_language),
    }
    names = [f"any of {len(known)}" if known else own or "?" for known, own in sides.values()]
    origin = f"weights of SHA-256 {manifest.weights_sha256}"
    if manifest.members:
        origin = f"an ensemble of {len(manifest.members)} models"
    return [
        ("languages", " to ".join(names)),
        *(
            (f"{side} languages", format_languages(known))
            for side, (known, _) in sides.items()
            if known
        ),
        ("created by", manifest.created_by),
        ("exported from", origin),
        ("format version", str(manifest.format_version)),
        ("search defaults", _pairs(manifest.search) or "none"),
    ]


def _model_sections(manifest: Manifest) -> dict[str, Rows]:
    """Format the model, or what the members of an ensemble have in common and then each member."""
    limits = manifest.limits
    shared = [
        ("vocabulary", _vocabulary(manifest.model)),
        ("longest source", f"{limits.max_source_length} tokens, the end symbol included"),
        ("longest target", f"{limits.max_target_length} tokens, the end symbol included"),
    ]
    if manifest.term_annotation is not None:
        shared.append(("terminology", f"annotated source text ({manifest.term_annotation.form})"))
    if not manifest.members:
        recurrent = all(not target.contract.caches for target in manifest.targets.values())
        shape = _shape_rows(manifest.model, recurrent)
        return {"model": [*shape, *_returned_attention(manifest), *shared]}
    total = sum(member.model.parameters for member in manifest.members)
    return {
        "ensemble": [("parameters", f"{total:,}"), *shared],
        **{
            f"member {number}": [
                ("exported from", f"weights of SHA-256 {member.weights_sha256}"),
                *_shape_rows(member.model, member.recurrent),
            ]
            for number, member in enumerate(manifest.members, 1)
        },
    }


def _shape_rows(model: ModelDescription, recurrent: bool) -> Rows:
    keys = "" if model.key_size == model.value_size else f", keys of {model.key_size}"
    return [
        ("parameters", f"{model.parameters:,}"),
        (
            "layers",
            f"{model.encoder_layers} encoder, {model.decoder_layers} decoder"
            + (", recurrent" if recurrent else ""),
        ),
        ("sizes", f"{model.model_size} model, {model.feed_forward_size} feed-forward"),
        ("attention", f"{model.heads} heads of {model.value_size}{keys}"),
    ]


def _vocabulary(model: ModelDescription) -> str:
    own = model.source_vocabulary_size
    source = f"{own:,} pieces of the source, " if own else ""
    return f"{source}{model.vocabulary_size:,} pieces{' of the target' if own else ''}"


def _returned_attention(manifest: Manifest) -> Rows:
    if (returned := manifest.attention) is None:
        return []
    heads = f"heads {', '.join(map(str, returned.heads))}" if returned.heads else "all heads"
    return [("returned attention", f"decoder layer {returned.layer} of 0 to "
             f"{manifest.model.decoder_layers - 1}, {heads}")]  # fmt: skip


def _target_rows(entry: TargetEntry, bundle: Path, problem: str | None) -> Rows:
    return [
        ("backend", f"{entry.backend}, {entry.precision}"),
        *((role, f"{file.path}, {_size(file.bytes)}") for role, file in entry.files.items()),
        *_engine_rows(entry, bundle),
        ("features", ", ".join(_features(entry.contract)) or "none"),
        *_shortlist_rows(entry.contract.shortlist),
        ("built with", ", ".join(f"{name} {v}" for name, v in entry.builder.items()) or "unknown"),
        *(_parity_rows(entry.parity) if entry.parity else [("parity", "not verified")]),
        ("word confidence", _pairs(entry.calibration) if entry.calibration else "not calibrated"),
        ("files", "ok" if problem is None else "FAILED"),
    ]


def _engine_rows(entry: TargetEntry, bundle: Path) -> Rows:
    if entry.engine is None:
        return []
    try:
        gpus = {supported_gpus(record) for record in engine_records(entry, bundle).values()}
    except BundleError as error:
        return [("engines for", str(error))]
    rows = [("engines for", "; ".join(sorted(gpus)))]
    found = _engine_memory(entry, bundle)
    if isinstance(found, str):
        return [*rows, ("memory of a batch", f"unknown: {found}")]
    least, most = found.workers, found.workers * found.batches
    return [
        *rows,
        (
            "memory of a batch",
            f"{_size(found.device_bytes)} on the GPU, {_size(found.pinned_bytes)} pinned on the "
            "host, and the engines' scratch memory",
        ),
        (
            "memory of batches",
            f"{_size(least * found.device_bytes)} to {_size(most * found.device_bytes)} on the "
            f"GPU, and scratch memory: {found.workers} workers by default, each with 1 to "
            f"{found.batches} batches",
        ),
    ]


def _engine_memory(entry: TargetEntry, bundle: Path) -> EngineMemory | str:
    """Memory of an engine target's batches, or why it is unknown."""
    try:
        return engine_memory(bundle, entry.name)
    except TranslateTrtError as error:
        return str(error)


def _engine_memories(manifest: Manifest, bundle: Path) -> dict[str, Any]:
    names = [name for name, _ in EngineMemory._fields_[1:]]
    found = {
        name: _engine_memory(entry, bundle)
        for name, entry in manifest.targets.items()
        if entry.engine is not None
    }
    return {
        target: one if isinstance(one, str) else {name: getattr(one, name) for name in names}
        for target, one in found.items()
    }


def _shortlist_rows(form: ShortlistForm | None) -> Rows:
    if form is None:
        return []
    return [("shortlist", f"{form.always} tokens, and up to {form.each} for each source token")]


def _parity_rows(parity: dict[str, Any]) -> Rows:
    """Format the result of `translate-trt verify`; unknown values are shown unchanged."""
    try:
        low, high = parity["bleu_difference_interval"]
        verdict = f"passed: {parity['gate']}"
        if not parity["passed"]:
            verdict = f"FAILED: {'; '.join(parity['missed'])}"
        reason = parity["engine_not_run"]
        return [
            ("parity", f"{verdict}, over {parity['sentences']} sentences"),
            *([] if reason is None else [("measured", engine_not_run_note(reason))]),
            ("identical", f"{parity['identical_percent']:.2f} %"),
            ("score difference", f"at most {parity['largest_score_difference']:.2e}"),
            (
                "BLEU",
                f"{parity['bleu']:.2f}, PyTorch {parity['reference_bleu']:.2f}, difference "
                f"{parity['bleu_difference']:+.2f} (95 %: {low:+.2f} to {high:+.2f})",
            ),
            ("signature", parity["signature"]),
            ("test source", f"SHA-256 {parity['source_sha256']}"),
            ("test reference", f"SHA-256 {parity['reference_sha256']}"),
            ("verified on", parity["date"]),
            (
                "speed",
                f"{parity['sentences_per_second']:.1f} sentences/s, "
                f"PyTorch {parity['reference_sentences_per_second']:.1f}",
            ),
        ]
    except (KeyError, TypeError, ValueError):
        return [("parity", _pairs(parity))]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _size(count: int) -> str:
    """Format a size in bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"


def _features(contract: Contract) -> Iterator[str]:
    """Name what export adds on request."""
    if contract.attention:
        yield "attention"
    if contract.marks and contract.beams is not None:
        yield "all options"

"""Installation of a model from its origin: download, import, export, verification."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from translate_trt.export.hub.origin import Origin
from translate_trt.runtime.bundle.manifest import (
    MANIFEST_NAME,
    Manifest,
    bundle_files,
    checked_files,
    read_manifest,
    verify_files,
    write_manifest,
)
from translate_trt.runtime.errors import DownloadError, OptionError, TranslateTrtError
from translate_trt.runtime.model_changes import new_model, write_record
from translate_trt.runtime.model_store import BUNDLE_NAME, ModelRecord

log = logging.getLogger("translate_trt")

#: Format in the record of a bundle that was downloaded as it is.
BUNDLE = "bundle"

# Licenses that exclude uses, by the elements of their identifiers.
_RESTRICTED = re.compile(r"(^|[-_ ])(nc|noncommercial|non-commercial)([-_ ]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class InstallOptions:
    """Options of an installation.

    Attributes:
        targets: Names of targets; empty for onnx-int8, or onnx-int8-shortlist if the model has a
            shortlist. Of a bundle, the targets to keep; empty for all.
        languages: Codes of source and target; None where they are those of the name, if any.
        attention: The step graphs return cross-attention, which alignments and markup need; None
            for yes, where the model is exported.
        verify: Compare the bundle with the model on the samples.
        threads: CPU threads of the verified targets; None for all cores. PyTorch's threads are not
            changed.
    """

    targets: tuple[str, ...] = ()
    languages: tuple[str | None, str | None] = (None, None)
    attention: bool | None = None
    verify: bool = True
    threads: int | None = None


def install(
    open_origin: Callable[[], Origin],
    name: str,
    options: InstallOptions,
    force: bool = False,
    tell: Callable[[str], None] = log.info,
) -> ModelRecord:
    """Install a model; afterwards it is complete, or the store is as before.

    Args:
        open_origin: Looks up the model; called when no other process installs the same one.
        name: Name of the model in the store.
        options: Options of the installation.
        force: Replace an installed model of the name.
        tell: Receives a line of text for each stage.

    Raises:
        TranslateTrtError: The model cannot be downloaded, is not supported, or its bundle
            translates otherwise than the model.
    """
    with new_model(name, force) as directory:
        origin = open_origin()
        _tell_license(origin, tell)
        manifest = _pull(origin, directory, options, tell)
        model_format = BUNDLE
        evidence: dict[str, Any] = {}
        if manifest is None:
            model_format, evidence = _convert(origin, directory, options, tell)
            manifest = read_manifest(directory / BUNDLE_NAME)
        record = ModelRecord(
            name=name,
            source=origin.source,
            repository=origin.repository,
            revision=origin.revision,
            license=origin.license,
            format=model_format,
            source_languages=manifest.source_languages,
            target_languages=manifest.target_languages,
            installed=datetime.now(UTC).date().isoformat(),
            bytes=sum(
                path.stat().st_size
                for path in (directory / BUNDLE_NAME).rglob("*")
                if path.is_file()
            ),
            verification=evidence,
        )
        write_record(directory, record)
    return record


def _tell_license(origin: Origin, tell: Callable[[str], None]) -> None:
    tell(f"{origin.repository} at {origin.revision}, license: {origin.license or 'none stated'}")
    if origin.license is None:
        log.warning(
            "%s states no license: without one, its use needs the permission of its authors",
            origin.repository,
        )
    elif _RESTRICTED.search(origin.license):
        log.warning(
            "the license of %s, %s, excludes commercial use", origin.repository, origin.license
        )


def _fetch(origin: Origin, names: Iterable[str], tell: Callable[[str], None]) -> dict[str, Path]:
    names = sorted(names)
    size = sum(origin.files[name].bytes or 0 for name in names)
    tell(f"fetching {len(names)} files" + (f", {size / 1e6:.1f} MB" if size else ""))
    return origin.fetch(names)


# ---- bundles ----


def _pull(
    origin: Origin, directory: Path, options: InstallOptions, tell: Callable[[str], None]
) -> Manifest | None:
    """Download a bundle and check its hashes; return None if the origin has no bundle."""
    if MANIFEST_NAME not in origin.files:
        return None
    bundle = directory / BUNDLE_NAME
    bundle.mkdir()
    _copy(origin.fetch([MANIFEST_NAME]), bundle)
    if bundle_files(bundle) is None:  # of another program
        shutil.rmtree(bundle)
        return None
    manifest = read_manifest(bundle)
    for option, given in (
        ("attention", options.attention is not None), ("languages", any(options.languages))
    ):  # fmt: skip
        if given:
            raise OptionError(
                f"{option} is an option of the export, and {origin.repository} is a bundle, which "
                "is installed as it is; leave it out."
            )
    if options.targets:
        chosen = {name: manifest.target(name) for name in options.targets}
        manifest = replace(manifest, targets=chosen)
        write_manifest(bundle, manifest)
    names = checked_files(manifest)
    for name in sorted(names):
        if name not in origin.files:
            raise DownloadError(
                f"{origin.repository} lacks {name}, which its manifest names; it is incomplete."
            )
    _copy(_fetch(origin, names, tell), bundle)
    for name in manifest.targets:
        verify_files(bundle, manifest, name)
    return manifest


def _copy(files: dict[str, Path], bundle: Path) -> None:
    for name, path in files.items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, bundle / name)


# ---- models of other toolkits, and checkpoints ----


def _convert(
    origin: Origin, directory: Path, options: InstallOptions, tell: Callable[[str], None]
) -> tuple[str, dict[str, Any]]:
    """Import, export and verify a model; return its format and the evidence."""
    _check_packages(origin)
    from translate_trt.export.build_options import BuildOptions
    from translate_trt.export.compile import compile_bundle
    from translate_trt.export.hub.verification import describe, verify_sample
    from translate_trt.export.importers.input_files import load_json
    from translate_trt.export.importers.recognition import recognize
    from translate_trt.train.checkpoint import open_checkpoint

    attention = options.attention is not False
    if options.targets:  # names are checked before hours of downloads
        BuildOptions(options.targets, attention=attention)
    names = [name for name in origin.files if "/" not in name.removeprefix("model/")]
    model = recognize(
        origin.repository, names, lambda name: load_json(origin.fetch([name])[name])
    )  # fmt: skip
    tell(f"{origin.repository} is {model.title}")
    if model.load is None and any(options.languages):
        raise OptionError(
            f"languages: {origin.repository} is {model.title}, which has its languages; leave the "
            "option out."
        )
    work, bundle = directory / "work", directory / BUNDLE_NAME
    source = work / "model"
    source.mkdir(parents=True)
    _link(_fetch(origin, model.files(names), tell), source)
    checkpoint = source
    if model.load is not None:
        source_language, target_language = options.languages
        languages = source_language or origin.languages[0], target_language or origin.languages[1]
        checkpoint = work / "checkpoint"
        model.load(source, languages).save(checkpoint, languages)
    opened = open_checkpoint(checkpoint)
    default = "onnx-int8" if opened.shortlist is None else "onnx-int8-shortlist"
    targets = options.targets or (default,)
    tell(f"compiling {', '.join(targets)}")
    compile_bundle(opened, bundle, BuildOptions(targets, attention=attention))
    evidence = {}
    if options.verify:
        tell("comparing with PyTorch")
        evidence = verify_sample(bundle, opened, options.threads)
        for name, values in evidence.items():
            tell(f"{name}: {describe(values)}")
    shutil.rmtree(work)
    return model.name, evidence


def _check_packages(origin: Origin) -> None:
    """Refuse, before a download, to import a model without the packages of the export."""
    try:
        import onnxscript  # noqa: F401
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise TranslateTrtError(
            f"{origin.repository} is no bundle, and to import and export it, the export packages "
            f"are needed: pip install 'translate-trt[export]' ({error.name} is missing)"
        ) from error


def _link(files: dict[str, Path], directory: Path) -> None:
    """Make the files appear in a directory of their own, where no other file confuses an import."""
    for name, path in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.symlink(path.resolve(), directory / name)
        except OSError:  # Windows without the right to create links
            shutil.copyfile(path, directory / name)

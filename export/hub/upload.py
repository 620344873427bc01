"""Uploads of bundles to the Hugging Face Hub, with a model card."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCardData,
    hf_hub_download,
)

from translate_trt.export.hub.repository import MAIN, hub_api, hub_errors
from translate_trt.export.hub.sample_languages import language_flags
from translate_trt.runtime.bundle.manifest import (
    MANIFEST_NAME,
    Manifest,
    bundle_files,
    checked_files,
    read_manifest,
    verify_files,
)
from translate_trt.runtime.bundle.prompt import format_languages
from translate_trt.runtime.model_store import ModelRecord, record_of
from translate_trt.runtime.text.sentences import base_language

CARD = "README.md"


def upload(
    bundle: Path, repository: str, license: str, private: bool = False, message: str | None = None
) -> str:
    """Upload a bundle in one commit, after a check of its hashes.

    The commit deletes files of a bundle that is in the repository, unless the new one has them too.

    Args:
        bundle: Directory of the bundle.
        repository: Name of the repository, which is created if it does not exist.
        license: Identifier of the license of the model.
        private: Create a private repository.
        message: Message of the commit.

    Returns:
        Hash of the commit.

    Raises:
        BundleError: The bundle is damaged.
        DownloadError: The Hub refuses the upload, or the connection fails.
    """
    manifest = read_manifest(bundle)
    for name in manifest.targets:
        verify_files(bundle, manifest, name)
    card = model_card(manifest, repository, license, record_of(bundle))
    names = sorted({MANIFEST_NAME, *checked_files(manifest)})
    additions = [CommitOperationAdd(CARD, card.encode())]
    additions += [CommitOperationAdd(name, str(bundle / name)) for name in names]
    api = hub_api()
    with hub_errors(repository, MAIN, upload=True):
        api.create_repo(repository, private=private, exist_ok=True)
        head, former = _former_files(api, repository)
        deletions = [
            CommitOperationDelete(name, is_folder=False)
            for name in sorted(former.difference(names, [CARD]))
        ]
        # If another commit arrives meanwhile, the server refuses this one, whose deletions are of
        # files that it may not know.
        commit = api.create_commit(
            repository, [*additions, *deletions], parent_commit=head,
            commit_message=message or "Bundle of translate-trt",
        )  # fmt: skip
    return str(commit.oid)


def _former_files(api: HfApi, repository: str) -> tuple[str | None, set[str]]:
    """Return the newest commit of a repository, and its files that belong to a bundle."""
    info = api.model_info(repository, revision=MAIN)
    present = {file.rfilename for file in info.siblings or ()}
    if MANIFEST_NAME not in present:
        return info.sha, set()
    manifest = hf_hub_download(repository, MANIFEST_NAME, revision=info.sha)
    return info.sha, present & (bundle_files(Path(manifest).parent) or set())


def model_card(
    manifest: Manifest, repository: str, license: str, origin: ModelRecord | None
) -> str:
    """Return the model card of a bundle: its languages, targets, evidence and use.

    Args:
        manifest: Manifest of the bundle.
        repository: Name of the repository.
        license: Identifier of the license.
        origin: Record of the installed model, if the bundle is one.
    """
    sides = manifest.source_languages, manifest.target_languages
    codes = sorted({base for side in sides for code in side if (base := base_language(code))})
    base = origin.repository if origin is not None and origin.source == "hub" else None
    data = ModelCardData(
        language=codes or None, license=license, library_name="translate-trt",
        pipeline_tag="translation", base_model=base,
    )  # fmt: skip
    lines = [
        "---", data.to_yaml(), "---", "", f"# {repository.rpartition('/')[2]}", "",
        "A bundle of translate-trt: a translation model compiled with its beam search.", "",
        "```", f"translate-trt get {repository}",
        f"translate-trt translate --bundle {repository}{language_flags(manifest)}", "```", "",
        *_languages(manifest), *_origin(origin), "## Targets", "", *_targets(manifest), "",
        "## Agreement with PyTorch", "", *_evidence(manifest), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _languages(manifest: Manifest) -> list[str]:
    found = []
    for side, known in (
        ("Source", manifest.prompt.source_languages), ("Target", manifest.prompt.target_languages)
    ):  # fmt: skip
        if known:
            found.append(f"{side} languages: {format_languages(known)}.")
    if not found and manifest.source_language and manifest.target_language:
        found = [f"Languages: {manifest.source_language} to {manifest.target_language}."]
    return [line for text in found for line in (text, "")]


def _origin(origin: ModelRecord | None) -> list[str]:
    if origin is None:
        return []
    return [f"Made from {origin.repository} at {origin.revision} ({origin.format}).", ""]


def _targets(manifest: Manifest) -> list[str]:
    rows = ["| target | backend | precision | size, MB |", "|---|---|---|---|"]
    for name, entry in manifest.targets.items():
        size = sum(file.bytes for file in entry.files.values()) / 1e6
        rows.append(f"| {name} | {entry.backend} | {entry.precision} | {size:.1f} |")
    return rows


def _evidence(manifest: Manifest) -> list[str]:
    rows = [
        "| target | sentences | identical, % | BLEU | BLEU of PyTorch | gate | date |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, entry in manifest.targets.items():
        found = entry.parity
        if not found:
            rows.append(f"| {name} | not verified | | | | | |")
            continue
        cells = [
            name, found.get("sentences"), _number(found.get("identical_percent")),
            _number(found.get("bleu")), _number(found.get("reference_bleu")),
            f"{'passed' if found.get('passed') else 'failed'}: {found.get('gate')}",
            found.get("date") or "",
        ]  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "?"

"""Bundle manifest: reading, writing and verification.

A bundle is a directory whose `manifest.json` lists every other file by relative path, size and
SHA-256. No file is found by its name alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from translate_trt.runtime.arguments import describe
from translate_trt.runtime.bundle import contract_fields
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.fields import REMEDY, Fields, refuse_constant
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.errors import BundleError, OptionError
from translate_trt.runtime.interface.search_options import OPTIONS
from translate_trt.runtime.io.atomic_files import clear_leftovers, write_json
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.io.locks import lock_beside, locked
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.model_store import advice_for
from translate_trt.runtime.options import SearchOptions

FORMAT_VERSION = 12
MANIFEST_NAME = "manifest.json"

#: Suffix of a target's shortlist variant, in which every sentence has its own list of candidate
#: tokens; the target without the suffix uses the whole vocabulary.
SHORTLIST = "-shortlist"

# Timeout for another process that is changing the manifest.
_SECONDS_TO_CHANGE = 60.0


@dataclass(frozen=True)
class ModelDescription:
    """Properties of the model that the runtime needs or `info` shows.

    Attributes:
        vocabulary_size: Size V of the target vocabulary; ids are 0 to V - 1.
        start_token: Decoder input before the first target token.
        pad_token: Padding symbol; -1 if the vocabulary has none.
        unknown_token: Unknown symbol; -1 if the vocabulary has none.
        parameters: Number of weights.
        source_vocabulary_size: Size of a separate source vocabulary; 0 if source and target share
            one vocabulary.
        source_end: True if the decoder attends to the source's end symbol.
    """

    encoder_layers: int
    decoder_layers: int
    heads: int
    key_size: int
    value_size: int
    model_size: int
    feed_forward_size: int
    vocabulary_size: int
    start_token: int
    end_token: int
    pad_token: int
    unknown_token: int
    parameters: int
    source_vocabulary_size: int = 0
    source_end: bool = True

    @classmethod
    def from_json(cls, fields: Fields) -> ModelDescription:
        """Read the description from the object `model` of a manifest."""
        smallest = {
            "start_token": 0, "end_token": 0, "pad_token": -1, "unknown_token": -1,
            "source_vocabulary_size": 0,
        }  # fmt: skip
        numbers = {
            name: fields.integer(name, smallest.get(name, 1))
            for name in cls.__dataclass_fields__
            if name != "source_end"
        }
        return cls(**numbers, source_end=fields.boolean("source_end"))

    @property
    def input_vocabulary_size(self) -> int:
        """Size of the source vocabulary, shared or separate."""
        return self.source_vocabulary_size or self.vocabulary_size


@dataclass(frozen=True)
class MemberDescription:
    """A member of an ensemble, for `info` and `verify`.

    Attributes:
        model: Properties of the model.
        weights_sha256: SHA-256 of the checkpoint's weights.
        recurrent: Whether its decoder layers are recurrent.
    """

    model: ModelDescription
    weights_sha256: str
    recurrent: bool

    @classmethod
    def from_json(cls, fields: Fields) -> MemberDescription:
        """Read the description from an element of the list `members` of a manifest."""
        return cls(
            ModelDescription.from_json(fields.object("model")),
            fields.text("weights_sha256"),
            fields.boolean("recurrent"),
        )


@dataclass(frozen=True)
class Limits:
    """Maximum lengths in tokens, the end symbol included."""

    max_source_length: int
    max_target_length: int

    @classmethod
    def from_json(cls, fields: Fields) -> Limits:
        """Read the limits from the object `limits` of a manifest."""
        return cls(**{name: fields.integer(name, 1) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class FileEntry:
    """A file of a bundle.

    Attributes:
        path: Path relative to the bundle, with forward slashes.
        sha256: SHA-256 of the content in lower-case hexadecimal.
        bytes: Size of the file.

    Raises:
        BundleError: The path could lead out of the bundle.
    """

    path: str
    sha256: str
    bytes: int

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        windows = "\\" in self.path or PureWindowsPath(self.path).drive
        if windows or not self.path.isprintable() or {"", ".", ".."} & set(parts):
            raise BundleError(
                f"the file path {self.path!r} is not allowed in a bundle: it must be relative, "
                "with forward slashes and without '..'."
            )

    @classmethod
    def from_json(cls, fields: Fields) -> FileEntry:
        """Read the entry from an object with path, sha256 and bytes."""
        sha256 = fields.text("sha256")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            fields.fail("sha256", "64 lower-case hexadecimal digits", sha256)
        return cls(fields.text("path"), sha256, fields.integer("bytes", 0))

    def locate(self, bundle: Path) -> Path:
        """Return the path of the file on this machine.

        The path cannot leave the bundle, but a symbolic link at this path may lead anywhere, as in
        the cache of the Hugging Face Hub: the hash protects the content.
        """
        return bundle / self.path

    def check_hash(self, path: Path, sha256: str) -> None:
        """Raise a BundleError if the SHA-256 of the file at a path is not that of the entry."""
        if sha256 != self.sha256:
            raise BundleError(
                f"{path} has SHA-256 {sha256}, the manifest says {self.sha256}: "
                f"the file was changed or damaged. {REMEDY}"
            )


@dataclass(frozen=True)
class TargetEntry:
    """The model compiled for one backend in one precision.

    Attributes:
        name: Key in the manifest, such as "onnx-int8".
        backend: Name of the backend in `runtime/backends/`.
        precision: Precision of weights and matmuls, such as "fp32".
        files: Files by role; ONNX targets have "encoder" and "step".
        contract: Inputs and outputs of both graphs.
        engine: Records of the engines by role (`engines.EngineRecord`); None for ONNX targets.
        builder: Version of each package that took part in the export.
        parity: Result of `translate-trt verify`; None if the target was not verified.
        calibration: Result of `translate-trt calibrate` (`confidence.Calibration`); None if the
            target was not calibrated.
    """

    name: str
    backend: str
    precision: str
    files: dict[str, FileEntry]
    contract: Contract
    engine: dict[str, Any] | None = None
    builder: dict[str, str] = field(default_factory=dict)
    parity: dict[str, Any] | None = None
    calibration: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, name: str, fields: Fields) -> TargetEntry:
        """Read the entry from the object `targets.<name>` of a manifest."""
        files = fields.object("files")
        backend = fields.text("backend")
        if backend.startswith("onnx"):
            files.object("encoder"), files.object("step")
        return cls(
            name=name,
            backend=backend,
            precision=fields.text("precision"),
            files={role: FileEntry.from_json(entry) for role, entry in files.objects()},
            contract=contract_fields.from_json(fields.object("contract")),
            engine=fields.optional_object("engine"),
            builder=fields.object("builder").all_texts(),
            parity=fields.optional_object("parity"),
            calibration=fields.optional_object("calibration"),
        )


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`.

    Attributes:
        format_version: Format of the manifest.
        created_by: Program and version that wrote the bundle.
        source_language: Source language of a bilingual model; None if unknown.
        target_language: Target language of a bilingual model; None if unknown.
        model: Properties of the model; of an ensemble, those of its first member.
        limits: Maximum lengths.
        prompt: Special tokens around the text.
        search: Default values for fields of `SearchOptions`.
        tokenizer: SentencePiece models "source" and "target", one file if the vocabulary is shared.
        targets: Targets by name, at least one; the first is the default.
        weights_sha256: SHA-256 of the checkpoint's weights, or of the first member's.
        attention: Cross-attention that the step graphs return, of an ensemble that of its first
            member; None if they return none.
        members: Members of an ensemble, at least two; empty for a model alone.
        term_annotation: Annotation of source text that the model was trained with; None for none.
    """

    format_version: int
    created_by: str
    source_language: str | None
    target_language: str | None
    model: ModelDescription
    limits: Limits
    prompt: Prompt
    search: dict[str, Any]
    tokenizer: dict[str, FileEntry]
    targets: dict[str, TargetEntry]
    weights_sha256: str
    attention: AttentionHeads | None = None
    members: tuple[MemberDescription, ...] = ()
    term_annotation: TermAnnotation | None = None

    @property
    def max_segment_length(self) -> int:
        """Maximum tokens of a segment: the source limit less the end symbol and the prompt."""
        return self.limits.max_source_length - 1 - self.prompt.source_length

    @classmethod
    def from_json(cls, fields: Fields) -> Manifest:
        """Read the manifest from its outermost object."""
        tokenizer = fields.object("tokenizer")
        targets = fields.object("targets")
        model = ModelDescription.from_json(fields.object("model"))
        return cls(
            format_version=fields.integer("format_version", 1),
            created_by=fields.text("created_by"),
            source_language=fields.optional_text("source_language"),
            target_language=fields.optional_text("target_language"),
            model=model,
            limits=Limits.from_json(fields.object("limits")),
            prompt=_prompt(fields, model),
            search=_search_defaults(fields.object("search")),
            tokenizer={
                side: FileEntry.from_json(tokenizer.object(side)) for side in ("source", "target")
            },
            targets={
                name: TargetEntry.from_json(name, entry)
                for name, entry in targets.objects(at_least_one=True)
            },
            weights_sha256=fields.text("weights_sha256"),
            attention=_attention(fields, model),
            members=_members(fields),
            term_annotation=TermAnnotation.from_json(fields.object("term_annotation"))
            if "term_annotation" in fields.values
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the manifest to JSON values, which `from_json` reads back."""
        value = asdict(self)
        value["prompt"] = self.prompt.to_json()
        # Absent rather than empty.
        if not self.members:
            del value["members"]
        if self.attention is None:
            del value["attention"]
        del value["term_annotation"]
        if self.term_annotation is not None:
            value["term_annotation"] = self.term_annotation.to_json()
        for target in value["targets"].values():
            del target["name"]  # the key already
        for name, entry in self.targets.items():
            value["targets"][name]["contract"] = contract_fields.to_json(entry.contract)
        return value

    def target(self, name: str | None = None, shortlist: bool = False) -> TargetEntry:
        """Return a target, or its shortlist variant.

        Args:
            name: Name of the target; None selects the first.
            shortlist: Return the shortlist variant of the target.

        Raises:
            BundleError: The bundle has no such target.
            OptionError: The name is not a string.
        """
        if name is None:
            name = next(iter(self.targets))
        if not isinstance(name, str):
            raise OptionError(f"target is {describe(name)}; it must be the name of one target.")
        if shortlist and not name.endswith(SHORTLIST):
            name += SHORTLIST
            if name not in self.targets:
                raise BundleError(
                    f"the bundle has no target {name!r}, so there is no shortlist to use; it has: "
                    f"{', '.join(self.targets)}. Export it with --target {name} --shortlist TABLE."
                )
        if name not in self.targets:
            raise BundleError(
                f"the bundle has no target {name!r}; it has: {', '.join(self.targets)}. "
                "Choose one of these or add the other with translate-trt export."
            )
        return self.targets[name]

    def settings_of(self, entry: TargetEntry) -> dict[str, Any]:
        """Return all that the translations of a target depend on, as JSON, without the options."""
        return {
            "target": entry.name,
            "files": {role: file.sha256 for role, file in sorted(entry.files.items())},
            "tokenizer": {side: file.sha256 for side, file in sorted(self.tokenizer.items())},
            "limits": asdict(self.limits),
        }

    def search_options(self) -> SearchOptions:
        """Return the bundle's default search options."""
        return SearchOptions(**self.search)

    @property
    def source_languages(self) -> tuple[str, ...]:
        """Valid values of the option `source_language`, sorted.

        For a bilingual model this is its own source language, if known.
        """
        return _languages(self.prompt.source_languages, self.source_language)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """Valid values of the option `target_language`, sorted."""
        return _languages(self.prompt.target_languages, self.target_language)

    def check_languages(self, options: SearchOptions) -> None:
        """See `Prompt.check`."""
        self.prompt.check(options, (self.source_language, self.target_language))


def read_manifest(bundle: Path) -> Manifest:
    """Read and check the manifest of a bundle.

    Raises:
        BundleError: The manifest is missing, damaged, or has an unsupported format version.
    """
    path = bundle / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(_why_no_manifest(bundle, error)) from error
    try:
        value: object = json.loads(content.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}. {REMEDY}") from error
    fields = Fields(value, path)
    version = fields.integer("format_version", 1)
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{path} has format version {version}, this translate-trt reads {FORMAT_VERSION}. "
            "Export the model again, or upgrade translate-trt."
        )
    return Manifest.from_json(fields)


def write_manifest(bundle: Path, manifest: Manifest) -> None:
    """Write the manifest atomically.

    Raises:
        OutputError: The disk is full, or the directory is not writable.
    """
    write_json(bundle / MANIFEST_NAME, manifest.to_json())


@contextmanager
def locked_manifest(bundle: Path) -> Iterator[None]:
    """Lock a bundle while the block reads, changes and writes its manifest.

    Raises:
        OutputError: Another process keeps the bundle locked.
    """
    bundle = bundle.resolve()
    # Without write permission beside the bundle no process can replace it, so the lock is optional.
    with locked(lock_beside(bundle), bundle, _SECONDS_TO_CHANGE, optional=True):
        clear_leftovers(bundle / MANIFEST_NAME)
        yield


def hash_file(bundle: Path, path: str) -> FileEntry:
    """Create the manifest entry for a file at a path relative to the bundle.

    Raises:
        BundleError: The file cannot be read, or the path is not allowed.
    """
    entry = FileEntry(path, "", 0)
    return FileEntry(path, *_digest(entry.locate(bundle)))


def verify_files(bundle: Path, manifest: Manifest, target: str, hashes: bool = True) -> None:
    """Verify the files of the tokenizer and of one target.

    Args:
        bundle: Directory of the bundle.
        manifest: Manifest of the bundle.
        target: Name of the target.
        hashes: Compare SHA-256 hashes, which reads every byte; otherwise check only sizes.

    Raises:
        BundleError: A file is missing or differs, or the bundle has no such target.
    """
    for entry in _entries(manifest, [manifest.target(target)]):
        path = entry.locate(bundle)
        if not path.is_file():
            raise BundleError(f"{path}, which the manifest names, is missing. {REMEDY}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(
                f"{path} has {size} bytes, the manifest says {entry.bytes}: "
                f"the file is incomplete or was changed. {REMEDY}"
            )
        if hashes:
            entry.check_hash(path, _digest(path)[0])


def checked_files(manifest: Manifest) -> set[str]:
    """Relative paths of the files that `verify_files` checks, of all targets."""
    return {entry.path for entry in _entries(manifest, manifest.targets.values())}


def _entries(manifest: Manifest, targets: Iterable[TargetEntry]) -> dict[FileEntry, None]:
    """Files of the tokenizer and of targets, each once: a tokenizer may have one for both sides."""
    of_targets = (entry for target in targets for entry in target.files.values())
    return dict.fromkeys((*manifest.tokenizer.values(), *of_targets))


def bundle_files(directory: Path) -> set[str] | None:
    """Relative paths of all files of a bundle of any format version; None if it is no bundle.

    The manifest is not checked, so other objects with a path and a SHA-256 count as files, too.
    """
    try:
        value = json.loads((directory / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("format_version"), int):
        return None
    if not (isinstance(value.get("targets"), dict) and "tokenizer" in value):
        return None
    return {MANIFEST_NAME, *_named_files(value["tokenizer"]), *_named_files(value["targets"])}


def _named_files(value: object) -> Iterator[str]:
    """Iterate over the paths of all file entries in a part of a manifest."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str) and "sha256" in value:
            with suppress(BundleError):  # a path outside of the bundle
                yield FileEntry(value["path"], "", 0).path
        for part in value.values():
            yield from _named_files(part)


#: The kind of directory that `translate-trt export --force` may replace.
BUNDLE = Kind("bundle", "translate-trt export", bundle_files)


def _search_defaults(fields: Fields) -> dict[str, Any]:
    """Read the search defaults, which must be valid `SearchOptions`."""
    for name in fields.values.keys() - OPTIONS.keys():
        fields.fail(name, f"one of {', '.join(OPTIONS)}", name)
    try:
        SearchOptions(**fields.values)
    except OptionError as error:
        fields.fail("*", f"valid defaults ({error})", fields.values)
    return fields.values


def _languages(known: Mapping[str, int], own: str | None) -> tuple[str, ...]:
    return tuple(sorted(known)) or (() if own is None else (own,))


def _attention(fields: Fields, model: ModelDescription) -> AttentionHeads | None:
    """Read the cross-attention that step graphs return; None if the field is missing."""
    if "attention" not in fields.values:
        return None
    heads = AttentionHeads.from_json(fields.object("attention"))
    try:
        return heads.within(model.decoder_layers, model.heads)
    except OptionError:
        fields.fail("attention", "a layer and heads of the model", heads.to_json())


def _members(fields: Fields) -> tuple[MemberDescription, ...]:
    """Read the members of an ensemble; none if the field is missing."""
    found = fields.elements("members")
    if len(found) == 1:
        fields.fail("members", "a list of at least two members", fields.values["members"])
    return tuple(map(MemberDescription.from_json, found))


def _prompt(fields: Fields, model: ModelDescription) -> Prompt:
    """Read the prompt, and check its tokens and that its length leaves tokens for a text."""
    prompt = Prompt.from_json(fields.object("prompt"))
    sizes = model.input_vocabulary_size, model.vocabulary_size
    if any(token >= size for token, size in zip(prompt.largest(), sizes, strict=True)):
        fields.fail("prompt", "tokens of the vocabulary", max(prompt.largest()))
    limits = fields.object("limits")
    least = prompt.source_length + 2  # one token of text and the end symbol
    if (longest := limits.integer("max_source_length", 1)) < least:
        limits.fail("max_source_length", f"at least {least}", longest)
    return prompt


def _why_no_manifest(bundle: Path, error: OSError) -> str:
    if not bundle.exists():
        if (advice := advice_for(bundle)) is not None:
            return f"there is no bundle at {bundle}, and no installed model of that name{advice}"
        return f"there is no bundle at {bundle}; check the path."
    if not bundle.is_dir():
        return f"{bundle} is not a directory; a bundle is the directory with {MANIFEST_NAME} in it."
    if (bundle / "config.json").is_file() and not (bundle / MANIFEST_NAME).exists():
        return (
            f"{bundle} is a checkpoint and not a bundle (it has config.json but no "
            f"{MANIFEST_NAME}); make a bundle of it with translate-trt export."
        )
    if isinstance(error, FileNotFoundError):
        return f"{bundle} is not a bundle: it has no {MANIFEST_NAME}. {REMEDY}"
    return f"cannot read {bundle / MANIFEST_NAME}: {error.strerror}."


def _digest(path: Path) -> tuple[str, int]:
    """Return the SHA-256 in hexadecimal and the size in bytes of a file."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}. {REMEDY}") from error

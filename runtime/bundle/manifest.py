"""The manifest of a bundle: read, check, write, and where the files lie.

A bundle is a directory with a `manifest.json` that names every other file by relative path, size
and SHA-256; nothing in it is found by guessing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn, get_type_hints

from translate_trt.runtime.bundle import contract_fields
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.fields import AGAIN, Fields
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import BundleError, OptionError
from translate_trt.runtime.io.atomic_files import clear_leftovers, write_json
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.io.locks import lock_beside, locked
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.options import SearchOptions

FORMAT_VERSION = 8
MANIFEST_NAME = "manifest.json"

#: At the end of a target's name: a translation is made of a list of tokens that depends on its
#: source; without, the target of that name has the whole vocabulary.
SHORTLIST = "-shortlist"

# What others write into a manifest takes no longer.
_SECONDS_TO_CHANGE = 60.0


@dataclass(frozen=True)
class ModelDescription:
    """What the runtime must know of a model, and what `info` shows.

    Attributes:
        vocabulary_size: V; ids are 0 to V - 1.
        start_token: what the decoder sees before the first target token.
        pad_token: -1 if the vocabulary has none; the same for `unknown_token`.
        parameters: number of weights.
        source_vocabulary_size: of source token ids, if theirs is another vocabulary; 0: it is not.
        source_end: the decoder sees the source's end symbol; else attention has no column for it.
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
        """Read it from the object `model` of a manifest."""
        smallest = {
            "start_token": 0, "end_token": 0, "pad_token": -1, "unknown_token": -1,
            "source_vocabulary_size": 0,
        }  # fmt: skip
        numbers = {
            name: fields.integer(name, smallest.get(name, 1))
            for name in _names(cls)
            if name != "source_end"
        }
        return cls(**numbers, source_end=fields.boolean("source_end"))

    @property
    def source_pieces(self) -> int:
        """Source token ids are 0 to this number - 1."""
        return self.source_vocabulary_size or self.vocabulary_size


@dataclass(frozen=True)
class Limits:
    """Largest lengths the model was made for, in tokens, the end symbol included."""

    max_source_length: int
    max_target_length: int

    @classmethod
    def from_json(cls, fields: Fields) -> Limits:
        """Read it from the object `limits` of a manifest."""
        return cls(**{name: fields.integer(name, 1) for name in _names(cls)})


@dataclass(frozen=True)
class FileEntry:
    """One file of a bundle.

    Attributes:
        path: relative to the bundle, with forward slashes.
        sha256: of its content, in lower-case hexadecimal.
        bytes: its size.

    Raises:
        BundleError: the path could lead out of the bundle.
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
        """Read it from an object with path, sha256 and bytes."""
        sha256 = fields.text("sha256")
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            fields.fail("sha256", "64 lower-case hexadecimal digits", sha256)
        return cls(fields.text("path"), sha256, fields.integer("bytes", 0))

    def locate(self, bundle: Path) -> Path:
        """Where the file is, or ought to be, on this machine.

        The path itself cannot leave the bundle; a link that lies there may lead anywhere, as in
        the cache of the Hugging Face Hub, because the content is held to its hash.
        """
        return bundle / self.path


@dataclass(frozen=True)
class TargetEntry:
    """The model compiled for one backend in one precision.

    Attributes:
        name: such as "onnx-int8"; the key in the manifest.
        backend: which class of `runtime/backends/` runs it.
        precision: of weights and matrix products, such as "fp32".
        files: by role; ONNX targets have "encoder" and "step".
        contract: inputs and outputs of both graphs.
        engine: by role, what engines were built with and for (`engines.EngineRecord`); None: the
            target has none.
        builder: name and version of each package that made it.
        parity: evidence that it computes what the checkpoint computes; None: not verified.
    """

    name: str
    backend: str
    precision: str
    files: dict[str, FileEntry]
    contract: Contract
    engine: dict[str, Any] | None = None
    builder: dict[str, str] = field(default_factory=dict)
    parity: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, name: str, fields: Fields) -> TargetEntry:
        """Read it from the object `targets.<name>` of a manifest."""
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
        )


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself.

    Attributes:
        format_version: of the manifest itself.
        created_by: program and version, for people.
        source_language: None if nobody said; the same for `target_language`.
        prompt: what stands before texts in the model's input and output.
        search: defaults of `SearchOptions`, by field; what is not named has the class's default.
        tokenizer: "source" and "target", both the same file when the vocabulary is shared.
        targets: at least one; the first is the default.
        weights_sha256: of the checkpoint's weights that the bundle was exported from; None:
            unknown.
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
    weights_sha256: str | None = None

    @classmethod
    def from_json(cls, fields: Fields) -> Manifest:
        """Read it from the outermost object of a manifest."""
        tokenizer = fields.object("tokenizer")
        targets = fields.object("targets")
        return cls(
            format_version=fields.integer("format_version", 1),
            created_by=fields.text("created_by"),
            source_language=fields.optional_text("source_language"),
            target_language=fields.optional_text("target_language"),
            model=ModelDescription.from_json(fields.object("model")),
            limits=Limits.from_json(fields.object("limits")),
            prompt=_prompt(fields),
            search=_search_defaults(fields.object("search")),
            tokenizer={
                side: FileEntry.from_json(tokenizer.object(side)) for side in ("source", "target")
            },
            targets={
                name: TargetEntry.from_json(name, entry)
                for name, entry in targets.objects(at_least_one=True)
            },
            weights_sha256=fields.optional_text("weights_sha256"),
        )

    def to_json(self) -> dict[str, Any]:
        """The same as values that JSON knows; `from_json` reads it back."""
        value = asdict(self)
        value["prompt"] = self.prompt.to_json()
        for target in value["targets"].values():
            del target["name"]  # it is the key already
        for name, entry in self.targets.items():
            value["targets"][name]["contract"] = contract_fields.to_json(entry.contract)
        return value

    def target(self, name: str | None = None, shortlist: bool = False) -> TargetEntry:
        """That target; without a name, the first; its like with a shortlist, if that is wanted.

        Raises:
            BundleError: there is none of that name; the message lists those there are.
        """
        if name is None:
            name = next(iter(self.targets))
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

    def search_options(self) -> SearchOptions:
        """The defaults for decoding with this model."""
        return SearchOptions(**self.search)

    @property
    def source_languages(self) -> tuple[str, ...]:
        """What options may call the source's language, sorted.

        Of a model that is told none it is the one that it was made for, if that is known.
        """
        return _languages(self.prompt.source_languages, self.source_language)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The same of the target's language."""
        return _languages(self.prompt.target_languages, self.target_language)

    def check_languages(self, options: SearchOptions) -> None:
        """See `Prompt.check`."""
        self.prompt.check(options, (self.source_language, self.target_language))


def read_manifest(bundle: Path) -> Manifest:
    """Read and check the manifest of the bundle in that directory.

    Raises:
        BundleError: it is missing, damaged, or of a format this version does not read.
    """
    path = bundle / MANIFEST_NAME
    value = _parse(path, _read_text(bundle))
    fields = Fields(value, path)
    version = fields.integer("format_version", 1)
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path} has format version {version}, this translate-trt reads "
            f"{FORMAT_VERSION}: it was made by a newer translate-trt. "
            "Upgrade with pip install -U translate-trt, or export the model again."
        )
    if version < FORMAT_VERSION:
        raise BundleError(
            f"{path} has format version {version}, this translate-trt reads {FORMAT_VERSION}: it "
            "was made by an older translate-trt, whose graphs had other inputs. "
            "Export the model again."
        )
    return Manifest.from_json(fields)


def write_manifest(bundle: Path, manifest: Manifest) -> None:
    """Write the manifest into the directory, in one atomic step.

    Raises:
        OutputError: the disk is full, or the directory may not be written.
    """
    write_json(bundle / MANIFEST_NAME, manifest.to_json())


@contextmanager
def changing(bundle: Path) -> Iterator[None]:
    """Keep other processes from changing a bundle while its manifest is read and written again.

    Raises:
        OutputError: another process is writing the bundle and does not end soon.
    """
    bundle = bundle.resolve()
    # Who may not write beside the bundle can only write into it; nobody like that replaces it.
    with locked(lock_beside(bundle), bundle, _SECONDS_TO_CHANGE, optional=True):
        clear_leftovers(bundle / MANIFEST_NAME)
        yield


def hash_file(bundle: Path, path: str) -> FileEntry:
    """The manifest's entry for the file at that relative path of the bundle.

    Raises:
        BundleError: the file cannot be read, or the path is not allowed.
    """
    entry = FileEntry(path, "", 0)
    return FileEntry(path, *_digest(entry.locate(bundle)))


def verify_files(bundle: Path, manifest: Manifest, target: str, hashes: bool = True) -> None:
    """Check that the tokenizer's and that target's files are there and are what they were.

    Args:
        bundle: the directory.
        manifest: its manifest.
        target: name of the target.
        hashes: compare SHA-256 too, which reads every byte; without, existence and size alone.

    Raises:
        BundleError: a file is missing or differs, or there is no such target.
    """
    entries = (*manifest.tokenizer.values(), *manifest.target(target).files.values())
    for entry in dict.fromkeys(entries):  # a shared tokenizer file is named twice
        path = entry.locate(bundle)
        if not path.is_file():
            raise BundleError(f"{path}, which the manifest names, is missing. {AGAIN}")
        size = path.stat().st_size
        if size != entry.bytes:
            raise BundleError(
                f"{path} has {size} bytes, the manifest says {entry.bytes}: "
                f"the file is incomplete or was changed. {AGAIN}"
            )
        if hashes and (found := _digest(path)[0]) != entry.sha256:
            raise BundleError(
                f"{path} has SHA-256 {found}, the manifest says {entry.sha256}: "
                f"the file was changed or damaged. {AGAIN}"
            )


def bundle_files(directory: Path) -> set[str] | None:
    """Relative paths of all files of a bundle of any format version; None: no bundle is there."""
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
    """The paths of all file entries in a part of a manifest."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str) and "sha256" in value:
            yield value["path"]
        for part in value.values():
            yield from _named_files(part)


#: For --force.
BUNDLE = Kind("bundle", "translate-trt export", bundle_files)


def _names(cls: type) -> tuple[str, ...]:
    return tuple(get_type_hints(cls))


def _search_defaults(fields: Fields) -> dict[str, Any]:
    """Check that the values make valid `SearchOptions`."""
    types: Mapping[str, Any] = get_type_hints(SearchOptions)
    for name, value in fields.values.items():
        if name not in types:
            fields.fail(name, f"one of {', '.join(types)}", name)
        expected = int | float if types[name] is float else types[name]
        fits = isinstance(value, expected) and (types[name] is bool or not isinstance(value, bool))
        if not fits:
            fields.fail(name, f"of type {getattr(expected, '__name__', expected)}", value)
    try:
        SearchOptions(**fields.values)
    except OptionError as error:
        fields.fail("*", f"valid defaults ({error})", fields.values)
    return fields.values


def _languages(known: Mapping[str, int], own: str | None) -> tuple[str, ...]:
    return tuple(sorted(known)) or (() if own is None else (own,))


def _prompt(fields: Fields) -> Prompt:
    """Check that its tokens are in the vocabularies, and leave room for a text."""
    prompt = Prompt.from_json(fields.object("prompt"))
    model = ModelDescription.from_json(fields.object("model"))
    pieces = model.source_pieces, model.vocabulary_size
    if any(token >= count for token, count in zip(prompt.largest(), pieces, strict=True)):
        fields.fail("prompt", "tokens of the vocabulary", max(prompt.largest()))
    limits = fields.object("limits")
    least = prompt.source_length + 2  # with a token and the end symbol
    if (longest := limits.integer("max_source_length", 1)) < least:
        limits.fail("max_source_length", f"at least {least}", longest)
    return prompt


def _read_text(bundle: Path) -> bytes:
    path = bundle / MANIFEST_NAME
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(_why_no_manifest(bundle, error)) from error


def _why_no_manifest(bundle: Path, error: OSError) -> str:
    if not bundle.exists():
        return f"there is no bundle at {bundle}; check the path."
    if not bundle.is_dir():
        return f"{bundle} is not a directory; a bundle is the directory with {MANIFEST_NAME} in it."
    if (bundle / "config.json").is_file() and not (bundle / MANIFEST_NAME).exists():
        return (
            f"{bundle} is a checkpoint and not a bundle (it has config.json but no "
            f"{MANIFEST_NAME}); make a bundle of it with translate-trt export."
        )
    if isinstance(error, FileNotFoundError):
        return f"{bundle} is not a bundle: it has no {MANIFEST_NAME}. {AGAIN}"
    return f"cannot read {bundle / MANIFEST_NAME}: {error.strerror}."


def _parse(path: Path, content: bytes) -> object:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value: object = json.loads(content.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}. {AGAIN}") from error
    return value


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 in hexadecimal and size in bytes of a file."""
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}. {AGAIN}") from error

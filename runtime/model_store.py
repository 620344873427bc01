"""Directory of installed models: bundles that users call by name (docs/models.md).

models/
  Helsinki-NLP--opus-mt-en-de/
    model.json        the model's record: name, origin, revision, license, verification
    bundle/           the bundle

A model is installed as a whole or not at all, and one process at a time installs or removes it.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import BundleError, OptionError, OutputError
from translate_trt.runtime.io.cache_files import cache_directory

log = logging.getLogger("translate_trt")

#: Environment variable with the directory of installed models.
VARIABLE = "TRANSLATE_TRT_MODELS"

RECORD_NAME = "model.json"
BUNDLE_NAME = "bundle"

# Between owner and name in a directory's name; names contain no such pair of hyphens.
_SEPARATOR = "--"
# A hyphen, full stop or underscore is neither first nor last: `..` is no name, and a name is no
# option of a command.
_PART = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(f"{_PART}(?:/{_PART})?")
#: Beginning of the names of models of Firefox, as users type them: `firefox:en-de`.
FIREFOX = "firefox:"
#: The same for packages of Argos Translate.
ARGOS = "argos:"


@dataclass(frozen=True)
class ModelRecord:
    """Record of an installed model, the content of model.json.

    Attributes:
        name: Name of the model, as OWNER/NAME or NAME.
        source: Kind of the origin: "hub", "firefox", or "argos".
        repository: Repository or language pair at the origin.
        revision: Commit hash or version of the files.
        license: License that the origin states; None for none.
        format: Format of the downloaded files, such as "marian-hf", or "bundle".
        source_languages: Source languages; empty if unknown.
        target_languages: Target languages; empty if unknown.
        installed: Date of the installation in UTC, as 2026-01-31.
        bytes: Size of the bundle's files.
        verification: Evidence per target from the installation; empty for bundles that were
            downloaded as they are, whose manifest has their evidence.
    """

    name: str
    source: str
    repository: str
    revision: str
    license: str | None
    format: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    installed: str
    bytes: int
    verification: dict[str, Any]

    @classmethod
    def from_json(cls, fields: Fields) -> ModelRecord:
        """Read the record from the outermost object of model.json."""
        return cls(
            name=fields.text("name"),
            source=fields.text("source"),
            repository=fields.text("repository"),
            revision=fields.text("revision"),
            license=fields.optional_text("license"),
            format=fields.text("format"),
            source_languages=tuple(fields.texts("source_languages")),
            target_languages=tuple(fields.texts("target_languages")),
            installed=fields.text("installed"),
            bytes=fields.integer("bytes", 0),
            verification=fields.object("verification").values,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the record to JSON values, which `from_json` reads back."""
        return asdict(self)


@dataclass(frozen=True)
class InstalledModel:
    """Installed model: its record, and its directory in the store."""

    record: ModelRecord
    directory: Path

    @property
    def bundle(self) -> Path:
        """Directory of the bundle."""
        return self.directory / BUNDLE_NAME


def models_directory() -> Path | None:
    """Return the directory of installed models, `$TRANSLATE_TRT_MODELS` or that of the cache.

    Returns:
        The directory, which need not exist; None if the cache is off (`cache_directory`).
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).absolute()
    cache = cache_directory()
    return None if cache is None else cache / "models"


def check_name(name: str) -> str:
    """Return the name of a model as it is stored.

    Raises:
        OptionError: The name has other characters, or more parts, than a name may have.
    """
    stored = _stored(name)
    if not _is_name(stored):
        raise OptionError(
            f"{name[:200]!r} is not a name of a model: a name is NAME or OWNER/NAME, of letters, "
            "digits, single hyphens, full stops and underscores."
        )
    return stored


def installed_models() -> list[InstalledModel]:
    """Return the installed models by name; a model with a damaged record is logged and left out."""
    directory = models_directory()
    if directory is None or not directory.is_dir():
        return []
    found = []
    for path in sorted(directory.glob(f"*/{RECORD_NAME}")):
        if path.parent.name.startswith("."):  # an installation in progress
            continue
        try:
            found.append(_read(path.parent))
        except BundleError as error:
            log.warning("%s", error)
    return sorted(found, key=lambda model: model.record.name.casefold())


def installed_bundle(name: str) -> Path:
    """Return the bundle of an installed model.

    Args:
        name: Name of the model, such as "Helsinki-NLP/opus-mt-en-de"; the owner may be left out
            where a single model has the rest of the name.

    Raises:
        BundleError: No such model is installed, or several models have the name.
    """
    return find_model(name).bundle


def find_model(name: str) -> InstalledModel:
    """Return an installed model by its name; see `installed_bundle`.

    Raises:
        BundleError: No such model is installed, several models have the name, or its record is
            damaged.
    """
    found = _matches(name)
    if not found:
        raise BundleError(f"no model {name[:200]!r} is installed{_advice(name)}")
    return _only(name, found)


def record_of(bundle: Path) -> ModelRecord | None:
    """Return the record of the installed model that a bundle belongs to; None for other bundles."""
    directory = bundle.resolve().parent
    store = models_directory()
    if store is None or directory.parent != store.resolve():
        return None
    return _read(directory).record if (directory / RECORD_NAME).is_file() else None


def resolve_bundle(path_or_name: str | Path) -> Path:
    """Return the directory of a bundle that is given as a path or by the name of a model.

    An existing path is taken as it is. Text that is neither a path nor the name of an installed
    model is returned as a path, too: what reads the bundle reports it (`advice_for`).

    Raises:
        BundleError: Several installed models have the name.
    """
    path, name = Path(path_or_name), str(path_or_name)
    if os.path.exists(path) or not _is_name(_stored(name)):
        return path
    found = _matches(name)
    return path if not found else _only(name, found).bundle


def advice_for(missing: Path) -> str | None:
    """Return what to do about a missing bundle whose path may be meant as the name of a model.

    Returns:
        The end of a sentence, with near misses and the command that installs the model; None if
        the path cannot be a name.
    """
    name = str(missing)
    return _advice(name) if _is_name(_stored(name)) else None


def _stored(name: str) -> str:
    return name.replace(":", "/", 1) if name.startswith((FIREFOX, ARGOS)) else name


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and _SEPARATOR not in text and ".." not in text


def directory_of(name: str) -> Path:
    """Return the directory of a model, which need not exist."""
    directory = models_directory()
    if directory is None:
        raise OutputError(
            f"there is no directory for models, because the cache is off; set {VARIABLE} to one."
        )
    return directory / name.replace("/", _SEPARATOR)


def _read(directory: Path) -> InstalledModel:
    path = directory / RECORD_NAME
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(
            f"the record {path} of an installed model cannot be read ({error}); remove the "
            "directory, and install the model again."
        ) from error
    record = ModelRecord.from_json(Fields(value, path))
    if record.name.replace("/", _SEPARATOR) != directory.name:
        raise BundleError(
            f"{path} is the record of {record.name[:200]!r}, and its directory has another name; "
            "remove the directory, and install the model again."
        )
    return InstalledModel(record, directory)


def _matches(name: str) -> list[InstalledModel]:
    """Return the model of exactly this name or, without one, all models that may be meant."""
    stored, directory = _stored(name), models_directory()
    if directory is not None and _is_name(stored):
        path = directory / stored.replace("/", _SEPARATOR)
        if (path / RECORD_NAME).is_file():
            return [_read(path)]
    wanted = stored.casefold()
    return [model for model in installed_models() if wanted in _spellings(model.record.name)]


def _only(name: str, found: Sequence[InstalledModel]) -> InstalledModel:
    if len(found) > 1:
        several = " or ".join(model.record.name for model in found)
        raise BundleError(f"{name!r} may be {several}; write the whole name.")
    return found[0]


def _spellings(name: str) -> set[str]:
    """Return what a model may be called, without regard to case."""
    return {name.casefold(), name.rpartition("/")[2].casefold()}


def _advice(name: str) -> str:
    """Return the end of the message for an unknown name: near misses, and the command to use."""
    names = [model.record.name for model in installed_models()]
    by_spelling = {spelling: full for full in names for spelling in _spellings(full)}
    near = difflib.get_close_matches(_stored(name).casefold(), by_spelling, n=3)
    meant = list(dict.fromkeys(by_spelling[spelling] for spelling in near))
    hint = f" (similar: {', '.join(meant)})" if meant else ""
    stored = _stored(name)
    wanted = name if _is_name(stored) and "/" in stored else "OWNER/NAME"
    return f"{hint}. Install a model with: translate-trt get {wanted}"

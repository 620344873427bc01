"""Packages of Argos Translate, which LibreTranslate translates with, and bundles made from them.

translate-en_de-1_0/
  metadata.json         version and languages
  model/                a model of CTranslate2
  sentencepiece.model   its tokenizer, or bpe.model
  stanza/, minisbd/     models that split text into sentences, which are not used here
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.bundle.manifest import FORMAT_VERSION
from translate_trt.runtime.errors import BundleError, InputError, OptionError, TranslateTrtError
from translate_trt.runtime.io.hashing import input_hash
from translate_trt.runtime.model_store import ARGOS, directory_of, installed_bundle
from translate_trt.runtime.text.languages import ARGOS_CODES

log = logging.getLogger("translate_trt")

METADATA = "metadata.json"

_CODE = re.compile("[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8}){0,3}")
_MAX_METADATA = 1 << 20
_KEY_DIGITS = 12


@dataclass(frozen=True)
class ArgosPackage:
    """Package that translates one language to another.

    Attributes:
        directory: Directory of metadata.json.
        languages: BCP 47 codes of source and target.
        version: Version of the package.
        target_prefix: Token that translations begin with; empty for none.
    """

    directory: Path
    languages: tuple[str, str]
    version: str
    target_prefix: str

    @classmethod
    def read(cls, directory: Path) -> ArgosPackage:
        """Read the metadata of an unpacked package.

        Raises:
            InputError: metadata.json is missing, damaged, or not that of a translation.
        """
        path = directory / METADATA
        try:
            with path.open("rb") as file:
                values = json.loads(file.read(_MAX_METADATA))
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}; every package of Argos Translate has it."
            ) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {error}. Install the package again.") from error
        if not isinstance(values, dict):
            raise InputError(f"{path} is not a JSON object. Install the package again.")
        if (kind := values.get("type", "translate")) != "translate":
            raise InputError(f"{path}: the package is of type {kind!r:.40}, not a translation.")
        codes = [values.get(name) for name in ("from_code", "to_code")]
        for code in codes:
            if not isinstance(code, str) or not _CODE.fullmatch(code):
                raise InputError(f"{path}: from_code or to_code is {code!r:.40}, not a language.")
        prefix = values.get("target_prefix", "")
        if not isinstance(prefix, str) or prefix.split() != [prefix] * bool(prefix):
            raise InputError(f"{path}: target_prefix is {prefix!r:.60}, not one token.")
        source, target = (ARGOS_CODES.get(code, code) for code in map(str, codes))
        version = str(values.get("package_version", "unknown"))
        return cls(directory, (source, target), version, prefix)

    def key(self, target: str | None) -> str:
        """Return a hash of the package's files, the bundle's target and format."""
        files = [
            path
            for path in (*self.directory.iterdir(), *self.directory.glob("model/*"))
            if path.is_file()
        ]
        hashes = {path.relative_to(self.directory).as_posix(): input_hash(path) for path in files}
        content = json.dumps([FORMAT_VERSION, target, sorted(hashes.items())])
        return hashlib.sha256(content.encode()).hexdigest()[:_KEY_DIGITS]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the sort key of a version: its numbers, most significant first."""
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


def default_directory() -> Path:
    """Return the directory in which Argos Translate installs packages."""
    if chosen := os.environ.get("ARGOS_PACKAGES_DIR"):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data, "argos-translate", "packages")


def installed_packages(directory: Path) -> list[ArgosPackage]:
    """Return the newest package of each pair of languages; damaged ones get a warning.

    Raises:
        OptionError: There is no such directory.
    """
    if not directory.is_dir():
        raise OptionError(f"{directory} is no directory of Argos Translate's packages.")
    newest: dict[tuple[str, str], ArgosPackage] = {}
    for path in sorted(path for path in directory.iterdir() if path.is_dir()):
        try:
            package = ArgosPackage.read(path)
        except InputError as error:
            log.warning("%s is left out: %s", path.name, error)
            continue
        older = newest.setdefault(package.languages, package)
        if version_numbers(package.version) > version_numbers(older.version):
            newest[package.languages] = package
    return [*newest.values()]


def bundles_of_packages(
    directory: Path, target: str | None, tell: Callable[[str], None]
) -> list[tuple[str, Path]]:
    """Return name and bundle of each package, converted on first use and kept as a model.

    Packages are converted by `translate-trt get` in another process, because this one may run
    without PyTorch. A package that cannot be converted gets a warning.

    Args:
        directory: Directory of packages.
        target: Target of the bundles; None for that of `translate-trt get`.
        tell: Receives a line of text for each conversion.

    Raises:
        OptionError: The directory has no package that can be converted.
        TranslateTrtError: The extra `export` is not installed, or there is no directory for models.
    """
    bundles = []
    packages = installed_packages(directory)
    for number, package in enumerate(packages, 1):
        path = package.directory
        try:
            name = f"argos/{'-'.join(package.languages)}-{package.key(target)}"
            directory_of(name)  # refuses to work without a cache
            try:
                bundle = installed_bundle(name)
            except BundleError:
                tell(f"converting {path.name}, package {number} of {len(packages)}")
                _convert(package, name, target)
                bundle = installed_bundle(name)
        except (InputError, BundleError) as error:
            log.warning("%s is left out: %s", path.name, error)
            continue
        bundles.append((path.name, bundle))
    if not bundles:
        raise OptionError(f"{directory} has no package of Argos Translate that can be served.")
    return bundles


def _convert(package: ArgosPackage, name: str, target: str | None) -> None:
    """Install the bundle of a package.

    Raises:
        InputError: The package cannot be converted; the reason is on stderr.
        TranslateTrtError: The extra `export` is not installed.
    """
    for needed in ("torch", "onnxscript"):
        if importlib.util.find_spec(needed) is None:
            raise TranslateTrtError(
                "to convert packages of Argos Translate, the export packages are needed: "
                f"pip install 'translate-trt[export]' ({needed} is missing)"
            )
    command = [
        sys.executable, "-m", "translate_trt.runtime.cli", "get", "-q", "--force", "--as", name,
        f"{ARGOS}{package.directory.resolve()}",
    ]  # fmt: skip
    if target is not None:
        command += ["--target", target]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise InputError(f"its conversion ended with status {done.returncode}, as shown above.")

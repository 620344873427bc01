"""Packages of Argos Translate: a model of CTranslate2, its tokenizer, and metadata.

Argos adds no tokens to texts, except the metadata's target_prefix to translations. Unlike Argos,
underscores of translations stay, and unknown tokens are not replaced by words of the source.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import sentencepiece

from translate_trt.export.importers.ctranslate2 import converted
from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.input_files import damaged, one_file
from translate_trt.export.importers.model_format import ModelFormat, need
from translate_trt.runtime.argos_packages import METADATA, ArgosPackage
from translate_trt.runtime.errors import InputError

_SUFFIX = ".argosmodel"
_SENTENCEPIECE, _BPE = "sentencepiece.model", "bpe.model"
# Argos's search, where it is not that of CTranslate2.
_SEARCH = {"beam_size": 4, "length_penalty": 0.2}
_FILES_OF_MODEL = {
    name
    for requirement in converted.FORMAT.required
    for alternative in requirement.alternatives
    for name in alternative.split()
} | set(converted.FORMAT.optional)
_FILES = {METADATA, _SENTENCEPIECE, _BPE, *(f"model/{name}" for name in sorted(_FILES_OF_MODEL))}
# Weights hardly shrink, and vocabularies to a third.
_MAX_RATIO = 64
_RATIO_APPLIES = 1 << 24
_MAX_DIRECTORY = 1 << 20
_BLOCK = 1 << 18
_ENCRYPTED = 1


def is_packed(path: Path) -> bool:
    """Return whether a path is that of a package's file."""
    return path.suffix == _SUFFIX and path.is_file()


def import_argos(path: Path) -> Imported:
    """Import a package of Argos Translate.

    Args:
        path: The .argosmodel file, a directory that has one, or the directory of an installed
            package.

    Raises:
        InputError: The package is damaged, or its model or tokenizer is not supported.
    """
    remedy = "Pass one of them."
    packed = one_file(path, [f"*{_SUFFIX}"], "packages", remedy) if path.is_dir() else path
    if packed is not None:
        with _unpacked(packed) as directory:
            return _import_directory(directory)
    return _import_directory(path)


def _import_directory(directory: Path) -> Imported:
    package = ArgosPackage.read(directory)
    tokenizer = directory / _SENTENCEPIECE
    if not tokenizer.is_file():
        if (directory / _BPE).is_file():
            raise InputError(
                "the package's tokenizer is bpe.model, subword-nmt's byte-pair encoding of words "
                "that Moses's scripts normalize and split, which no SentencePiece model repeats. "
                "Only packages with sentencepiece.model are supported."
            )
        raise InputError("the package lacks sentencepiece.model; install it again.")
    imported = converted.import_ctranslate2(
        directory / "model", tokenizer, target_prefix=package.target_prefix,
        fallback_format="{text}",
    )  # fmt: skip
    decoder = sentencepiece.SentencePieceProcessor(model_proto=imported.tokenizers[1])
    if decoder.decode([*imported.prompt.target]):
        raise InputError(
            f"the package's target_prefix is {package.target_prefix!r}, a piece of words that "
            "translations may have, too; this is not supported."
        )
    return replace(
        imported, origin="argos", search=imported.search | _SEARCH, languages=package.languages
    )


class _BoundedFile(io.FileIO):
    """File of which `zipfile` cannot read a huge directory into memory."""

    def read(self, size: int | None = -1) -> bytes:
        """Read at most `_MAX_DIRECTORY` bytes."""
        if size is not None and size > _MAX_DIRECTORY:
            raise zipfile.BadZipFile("its list of files is too long")
        return super().read(size) or b""


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Unpack the needed files of a package into a directory that the end of the block removes.

    No name in the archive becomes a path.

    Raises:
        InputError: The file cannot be read, is damaged or encrypted, or is no package.
    """
    with tempfile.TemporaryDirectory(prefix="argos-") as parent:
        directory = Path(parent, path.stem)
        try:
            (directory / "model").mkdir(parents=True)
            with _BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
                for name, member in _members(path, archive, directory).items():
                    with archive.open(member) as packed, (directory / name).open("wb") as unpacked:
                        shutil.copyfileobj(packed, unpacked, _BLOCK)
        except (
            zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError,
            RuntimeError, OverflowError,
        ) as error:  # fmt: skip
            raise damaged(path, f"it cannot be unpacked: {error}") from error
        except OSError as error:
            raise InputError(f"cannot unpack {path}: {error.strerror or error}.") from error
        yield directory


def _members(path: Path, archive: zipfile.ZipFile, directory: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the needed files of an archive by their names below its directory.

    Raises:
        InputError: The archive is no package, or too large for the directory's disk.
    """
    members: dict[str, zipfile.ZipInfo] = {}
    tops = set[str]()
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
            raise damaged(path, f"it has a file outside of its directory: {str(name)!r:.80}")
        tops.update(name.parts[:1])
        key = "/".join(name.parts[1:])
        if key not in _FILES:
            continue
        if key in members:
            raise damaged(path, f"it has {key} twice")
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{path} is encrypted; packages of Argos Translate are not.")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise damaged(path, f"{key} is compressed by a method that packages do not use")
        if member.file_size > max(_RATIO_APPLIES, _MAX_RATIO * member.compress_size):
            raise damaged(path, f"{key} has {member.file_size:,} bytes unpacked, too many for its "
                          f"{member.compress_size:,}")  # fmt: skip
        members[key] = member
    if len(tops) != 1 or METADATA not in members:
        raise InputError(
            f"{path} is no package of Argos Translate, which has a single directory with "
            f"metadata.json in it; it has {', '.join(sorted(tops))[:80] or 'no files'}."
        )
    size = sum(member.file_size for member in members.values())
    if size > (free := shutil.disk_usage(directory).free):
        raise InputError(
            f"{path} has {size:,} bytes unpacked, and {directory.parent} has {free:,} free; set "
            "TMPDIR to a directory with more."
        )
    return members


#: Recognized by the metadata beside the directory model/, or by the suffix of a file.
FORMAT = ModelFormat(
    "argos",
    "a package of Argos Translate",
    (need(f"*{_SUFFIX}", f"{METADATA} model/model.bin"),),
    (_SENTENCEPIECE, _BPE, *(f"model/{name}" for name in sorted(_FILES_OF_MODEL))),
    load=lambda directory, languages: import_argos(directory),
)

"""Memory-mapped reading of the directories of `translate-trt data prepare`.

DIR/
  data.json                        index; moved last, a directory without it is incomplete
  tokenizer.spm                    or source.spm and target.spm
  train.source.tokens   .offsets   concatenated token ids, and the start of each sentence (int64)
  train.target.tokens   .offsets
  train.alignment.links  .offsets  linked positions of target and source in turn (uint16), and the
                                   start of those of each sentence (data prepare --alignment, trees)
  valid.*  test.*                  token files of the other splits
  valid.source.txt  .target.txt    all lines of their text, for BLEU; with language tags, sources
                                   begin with the code of the target language, as in ">>de<< A cat"
  valid.trees.txt                  gold trees (data prepare --trees)
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.bundle.term_annotation import TermAnnotation
from translate_trt.runtime.errors import BundleError, InputError
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.train.config import TOKENIZER, TOKENIZERS
from translate_trt.train.data.alignments import LINK_TYPE, TokenLinks
from translate_trt.train.data.batches import ParallelData, TokenArray
from translate_trt.train.data.corpora import CORPORA
from translate_trt.train.data.encode import ALIGNMENT, SIDES, fingerprint_files, split_files
from translate_trt.train.data.prepare import FORMAT_VERSION, INDEX, recover
from translate_trt.train.data.text_sources import read_sides

_BLOCK = 1 << 20  # sentences per check of offsets
_MAKE_AGAIN = "Make the directory again with: translate-trt data prepare --force"


@dataclass(frozen=True)
class PreparedData:
    """Content of data.json; `split` opens the arrays.

    Attributes:
        path: Directory of the data.
        name: Name of the corpus.
        source_language: Code of the source language, where known.
        target_language: Code of the target language, where known.
        vocabulary_size: Size of the vocabulary, or that of the target.
        source_vocabulary_size: Size of a separate source vocabulary; 0 if both sides share one.
        token_type: numpy's name of the token type.
        splits: Entries of the splits in data.json.
        index: All of data.json.
    """

    path: Path
    name: str
    source_language: str | None
    target_language: str | None
    vocabulary_size: int
    source_vocabulary_size: int
    token_type: str
    splits: dict[str, dict[str, Any]]
    index: dict[str, Any]

    @property
    def term_annotation(self) -> TermAnnotation | None:
        """Annotation of the training source text; None for plain text.

        Raises:
            InputError: data.json is damaged.
        """
        record = self.index.get("terminology")
        if record is None:
            return None
        try:
            fields = Fields(record, self.path / INDEX, "terminology")
            return TermAnnotation.from_json(fields.object("annotation"))
        except BundleError as error:
            raise InputError(f"{self.path / INDEX} is damaged. {_MAKE_AGAIN}") from error

    @property
    def prompt(self) -> Prompt:
        """Prompt of the sources: the tag of a target language, or nothing.

        Raises:
            InputError: data.json is damaged.
        """
        if (record := self.index.get("prompt")) is None:
            return Prompt()
        try:
            return Prompt.from_json(Fields(record, self.path / INDEX, "prompt"))
        except BundleError as error:
            raise InputError(f"{self.path / INDEX} is damaged. {_MAKE_AGAIN}") from error

    @property
    def has_trees(self) -> bool:
        """Whether the target is linearized trees of the source."""
        return bool(self.index.get("trees"))

    @property
    def tokenizers(self) -> tuple[Path, Path]:
        """SentencePiece models of source and target, which may be the same file."""
        source, target = TOKENIZERS if self.source_vocabulary_size else (TOKENIZER, TOKENIZER)
        return self.path / source, self.path / target

    def split(self, name: str) -> ParallelData:
        """Memory-map a split; only the offsets are read.

        Args:
            name: "train", "valid" or "test".

        Raises:
            InputError: There is no such split, a file is missing or of the wrong size, or the
                offsets are damaged.
        """
        entry = self._entry(name)
        try:
            arrays = [
                self._open_side(f"{name}.{side}", entry["pairs"], entry[f"{side}_tokens"])
                for side in SIDES
            ]
            return ParallelData(
                arrays[0],
                arrays[1],
                entry["fingerprint"],
                vocabulary_sizes=(
                    self.source_vocabulary_size or self.vocabulary_size,
                    self.vocabulary_size,
                ),
                corpora=tuple(entry.get("corpora", ())),
                links=self._open_links(name, entry),
                name=f"{self.path} ({name})",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.path / INDEX} is damaged ({error!r}). {_MAKE_AGAIN}"
            ) from error

    def text(self, name: str) -> tuple[list[str], list[str]]:
        """Read all source and target lines of the validation or test split.

        Raises:
            InputError: There is no such split, or it has no text (as `train`).
        """
        self._entry(name)
        return read_sides(self.path / f"{name}.source.txt", self.path / f"{name}.target.txt")

    def check(self, name: str) -> None:
        """Read all token files of a split and compare them with their fingerprint.

        Raises:
            InputError: The files were changed.
        """
        names = split_files(name, linked=self.split(name).links is not None)
        found = fingerprint_files([self.path / file for file in names])
        right = self._entry(name)["fingerprint"]
        if found != right:
            raise InputError(
                f"{self.path}: the files of {name} have fingerprint {found}, but should have "
                f"{right}; they are damaged. {_MAKE_AGAIN}"
            )

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self.splits:
            raise InputError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}.")
        return self.splits[name]

    def _open_links(self, name: str, entry: dict[str, Any]) -> TokenLinks | None:
        if "link_elements" not in entry:
            return None
        count, pairs = entry["link_elements"], entry["pairs"]
        positions = self._map(f"{name}.{ALIGNMENT}.links", LINK_TYPE, count)
        return TokenLinks(positions, self._offsets(f"{name}.{ALIGNMENT}", pairs, count, least=0))

    def _open_side(self, stem: str, sentences: int, tokens: int) -> TokenArray:
        token_file = self._map(f"{stem}.tokens", self.token_type, tokens)
        return TokenArray(token_file, self._offsets(stem, sentences, tokens, least=1))

    def _offsets(self, stem: str, count: int, total: int, least: int) -> NDArray[np.int64]:
        """Map the offsets of `count` parts of `total` elements, of which each has some."""
        offsets = self._map(f"{stem}.offsets", "int64", count + 1)
        if offsets[0] != 0 or offsets[-1] != total:
            raise InputError(
                f"{self.path / stem}.offsets ends at {offsets[-1]}, but its elements at "
                f"{total}; they do not belong together. {_MAKE_AGAIN}"
            )
        for begin in range(0, count, _BLOCK):
            lengths = np.diff(offsets[begin : begin + _BLOCK + 1])
            wrong = np.flatnonzero((lengths < least) | (lengths > total))
            if len(wrong):
                number = begin + int(wrong[0])
                raise InputError(
                    f"{self.path / stem}.offsets is damaged: sentence {number} begins at "
                    f"{offsets[number]} and ends at {offsets[number + 1]}. {_MAKE_AGAIN}"
                )
        return offsets

    def _map(self, name: str, kind: str, count: int) -> NDArray[Any]:
        path = self.path / name
        wanted = np.dtype(kind).itemsize * count
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. {_MAKE_AGAIN}") from error
        if size != wanted:
            raise InputError(
                f"{path} has {size:,} bytes, but should have {wanted:,}; it is damaged. "
                f"{_MAKE_AGAIN}"
            )
        # A plain array over the mapped memory: slicing an np.memmap is slower.
        return np.asarray(np.memmap(path, dtype=kind, mode="r", shape=(count,)))


def open_prepared(path: Path) -> PreparedData:
    """Open a directory of `translate-trt data prepare`.

    Raises:
        InputError: The directory is missing, unfinished, damaged, or of another format.
        OutputError: The files of an interrupted `data prepare` cannot be moved into place.
    """
    index = _read_index(path)
    version = index.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} has data format {version}; this version reads {FORMAT_VERSION}. "
            f"{_MAKE_AGAIN}, or upgrade translate-trt."
        )
    try:
        names = {x.name for x in dataclasses.fields(PreparedData)} - {"path", "splits", "index"}
        prepared = PreparedData(
            path=path, splits=dict(index["splits"]), index=index, **{x: index[x] for x in names}
        )
        hashes = index["source_tokenizer_sha256"], index["tokenizer_sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path / INDEX} is damaged ({error!r}). {_MAKE_AGAIN}") from error
    for path, right in zip(prepared.tokenizers, hashes, strict=True):
        try:
            found = sha256_of_file(path)[0]
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. {_MAKE_AGAIN}") from error
        if found != right:
            raise InputError(f"{path} is not the vocabulary of these token files. {_MAKE_AGAIN}")
    return prepared


def _read_index(path: Path) -> dict[str, Any]:
    recover(path)
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not path.exists() and path.name in CORPORA:
            raise InputError(
                f"{path} does not exist; make it with: "
                f"translate-trt data prepare {path.name} --output {path}"
            ) from error
        raise InputError(
            f"{path} has no {INDEX}: it is not a complete directory of "
            "`translate-trt data prepare`."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path / INDEX} cannot be read ({error}). {_MAKE_AGAIN}") from error
    if not isinstance(index, dict):
        raise InputError(f"{path / INDEX} does not hold a JSON object. {_MAKE_AGAIN}")
    return index

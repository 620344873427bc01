"""Treebanks as parallel text for `data prepare --trees`: words, and the labels of linearized trees.

Their alignment is known: each label is read at the word that comes next.

A treebank is a file of bracketings or a directory of such files, such as the sections of the Penn
Treebank. docs/parsing.md has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import reading_compressed, uncompressed_name
from translate_trt.runtime.io.lines import check_input, text_lines
from translate_trt.runtime.text.bracketings import (
    Event,
    Word,
    clean,
    labels_of,
    read_trees,
    words_of,
)

log = logging.getLogger("translate_trt")

#: Endings of the files of a directory that have trees, compressed or not.
ENDINGS = (".mrg", ".tree", ".trees", ".ptb")

_SHOWN = 3  # damaged trees with a message of their own


def find_treebank(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files of treebanks; those of a directory, at any depth, by name.

    Raises:
        InputError: A directory has no file of trees.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(
            file
            for file in path.rglob("*")
            if uncompressed_name(file.name).endswith(ENDINGS) and file.is_file()
        )
        if not files:
            raise InputError(
                f"{path} has no file of trees, whose names end in {', '.join(ENDINGS)}; name the "
                "files themselves."
            )
        found += files
    return tuple(found)


@dataclass(frozen=True)
class TreeSource:
    """One side of the trees of files, a line per tree: words, labels, or the alignment of both.

    Trees without words, and damaged ones, are left out with a warning, on all sides.
    """

    paths: tuple[Path, ...]
    side: Literal["words", "labels", "alignment"]

    def __str__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.side} of {self.paths[0]}{more}"

    def check(self) -> None:
        """Raise an InputError if a file cannot be read."""
        for path in self.paths:
            check_input(str(path))

    @contextmanager
    def open(self) -> Iterator[Iterator[bytes]]:
        """Open the source as an iterator over lines in bytes, with line ends.

        Raises:
            InputError: A file is missing or damaged, also during iteration.
        """
        yield self._lines()

    def _lines(self) -> Iterator[bytes]:
        parts = {"words": words_of, "labels": labels_of, "alignment": links_of}[self.side]
        for path in self.paths:
            for tree in _trees(path, warn=self.side == "words"):
                yield (" ".join(parts(tree)) + "\n").encode()


def treebank_pair(paths: Sequence[Path]) -> tuple[TreeSource, TreeSource]:
    """Return words and labels of the trees of files and directories."""
    files = find_treebank(paths)
    return TreeSource(files, "words"), TreeSource(files, "labels")


def treebank_alignment(paths: Sequence[Path]) -> TreeSource:
    """Return the alignments of words and labels (`links_of`) of files and directories."""
    return TreeSource(find_treebank(paths), "alignment")


def links_of(tree: Sequence[Event]) -> list[str]:
    """Return the link of each label, in Pharaoh format, to the first word that has no tag yet.

    It is the word in front of a shift-reduce parser, which the label depends on most. After the
    last word it is the end symbol.
    """
    links, word = list[str](), 0
    for label, event in enumerate(tree):
        links.append(f"{word}-{label}")
        word += isinstance(event, Word)
    return links


def _trees(path: Path, warn: bool) -> Iterator[list[Event]]:
    """Read the trees of a file, cleaned."""
    damages = empty = 0

    def damaged(line: int, reason: str) -> None:
        nonlocal damages
        damages += 1
        if warn and damages <= _SHOWN:
            log.warning("%s: the tree that begins in line %d is left out: %s", path, line, reason)

    check_input(str(path))
    with ExitStack() as stack, reading_compressed(str(path)):
        stream = stack.enter_context(path.open("rb"))
        lines = (line.decode("utf-8-sig", "replace") for line in text_lines(stream, str(path)))
        for tree in read_trees(lines, damaged):
            cleaned = clean(tree)
            if cleaned:
                yield cleaned
            empty += not cleaned
    if warn and damages > _SHOWN:
        log.warning("%s: %d damaged trees are left out", path, damages)
    if warn and empty:
        log.warning("%s: %d trees without words are left out", path, empty)

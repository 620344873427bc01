"""Preparation of parallel text as token files (`translate-trt data prepare`).

Text is streamed through cleaning into temporary files, and from there, in chunks, into token files.
Memory grows with the corpus by 9 bytes per pair only (a hash and a flag).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import logging
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError, OptionError, OutputError
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers_in,
    finish_switch,
    is_switching,
    new_contents,
    output_error,
    write_json,
)
from translate_trt.runtime.io.hashing import sha256_of_file
from translate_trt.runtime.io.locks import LOCK, TEMPORARY, locked
from translate_trt.runtime.io.outputs import object_in
from translate_trt.runtime.text.bracketings import build_tree
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import TOKENIZER, TOKENIZERS
from translate_trt.train.data.alignments import check_length
from translate_trt.train.data.augmentation import ADDS_WORDS, modified_copies
from translate_trt.train.data.cleaning import (
    REASONS,
    AlignedLines,
    CleanChunk,
    clean_chunk,
    first_occurrences,
)
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.encode import (
    ALIGNMENT,
    BACK_TRANSLATED,
    LANGUAGE_TAG,
    SIDES,
    Encoded,
    SplitWriter,
    encode_lines,
    split_files,
    token_type,
)
from translate_trt.train.data.segmentation import Segmentation
from translate_trt.train.data.terminology import TerminologyOptions
from translate_trt.train.data.text_sources import (
    LineSource,
    Pair,
    decode_lines,
    language_of,
    read_line_chunks,
)
from translate_trt.train.data.vocabulary import (
    SMALLEST_VOCABULARY,
    WORDS,
    sample_rows,
    train_tokenizer,
)
from translate_trt.train.worker_processes import WorkerPool

log = logging.getLogger("translate_trt")

FORMAT_VERSION = 3
INDEX = "data.json"
DOWNLOADS = "downloads"
# Time that a reader waits for a process that is moving new files into place.
_SECONDS_TO_SWITCH = 60.0

# Pairs per task: a few megabytes of text, which make the overhead of a task negligible.
CHUNK_PAIRS = 10_000


@dataclass(frozen=True)
class Preparation:
    """Texts and options of a directory of token files.

    Attributes:
        name: Name of the corpus.
        languages: Codes of source and target, where known.
        train: Pairs of training texts, to be concatenated.
        valid: Pairs of validation texts; every line is kept.
        test: Pairs of test texts, or none; every line is kept.
        options: Options of cleaning and vocabulary.
        origin: Sources of the text, for the record.
        terminology: Annotation of training pairs; None for none.
        trees: Whether the target is linearized trees of the source (train/data/trees.py).
        alignments: Alignment of each pair of training texts; empty for none.
        back_translated: Further training texts, whose sources are by a machine and are tagged.
        language_tags: Whether each source begins with the language of its target, which is the
            ending of the target's file name.

    Raises:
        OptionError: Trees have no source vocabulary; alignments do not go with another option;
            languages for the tags are missing.
    """

    name: str
    languages: tuple[str | None, str | None]
    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]
    options: PrepareOptions
    origin: list[Any] = field(default_factory=list)
    terminology: TerminologyOptions | None = None
    trees: bool = False
    alignments: Sequence[LineSource] = ()
    back_translated: Sequence[Pair] = ()
    language_tags: bool = False

    @property
    def corpora(self) -> list[Pair]:
        """All pairs of training texts, those with tagged sources last."""
        return [*self.train, *self.back_translated]

    @property
    def tagged_languages(self) -> list[str]:
        """Languages that sources are tagged with, sorted; none without `language_tags`."""
        return sorted({language for pair in self.corpora if (language := self.tag_of(pair))})

    def tag_of(self, pair: Pair) -> str | None:
        """Return the language that the sources of a pair are tagged with; None for none."""
        return language_of(Path(str(pair[1]))) if self.language_tags else None

    def controls_of(self, corpus: int) -> list[str]:
        """Return the control symbols before the sources of a corpus of `corpora`."""
        controls = [BACK_TRANSLATED] if corpus >= len(self.train) else []
        language = self.tag_of(self.corpora[corpus])
        return controls if language is None else [*controls, LANGUAGE_TAG.format(language)]

    def __post_init__(self) -> None:
        if self.alignments:
            check_length(self.options.max_length)
            if len(self.alignments) != len(self.corpora):
                raise OptionError(
                    f"{len(self.alignments)} alignments for {len(self.corpora)} pairs of training "
                    "texts: give each pair one, in the same order."
                )
            if self.terminology is not None:
                raise OptionError(
                    "terminology changes the words of the source, which an alignment counts; leave "
                    "one of them out."
                )
            if ADDS_WORDS in self.options.augment_shares:
                raise OptionError(
                    f"augment {ADDS_WORDS} adds words, which an alignment would have to count; "
                    "leave one of them out."
                )
        if self.language_tags:
            self._check_languages()
        if self.trees and self.options.augment:
            raise OptionError("augment changes text, not trees; leave one of them out.")
        if self.trees and self.options.segmentations > 1:
            raise OptionError("labels of trees have one segmentation; leave segmentations out.")
        if self.trees and not self.options.source_vocabulary_size:
            raise OptionError(
                "words and labels cannot share a vocabulary; set source_vocabulary_size to more "
                "than 0."
            )

    def _check_languages(self) -> None:
        known = self.tagged_languages
        if len(known) < 2:
            raise OptionError(
                "language tags need target files of several languages, the endings of their names, "
                f"such as train.de and train.fr; found: {', '.join(known) or 'none'}."
            )
        for pair in (*self.corpora, *self.valid, *self.test):
            if self.tag_of(pair) not in known:
                raise OptionError(
                    f"{pair[1]}: for its language tag, its name must end with one of the languages "
                    f"of the training text, {', '.join(known)}."
                )


def check_directory(out: Path, force: bool) -> None:
    """Check, before any work, whether `out` may be written.

    Raises:
        OutputError: The directory is complete and `force` is not given, or it holds other files.
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file, not a directory; choose another --output.")
    if {"splits", "tokenizer_sha256"} <= object_in(out / INDEX).keys():
        if not force:
            raise OutputError(f"{out} is complete; choose another --output or add --force.")
    elif out.is_dir():
        others = sorted(
            path.name
            for path in out.iterdir()
            if path.name != DOWNLOADS and not TEMPORARY.fullmatch(path.name)
        )
        if others:
            raise OutputError(
                f"{out} holds other files ({', '.join(others[:3])}); choose another --output."
            )


def recover(directory: Path) -> None:
    """Finish moving the files of a `data prepare` that was killed while moving them.

    Raises:
        OutputError: The files cannot be moved, or another process holds the lock for too long.
    """
    if is_switching(directory):
        with locked(directory / LOCK, directory, _SECONDS_TO_SWITCH):
            try:
                finish_switch(directory, _obsolete, INDEX)
            except OSError as error:
                raise output_error(directory, error) from error


def prepare(preparation: Preparation, out: Path, workers: int, force: bool = False) -> None:
    """Clean the text, train the vocabulary, tokenize, and write everything that training needs.

    The contents of `out` are replaced atomically (`new_contents`). The caller holds the lock.

    Args:
        preparation: Texts and options.
        out: Directory to write; downloads in it are kept.
        workers: Number of processes.
        force: Replace complete data in `out`. A training run that has the data open continues.

    Raises:
        InputError: Text is missing, damaged or not parallel, or no pair is left.
        OutputError: `out` must not be replaced, cannot be written, or the disk is full.
    """
    check_directory(out, force)
    if preparation.terminology is not None:
        preparation.terminology.glossary()
    for source in (*itertools.chain.from_iterable(preparation.corpora), *preparation.alignments):
        source.check()
    held_out = {  # errors show before hours of work
        name: [_HeldOut.read(pair, preparation.tag_of(pair)) for pair in pairs]
        for name, pairs in (("valid", preparation.valid), ("test", preparation.test))
        if pairs
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        clear_leftovers_in(out)
        with new_contents(out, _obsolete, INDEX) as work:
            with WorkerPool(workers) as pool:
                index = _fill(preparation, held_out, work, pool)
            write_json(work / INDEX, index)
    except OSError as error:
        raise output_error(error.filename or out, error) from error


def _fill(
    preparation: Preparation, held_out: dict[str, list[_HeldOut]], work: Path, pool: WorkerPool
) -> dict[str, Any]:
    """Write all files except data.json, and return its content."""
    options = preparation.options
    clock = _Clock()
    text = _clean(preparation, work, pool)
    clock.lap("clean")
    terminology = preparation.terminology
    symbols = () if terminology is None else terminology.annotation.symbols
    vocabularies = _train_vocabularies(preparation, text, work, pool, symbols)
    clock.lap("vocabulary")
    train, annotated = _encode(preparation, text, vocabularies, work, pool)
    splits = {"train": train}
    text.remove()
    clock.lap("encode")
    for name, texts in held_out.items():
        splits[name] = _write_held_out(texts, name, vocabularies, work)
        if preparation.trees:
            _write_trees(texts, work / f"{name}.trees.txt")
    return {
        "format_version": FORMAT_VERSION,
        "created_by": f"translate-trt {importlib.metadata.version('translate-trt')}",
        "name": preparation.name,
        "source_language": preparation.languages[0],
        "target_language": preparation.languages[1],
        "vocabulary_size": vocabularies.sizes[1],
        "source_vocabulary_size": vocabularies.sizes[0] if vocabularies.are_separate else 0,
        "tokenizer_sha256": sha256_of_file(vocabularies.files[1])[0],
        "source_tokenizer_sha256": sha256_of_file(vocabularies.files[0])[0],
        "token_type": vocabularies.token_type,
        "splits": splits,
        "settings": dataclasses.asdict(options),
        "terminology": None if terminology is None else terminology.record(annotated),
        "trees": preparation.trees,
        "back_translated": len(preparation.back_translated),
        "prompt": vocabularies.prompt(preparation.tagged_languages).to_json(),
        "origin": preparation.origin,
        "seconds": clock.laps,
    }


def _obsolete(out: Path) -> Iterator[Path]:
    """List all files that an earlier preparation may have written, data.json first."""
    yield out / INDEX
    for name in (TOKENIZER, *TOKENIZERS):
        yield out / name
    for name in ("test", "valid", "train"):  # new data may have no test set to replace an old one
        texts = (f"{name}.{kind}.txt" for kind in ("trees", *SIDES))
        yield from (out / file for file in (*texts, *split_files(name, linked=True)))


class _Clock:
    """Timer of the stages, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 1)
        self._last = now


# ---- cleaning ----


@dataclass(frozen=True)
class _Chunk:
    """Byte ranges of consecutive pairs in the files of cleaned text, and their rows."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    rows: slice
    corpus: int  # index of the pair of texts that it is from


@dataclass
class _CleanText:
    """Cleaned pairs in two files, or in three with their alignments.

    Attributes:
        paths: Source and target file, and that of the alignments.
        chunks: Consecutive chunks of the files.
        keep: [pairs], False for duplicates.
        read: Number of pairs read.
        dropped: Number of dropped pairs by reason.
    """

    paths: tuple[Path, ...]
    chunks: list[_Chunk] = field(default_factory=list)
    keep: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def remove(self) -> None:
        for path in self.paths:
            path.unlink()


def _clean(preparation: Preparation, work: Path, pool: WorkerPool) -> _CleanText:
    """Write cleaned text into files; duplicates are marked, not removed."""
    sides = (*SIDES, ALIGNMENT) if preparation.alignments else SIDES
    text = _CleanText(tuple(work / f"cleaned.{side}" for side in sides))
    hashes: list[NDArray[np.uint64]] = []
    begin, rows = (0,) * len(sides), 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in text.paths]
        bar = stack.enter_context(_bar("cleaning", None))
        corpora: list[int] = []  # of each task
        tasks = _cleaning_tasks(preparation, text, corpora)
        for number, chunk in enumerate(pool.map(_clean_task, tasks)):
            contents = (chunk.source, chunk.target, chunk.alignment)[: len(sides)]
            for file, content in zip(files, contents, strict=True):
                file.write(content)
            # Pairs of the same text are no duplicates if their languages differ.
            language = preparation.tag_of(preparation.corpora[corpora[number]])
            hashes.append(chunk.hashes + np.uint64(zlib.crc32((language or "").encode())))
            end = tuple(at + len(content) for at, content in zip(begin, contents, strict=True))
            own = slice(rows, rows + len(chunk.hashes))
            text.chunks.append(_Chunk(begin, end, own, corpora[number]))
            text.dropped.update(chunk.dropped)
            begin, rows = end, rows + len(chunk.hashes)
            bar.update(text.read - bar.n)
    if not rows:
        raise InputError(f"no pair of {text.read:,} is fit to train on: {_reasons(text.dropped)}.")
    if preparation.options.keep_duplicates:
        text.keep = np.ones(rows, np.bool_)
    else:
        text.keep = first_occurrences(np.concatenate(hashes))
        text.dropped["duplicate"] = rows - int(text.keep.sum())
    return text


_CleaningTask = tuple[list[bytes], list[bytes], PrepareOptions, AlignedLines | None]


def _cleaning_tasks(
    preparation: Preparation, text: _CleanText, corpora: list[int]
) -> Iterator[_CleaningTask]:
    """Iterate over the chunks of all pairs; count pairs, and record the corpus of each chunk."""
    alignments: Sequence[LineSource | None] = preparation.alignments
    pairs = preparation.corpora
    alignments = alignments or [None] * len(pairs)
    for corpus, (pair, alignment) in enumerate(zip(pairs, alignments, strict=True)):
        first = 1
        for sources, targets, *links in read_line_chunks(*pair, CHUNK_PAIRS, alignment):
            text.read += len(sources)
            corpora.append(corpus)
            aligned = AlignedLines(links[0], str(alignment), first) if links else None
            first += len(sources)
            yield sources, targets, preparation.options, aligned


def _clean_task(task: _CleaningTask) -> CleanChunk:
    return clean_chunk(*task)


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{dropped[name]:,} {name.replace('_', ' ')}" for name in REASONS)


def _bar(description: str, total: int | None) -> tqdm[Any]:
    return tqdm(total=total, desc=description, unit=" pairs", unit_scale=True, disable=None)


# ---- vocabulary ----


@dataclass(frozen=True)
class _Vocabularies:
    """Vocabularies of source and target, which may be one.

    Attributes:
        files: SentencePiece models of source and target.
        sizes: Their sizes.
    """

    files: tuple[Path, Path]
    sizes: tuple[int, int]

    @property
    def are_separate(self) -> bool:
        return self.files[0] != self.files[1]

    @property
    def token_type(self) -> str:
        return token_type(max(self.sizes))

    def prompt(self, languages: Sequence[str]) -> Prompt:
        """Return the prompt of a model whose sources begin with the tag of one of the languages."""
        if not languages:
            return Prompt()
        tokenizer = Tokenizer(*self.files)
        pieces = tokenizer.source_pieces(range(tokenizer.source_vocabulary_size))
        tags = {language: pieces.index(LANGUAGE_TAG.format(language)) for language in languages}
        return Prompt(target_languages=tags, target_side="source")


def _train_vocabularies(
    preparation: Preparation,
    text: _CleanText,
    work: Path,
    pool: WorkerPool,
    symbols: Sequence[str],
) -> _Vocabularies:
    """Train the vocabularies on a sample of the kept pairs; labels of trees are taken from all.

    All corpora count alike, as the weights that training gives them are not known yet. The symbols
    of annotations occur in source text only. The copies of the sampled pairs count as their
    originals do, so that words in capitals have tokens, too.
    """
    options = preparation.options
    rows = np.flatnonzero(text.keep)
    sample = rows[sample_rows(len(rows), options.vocabulary_sentences, options.seed)]
    kind = options.vocabulary_type
    controls = [BACK_TRANSLATED] if preparation.back_translated else []
    controls += [LANGUAGE_TAG.format(language) for language in preparation.tagged_languages]

    def train(path: Path, wanted: int, sides: tuple[int, ...], symbols: Sequence[str]) -> int:
        read = functools.partial(_read_lines, text.paths, sides, options)
        lines = itertools.chain.from_iterable(pool.map(read, _pick(text, sample)))
        symbols = (*options.user_symbols, *symbols)
        own = controls if 0 in sides else []
        return train_tokenizer(lines, wanted, path, kind, symbols, options.normalization, own)

    def collect_labels(path: Path) -> int:
        log.info("collecting the labels of %d trees", len(rows))
        read = functools.partial(_read_words, text.paths, (1,), options)
        labels = sorted(set(itertools.chain.from_iterable(pool.map(read, _pick(text, rows)))))
        # A rare label is a token as well, whatever size was requested.
        wanted = len(labels) + SMALLEST_VOCABULARY
        return train_tokenizer(labels, wanted, path, WORDS, normalization=options.normalization)

    if not options.source_vocabulary_size:
        path = work / TOKENIZER
        size = train(path, options.vocabulary_size, (0, 1), symbols)
        return _Vocabularies((path, path), (size, size))
    source, target = (work / name for name in TOKENIZERS)
    source_size = train(source, options.source_vocabulary_size, (0,), symbols)
    if preparation.trees:
        target_size = collect_labels(target)
    else:
        target_size = train(target, options.vocabulary_size, (1,), ())
    return _Vocabularies((source, target), (source_size, target_size))


_Picked = tuple[_Chunk, NDArray[np.int64]]  # a chunk, and rows of it


def _pick(text: _CleanText, rows: NDArray[np.int64]) -> Iterator[_Picked]:
    """Iterate over the chunks that have some of the rows."""
    for chunk in text.chunks:
        begin, end = np.searchsorted(rows, (chunk.rows.start, chunk.rows.stop))
        if begin < end:
            yield chunk, rows[begin:end] - chunk.rows.start


def _read_words(
    paths: tuple[Path, ...], sides: tuple[int, ...], options: PrepareOptions, picked: _Picked
) -> set[str]:
    """Return the different words of rows of a chunk."""
    return {word for line in _read_lines(paths, sides, options, picked) for word in line.split()}


def _read_lines(
    paths: tuple[Path, ...], sides: tuple[int, ...], options: PrepareOptions, picked: _Picked
) -> list[str]:
    """Read rows of a chunk and make their copies: all lines of the first side, then the second."""
    chunk, rows = picked
    lines = _read_chunk(paths, chunk)
    pairs = _add_copies([[side[row] for row in rows] for side in lines], options)[0]
    return [line for side in sides for line in pairs[side]]


def _add_copies(
    sides: list[list[str]], options: PrepareOptions
) -> tuple[list[list[str]], Counter[str]]:
    """Insert the modified copies of pairs behind their originals; count the copies by kind.

    Args:
        sides: Source and target lines, and alignments if there are some.
        options: Shares of the copies, and their seed.
    """
    shares, made = options.augment_shares, Counter[str]()
    if not shares:
        return sides, made
    rows: list[tuple[str, ...]] = []
    for source, target, *alignment in zip(*sides, strict=True):
        rows.append((source, target, *alignment))
        for kind, copy in modified_copies(source, target, shares, options.seed):
            rows.append((*copy, *alignment))
            made[kind] += 1
    return [list(side) for side in zip(*rows, strict=True)] or sides, made


def _read_chunk(paths: tuple[Path, ...], chunk: _Chunk) -> list[list[str]]:
    """Read the lines of a chunk in each file, without line ends."""
    sides = []
    for path, begin, end in zip(paths, chunk.begin, chunk.end, strict=True):
        with path.open("rb") as file:
            file.seek(begin)
            sides.append(file.read(end - begin).decode().split("\n")[:-1])
    return sides


# ---- tokens ----


def _encode(
    preparation: Preparation,
    text: _CleanText,
    vocabularies: _Vocabularies,
    work: Path,
    pool: WorkerPool,
) -> tuple[dict[str, Any], int]:
    """Write the training split; return its entry in data.json and the number of annotated pairs."""
    options, terminology = preparation.options, preparation.terminology
    corpora, annotated = [0] * len(preparation.corpora), 0
    copies = Counter[str]()
    encode = functools.partial(_encode_chunk, text.paths, vocabularies, options, terminology)
    tasks = (
        (chunk, text.keep[chunk.rows], preparation.controls_of(chunk.corpus))
        for chunk in text.chunks
    )
    linked = bool(preparation.alignments)
    with SplitWriter(work, "train", linked) as writer, _bar("tokenizing", len(text.keep)) as bar:
        done = zip(pool.map(encode, tasks), text.chunks, strict=True)
        for (parts, count, made), chunk in done:
            annotated += count
            copies.update(made)
            for encoded in parts:
                writer.append(encoded)
                corpora[chunk.corpus] += len(encoded.lengths[0])
                text.dropped.update(encoded.dropped)
            bar.update(chunk.rows.stop - chunk.rows.start)
    kept = writer.pairs - copies.total()  # as `dropped` counts copies that are too long, too
    log.info("kept %d of %d pairs; dropped: %s", kept, text.read, _reasons(text.dropped))
    if copies:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(copies.items()))
        log.info("added modified copies: %s", counts)
    if not writer.pairs:
        raise InputError(f"no pair of {text.read:,} is fit to train on: {_reasons(text.dropped)}.")
    if terminology is not None:
        log.info("annotated %d pairs with terms of %s", annotated, terminology.terminology)
        if not annotated:
            log.warning(
                "no pair has a term of %s on both sides: a model cannot learn to use annotations; "
                "check the order of the columns, or add --terminology-ignore-case",
                terminology.terminology,
            )
    if writer.unlinked:
        log.warning(
            "%d of %d pairs have lost their alignment: normalization divides their text into other "
            "words",
            writer.unlinked, writer.pairs,
        )  # fmt: skip
    dropped = {name: text.dropped[name] for name in REASONS}
    entry = {
        "read": text.read, "dropped": dropped, "copies": dict(sorted(copies.items())),
        "corpora": corpora, **writer.entry(),
    }  # fmt: skip
    return entry, annotated


def _encode_chunk(
    paths: tuple[Path, ...],
    vocabularies: _Vocabularies,
    options: PrepareOptions,
    terminology: TerminologyOptions | None,
    task: tuple[_Chunk, NDArray[np.bool_], list[str]],
) -> tuple[list[Encoded], int, Counter[str]]:
    """Tokenize the pairs of a chunk that are kept, and their copies, in all segmentations.

    Args:
        paths: Files of the cleaned text.
        vocabularies: Vocabularies of both sides.
        options: Limits of lengths, and augmentation.
        terminology: Annotation; None for none.
        task: The chunk, [pairs] False for dropped ones, and the control symbols before sources.

    Returns:
        The tokens by segmentation, the number of annotated pairs, and that of copies by kind.
    """
    chunk, keep, controls = task
    kept = [
        [line for line, kept in zip(lines, keep.tolist(), strict=True) if kept]
        for lines in _read_chunk(paths, chunk)
    ]
    (source, target, *alignments), copies = _add_copies(kept, options)
    annotated = 0
    if terminology is not None:
        source, target, annotated = terminology.annotate(source, target, options.seed)
    parts = [
        encode_lines(
            source, target, vocabularies.files, options.max_length, vocabularies.token_type,
            alignments[0] if alignments else None, controls,
            Segmentation(options.segmentation_alpha, options.seed, number) if number else None,
        )
        for number in range(options.segmentations)
    ]  # fmt: skip
    if more := (options.segmentations - 1) * len(source):
        copies["segmentation"] = more
    return parts, annotated, copies


@dataclass(frozen=True)
class _HeldOut:
    """Lines of a validation or test text, without line ends, and the language of its tag."""

    source: list[str]
    target: list[str]
    language: str | None

    @classmethod
    def read(cls, pair: Pair, language: str | None) -> _HeldOut:
        """Read all lines.

        Raises:
            InputError: The texts are missing, damaged, not parallel or empty.
        """
        lines = cls([], [], language)
        for source_lines, target_lines in read_line_chunks(*pair, CHUNK_PAIRS):
            lines.source.extend(decode_lines(source_lines))
            lines.target.extend(decode_lines(target_lines))
        pairs = zip(lines.source, lines.target, strict=True)
        if not any(source.strip() and target.strip() for source, target in pairs):
            raise InputError(f"{pair[0]} and {pair[1]} have no pair with text on both sides.")
        return lines

    @property
    def coded_source(self) -> list[str]:
        """Source lines, each behind the code of its language, which `Prompt.of_line` reads."""
        return [f">>{self.language}<< {line}" if self.language else line for line in self.source]


def _write_held_out(
    texts: list[_HeldOut], name: str, vocabularies: _Vocabularies, work: Path
) -> dict[str, Any]:
    """Write all text, and the tokens of non-empty pairs; return the split's entry in data.json.

    There is no length limit: BLEU is computed over every line.
    """
    empty = 0
    with SplitWriter(work, name) as writer:
        for text in texts:
            controls = [LANGUAGE_TAG.format(text.language)] if text.language else []
            encoded = encode_lines(
                text.source, text.target, vocabularies.files, None, vocabularies.token_type,
                controls=controls,
            )  # fmt: skip
            empty += encoded.dropped["empty"]
            writer.append(encoded)
    for side in SIDES:
        lines = [text.coded_source if side == SIDES[0] else text.target for text in texts]
        content = "".join(f"{line}\n" for line in itertools.chain.from_iterable(lines))
        (work / f"{name}.{side}.txt").write_bytes(content.encode())
    read = sum(len(text.source) for text in texts)
    return {"read": read, "dropped": {"empty": empty}, **writer.entry()}


def _write_trees(texts: list[_HeldOut], path: Path) -> None:
    """Write the trees of words and labels, one per line, to compare parses with."""
    pairs = ((words, labels) for text in texts
             for words, labels in zip(text.source, text.target, strict=True))  # fmt: skip
    trees = (build_tree(labels.split(), words.split()).text for words, labels in pairs)
    path.write_bytes("".join(f"{tree}\n" for tree in trees).encode())

"""Learning of a shortlist from prepared data, or from text and a tokenizer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, read_manifest
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, PAD, START, TOKENIZER, TOKENIZERS, UNKNOWN
from translate_trt.train.data.encode import Encoded, encode_lines, token_type
from translate_trt.train.data.text_sources import TextSource, decode_lines, read_line_chunks
from translate_trt.train.shortlist.ibm_model1 import TokenPairs, TranslationTable, learn_table
from translate_trt.train.shortlist.shortlist_size import ShortlistSize
from translate_trt.train.shortlist.table import (
    Shortlist,
    best_translations,
    by_frequency,
    copies_of,
    tokenizer_hash,
)
from translate_trt.train.worker_processes import WorkerPool

if TYPE_CHECKING:
    from translate_trt.train.data.token_files import PreparedData  # which imports torch

log = logging.getLogger("translate_trt")

# Longer sentences are dropped, as in training by default: the cost grows with the square of the
# length, and they are seldom literal translations.
_MAX_LENGTH = 256
_CHUNK_PAIRS = 10_000
_COUNTED_TOKENS = 1 << 22  # tokens per call of np.bincount, which widens them to 64 bits


@dataclass(frozen=True)
class Vocabularies:
    """Properties of the tokenizers that a shortlist depends on.

    Attributes:
        copies: As in `Shortlist`.
        target_size: V.
        tokenizer_sha256: As in `Shortlist`.
    """

    copies: NDArray[np.int32]
    target_size: int
    tokenizer_sha256: str

    @classmethod
    def of(cls, source: Path, target: Path) -> Vocabularies:
        """Read the SentencePiece models of source and target; may be the same file."""
        tokenizer = Tokenizer(source, target)
        pieces = (
            tokenizer.source_pieces(range(tokenizer.source_vocabulary_size)),
            tokenizer.target_pieces(range(tokenizer.vocabulary_size)),
        )
        return cls(copies_of(*pieces), len(pieces[1]), tokenizer_hash(source, target))


def build_shortlist(
    pairs: TokenPairs,
    vocabularies: Vocabularies,
    size: ShortlistSize,
    iterations: int,
    pool: WorkerPool,
) -> Shortlist:
    """Learn a shortlist from sentence pairs.

    Args:
        pairs: Training text of the model.
        vocabularies: Vocabularies of the pairs.
        size: Size of the table.
        iterations: Iterations of expectation maximization.
        pool: Worker processes.

    Raises:
        InputError: There are no pairs.
        OptionError: `iterations` is less than 1.
        TranslateTrtError: A process ended unexpectedly.
    """
    if not len(pairs):
        raise InputError("the text has no sentence pair to learn a shortlist from.")
    copies, target_size = vocabularies.copies, vocabularies.target_size
    counts = _count_tokens(pairs.target, target_size)
    counts[[PAD, START]] = 0
    present = np.flatnonzero(counts).astype(np.int32)
    order = by_frequency(present, counts[present])
    frequent = np.sort(present[order[: size.frequent]])
    table = learn_table(pairs, max(len(copies), target_size), iterations, pool)
    translations, probabilities = _rows(table, copies, frequent, size)
    return Shortlist(
        frequent,
        counts[frequent],
        _columns(table, len(copies), frequent, size),
        translations,
        probabilities,
        copies,
        target_size,
        vocabularies.tokenizer_sha256,
        len(pairs),
        iterations,
    )


def _count_tokens(tokens: NDArray[np.integer], vocabulary_size: int) -> NDArray[np.int64]:
    """Return [V] counts of the tokens."""
    counts = np.zeros(vocabulary_size, np.int64)
    for begin in range(0, len(tokens), _COUNTED_TOKENS):
        part = tokens[begin : begin + _COUNTED_TOKENS]
        counts += np.bincount(part, minlength=vocabulary_size)
    return counts


def _rows(
    table: TranslationTable,
    copies: NDArray[np.int32],
    frequent: NDArray[np.int32],
    size: ShortlistSize,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the best translations [S, C] of each source token, without frequent tokens."""
    # The copy of a source token is kept at any probability (`Shortlist.copies`).
    wanted = (table.probability >= size.min_probability) | (copies[table.source] == table.target)
    wanted &= ~np.isin(table.target, frequent) & (table.source != END)
    source, target = table.source[wanted], table.target[wanted]
    probability = table.probability[wanted]
    order = np.lexsort((target, -probability, copies[source] != target, source))
    source, target, probability = source[order], target[order], probability[order]
    column = np.arange(len(source)) - np.searchsorted(source, source)
    kept = column < size.best
    tokens = np.full((len(copies), size.best), PAD, np.int32)
    values = np.zeros((len(copies), size.best), np.float32)
    tokens[source[kept], column[kept]] = target[kept]
    values[source[kept], column[kept]] = probability[kept]
    return best_translations(tokens, values, frequent, size.best, copies)


def _columns(
    table: TranslationTable, source_size: int, frequent: NDArray[np.int32], size: ShortlistSize
) -> NDArray[np.float32]:
    """Return the probabilities [S, F] of the frequent tokens."""
    wanted = np.isin(table.target, frequent) & (table.source != END)
    wanted &= table.probability >= size.min_probability
    values = np.zeros((source_size, len(frequent)), np.float32)
    column = np.searchsorted(frequent, table.target[wanted])
    values[table.source[wanted], column] = table.probability[wanted]
    return values


# ---- text ----


def find_tokenizers(path: Path) -> tuple[Path, Path]:
    """Find the SentencePiece models of source and target; may be the same file.

    Args:
        path: A model, or the directory of a run, a checkpoint, prepared data or a bundle.

    Raises:
        InputError: There is no tokenizer, or it has other ids for the special tokens.
        BundleError: The bundle is damaged, or the file is not a SentencePiece model.
    """
    files = _tokenizer_files(path)
    for model in files:
        if not model.is_file():
            raise InputError(
                f"there is no tokenizer {model}; give a .spm file, or the directory of a run, a "
                "checkpoint, a bundle or prepared data."
            )
        found = Tokenizer(model, model)
        special = found.pad_token, found.unknown_token, found.start_token, found.end_token
        if special != (PAD, UNKNOWN, START, END):
            raise InputError(
                f"{model} has its padding, unknown, start and end tokens at {special}, but must "
                f"have them at {(PAD, UNKNOWN, START, END)}, as `translate-trt train` makes them."
            )
    return files


def _tokenizer_files(path: Path) -> tuple[Path, Path]:
    if (path / MANIFEST_NAME).is_file():
        entries = read_manifest(path).tokenizer
        return entries["source"].locate(path), entries["target"].locate(path)
    if not path.is_dir():
        return path, path
    source, target = TOKENIZERS if (path / TOKENIZERS[0]).is_file() else (TOKENIZER, TOKENIZER)
    return path / source, path / target


def read_pairs(
    source: Path, target: Path, tokenizers: tuple[Path, Path], pool: WorkerPool
) -> TokenPairs:
    """Tokenize two text files, without pairs with an empty or too long side.

    Args:
        source: Source text, plain, gzip or zstd, a sentence per line.
        target: Target text.
        tokenizers: SentencePiece models of source and target.
        pool: Worker processes.

    Raises:
        InputError: A file cannot be read, the numbers of lines differ, or no pair is left.
    """
    model = Tokenizer(*tokenizers)
    kind = token_type(max(model.source_vocabulary_size, model.vocabulary_size))
    tokens: tuple[list[bytes], list[bytes]] = [], []
    lengths: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = [], []
    dropped = {"empty": 0, "too_long": 0}
    with tqdm(desc="tokenizing", unit=" pairs", unit_scale=True, disable=None) as bar:
        chunks = read_line_chunks(TextSource(source), TextSource(target), _CHUNK_PAIRS)
        for encoded in pool.map(functools.partial(_encode, tokenizers, kind), chunks):
            for side in (0, 1):
                tokens[side].append(encoded.tokens[side])
                lengths[side].append(encoded.lengths[side])
            for reason, count in encoded.dropped.items():
                dropped[reason] += count
            bar.update(len(encoded.lengths[0]) + sum(encoded.dropped.values()))
    count = sum(map(len, lengths[0]))
    if any(dropped.values()):
        log.info(
            "%d pairs are dropped: %d with an empty side, %d longer than %d tokens",
            sum(dropped.values()), dropped["empty"], dropped["too_long"], _MAX_LENGTH,
        )  # fmt: skip
    if not count:
        raise InputError(f"{source} and {target} have no pair with text on both sides.")
    sides = [
        (np.frombuffer(b"".join(tokens[side]), kind), _offsets(lengths[side])) for side in (0, 1)
    ]
    return TokenPairs(*sides[0], *sides[1])


def prepared_pairs(prepared: PreparedData) -> TokenPairs:
    """Open the training split of prepared data, after comparing it with its checksum.

    Raises:
        InputError: The files are missing or damaged.
    """
    prepared.check("train")  # before hours of counting
    train = prepared.split("train")
    sides = (train.source.tokens, train.source.offsets, train.target.tokens)
    return TokenPairs(*sides, train.target.offsets)


def _offsets(lengths: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(np.concatenate(lengths))))


def _encode(tokenizers: tuple[Path, Path], kind: str, chunk: tuple[list[bytes], ...]) -> Encoded:
    """Decode and tokenize a chunk, in a worker process."""
    source, target = map(decode_lines, chunk)
    return encode_lines(source, target, tokenizers, _MAX_LENGTH, kind)


# ---- coverage ----


@dataclass(frozen=True)
class Coverage:
    """Coverage of reference translations by the lists of their source sentences.

    Attributes:
        tokens: Tokens of all references, without end symbols.
        inside: Tokens that are in the list of their sentence.
        sentences: Sentences with tokens on both sides.
        whole: Sentences with all tokens in the list.
        list_tokens: Sum of the lists' sizes.
    """

    tokens: int
    inside: int
    sentences: int
    whole: int
    list_tokens: int


def measure_coverage(
    shortlist: Shortlist, pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer
) -> Coverage:
    """Measure how many reference tokens are in the lists of their source sentences.

    Args:
        shortlist: Shortlist to measure.
        pairs: Source sentences and reference translations.
        tokenizer: Tokenizer of the shortlist.

    Raises:
        InputError: No pair has tokens on both sides.
    """
    tokens = inside = sentences = whole = list_tokens = 0
    for source, target in pairs:
        source_ids = tokenizer.encode_source(source)
        target_ids = tokenizer.encode_target(target)
        if not source_ids or not target_ids:
            continue
        allowed = shortlist.for_sentence([*source_ids, END])
        found = int(np.isin(target_ids, allowed).sum())
        tokens += len(target_ids)
        inside += found
        sentences += 1
        whole += found == len(target_ids)
        list_tokens += len(allowed)
    if not sentences:
        raise InputError("the text for coverage has no pair with text on both sides.")
    return Coverage(tokens, inside, sentences, whole, list_tokens)

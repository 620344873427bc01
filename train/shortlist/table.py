"""Lexical shortlist: the target tokens to which the translation of a sentence is restricted.

Of a vocabulary of 37,000 tokens, a sentence needs a few hundred. Its list is the union of the most
frequent target tokens and, for each source token, the most probable translations by IBM Model 1
(train/shortlist/ibm_model1.py). A source token that the target vocabulary has too is always among
its own translations, for names, numbers and the bytes of unknown characters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.atomic_files import write_bytes_atomically
from translate_trt.train.config import END, PAD, START

FORMAT_VERSION = 2
_KIND = "translate-trt shortlist"

# Arrays of a file, and their dtypes.
_TYPES = {
    "frequent": np.int32,
    "frequent_counts": np.int64,
    "frequent_probabilities": np.float32,
    "translations": np.int32,
    "probabilities": np.float32,
    "copies": np.int32,
}
_MAKE_AGAIN = "Make it again with: translate-trt shortlist"


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Shortlist of S source and V target tokens: F frequent tokens, and C translations per token.

    Attributes:
        frequent: [F] int32, ascending: target tokens of every list, with END, without PAD and
            START. UNKNOWN is included if the training text has it, which byte fallback rules out.
        frequent_counts: [F] int64, counts of the frequent tokens in the training text.
        frequent_probabilities: [S, F] float32, probabilities of the frequent tokens as
            translations, for `truncated`; 0 below the minimum probability.
        translations: [S, C] int32, translations that are not in `frequent`, by descending
            probability, padded with PAD. The rows of PAD, START and END are empty.
        probabilities: [S, C] float32, probabilities of the translations, padded with 0. That of a
            copied token may be 0.
        copies: [S] int32, target token of the same piece, which is always among the translations;
            PAD for special tokens and if there is none.
        vocabulary_size: V.
        tokenizer_sha256: Hash of the tokenizers (`tokenizer_hash`).
        pairs: Number of sentence pairs in the training text.
        iterations: Iterations of expectation maximization.
    """

    frequent: NDArray[np.int32]
    frequent_counts: NDArray[np.int64]
    frequent_probabilities: NDArray[np.float32]
    translations: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    copies: NDArray[np.int32]
    vocabulary_size: int
    tokenizer_sha256: str
    pairs: int
    iterations: int

    def for_sentence(self, source_ids: Sequence[int]) -> NDArray[np.int32]:
        """Look up the target tokens that the translation of a sentence may use.

        Args:
            source_ids: Source tokens, in any order, with or without END.

        Returns:
            [L] int32, ascending, without repetitions.
        """
        rows = self.translations[np.asarray(source_ids, dtype=np.int64)]
        tokens = np.unique(np.concatenate((self.frequent, rows.ravel())))
        return np.setdiff1d(tokens, [PAD]).astype(np.int32)

    def truncated(self, frequent: int, best: int) -> Shortlist:
        """Cut out a smaller shortlist, equal to one that is built with these sizes.

        Args:
            frequent: F, from 1 (END) to that of this shortlist.
            best: C, from 1 to that of this shortlist.

        Raises:
            OptionError: A size is out of range.
        """
        largest = (len(self.frequent), self.translations.shape[1])
        for name, value, most in zip(("frequent", "best"), (frequent, best), largest, strict=True):
            if not 1 <= value <= most:
                raise OptionError(f"{name} is {value}; it must be from 1 to {most}.")
        order = by_frequency(self.frequent, self.frequent_counts)
        kept, left = np.sort(order[:frequent]), np.sort(order[frequent:])
        shape = len(self.translations), len(left)
        tokens = np.hstack((self.translations, np.broadcast_to(self.frequent[left], shape)))
        values = np.hstack((self.probabilities, self.frequent_probabilities[:, left]))
        translations, probabilities = best_translations(
            tokens, values, self.frequent[kept], best, self.copies
        )
        return replace(
            self,
            frequent=self.frequent[kept],
            frequent_counts=self.frequent_counts[kept],
            frequent_probabilities=self.frequent_probabilities[:, kept],
            translations=translations,
            probabilities=probabilities,
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file atomically.

        Raises:
            OutputError: The file cannot be written.
        """
        description = {
            "format_version": FORMAT_VERSION,
            "vocabulary_size": self.vocabulary_size,
            "tokenizer_sha256": self.tokenizer_sha256,
            "pairs": self.pairs,
            "iterations": self.iterations,
        }
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _TYPES}
        # A single entry, because safetensors writes several in an order that varies between runs.
        metadata = {_KIND: json.dumps(description)}
        write_bytes_atomically(path, safetensors.numpy.save(arrays, metadata))

    @classmethod
    def load(cls, path: Path, tokenizer_sha256: str | None = None) -> Shortlist:
        """Read a file written by `save`.

        Args:
            path: Path of the file.
            tokenizer_sha256: Hash of the model's tokenizers; None skips the check.

        Raises:
            InputError: The file is missing, damaged, not a shortlist, of another format, or made
                with another tokenizer.
        """
        description, arrays = _read(path)
        version = description.get("format_version")
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path} has shortlist format {version}; this version reads {FORMAT_VERSION}. "
                f"{_MAKE_AGAIN}, or upgrade translate-trt."
            )
        try:
            shortlist = cls(
                **{name: arrays[name] for name in _TYPES},
                vocabulary_size=int(description["vocabulary_size"]),
                tokenizer_sha256=str(description["tokenizer_sha256"]),
                pairs=int(description["pairs"]),
                iterations=int(description["iterations"]),
            )
            _check(shortlist)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}). {_MAKE_AGAIN}") from error
        found = shortlist.tokenizer_sha256
        if tokenizer_sha256 is not None and found != tokenizer_sha256:
            raise InputError(
                f"{path} was made with another tokenizer (SHA-256 {found[:12]}, not "
                f"{tokenizer_sha256[:12]}): its token ids mean other tokens. {_MAKE_AGAIN}, with "
                "the tokenizer of this model."
            )
        return shortlist


def tokenizer_hash(source: Path, target: Path) -> str:
    """Return the SHA-256 of the tokenizers, a single hash if both are the same.

    Raises:
        InputError: A file cannot be read.
    """
    contents = []
    for path in (source, target):
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise InputError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    return content_hash(*contents)


def content_hash(source: bytes, target: bytes) -> str:
    """Return `tokenizer_hash` of the contents of the files."""
    return "+".join(dict.fromkeys(hashlib.sha256(x).hexdigest() for x in (source, target)))


def shared_copies(vocabulary_size: int) -> NDArray[np.int32]:
    """Return `Shortlist.copies` of a shared vocabulary."""
    copies = np.arange(vocabulary_size, dtype=np.int32)
    copies[: END + 1] = PAD
    return copies


def copies_of(source: Sequence[str], target: Sequence[str]) -> NDArray[np.int32]:
    """Return `Shortlist.copies` of two vocabularies.

    Args:
        source: Pieces of the source by token.
        target: Pieces of the target by token.
    """
    tokens = {piece: token for token, piece in enumerate(target) if token > END}
    copies = np.array([tokens.get(piece, PAD) for piece in source], dtype=np.int32)
    copies[: END + 1] = PAD
    return copies


def no_copies(vocabulary_size: int) -> NDArray[np.int32]:
    """Return `Shortlist.copies` of a source vocabulary of which no token is copied."""
    return np.full(vocabulary_size, PAD, dtype=np.int32)


def shortlist_of_entries(
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    probabilities: NDArray[np.float32],
    frequent: NDArray[np.int64],
    copies: NDArray[np.int32],
    vocabulary_size: int,
    tokenizer_sha256: str,
) -> Shortlist:
    """Make a shortlist from a given list of translations.

    Counts of the frequent tokens and their probabilities as translations are unknown: they are 0,
    and `truncated` keeps the frequent tokens of the lowest ids.

    Args:
        sources: [E] source token of each translation; translations of END are added to the frequent
            tokens.
        targets: [E] the translations, none of which is PAD or START.
        probabilities: [E], of p(target | source).
        frequent: [F] tokens of every list, in any order; END is added.
        copies: [S], as in `Shortlist`.
        vocabulary_size: V.
        tokenizer_sha256: Hash of the tokenizers.
    """
    always = np.union1d(np.append(frequent, END), targets[sources == END]).astype(np.int32)
    copied = np.flatnonzero(copies > PAD)
    rows = np.concatenate((sources, copied))
    tokens = np.concatenate((targets, copies[copied]))
    values = np.concatenate((probabilities, np.zeros(len(copied), np.float32)))
    kept = ~np.isin(tokens, always) & ~np.isin(rows, (PAD, START, END))
    rows, tokens, values = rows[kept], tokens[kept], values[kept]
    # Of equal translations, the first is the most probable one.
    order = np.lexsort((-values, tokens, rows))
    rows, tokens, values = rows[order], tokens[order], values[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (np.diff(rows) != 0) | (np.diff(tokens) != 0)
    rows, tokens, values = rows[first], tokens[first], values[first]
    order = np.lexsort((tokens, -values, rows))
    rows, tokens, values = rows[order], tokens[order], values[order]
    columns = np.arange(len(rows)) - np.searchsorted(rows, rows)
    best = int(columns.max(initial=0)) + 1
    translations = np.full((len(copies), best), PAD, dtype=np.int32)
    found = np.zeros((len(copies), best), dtype=np.float32)
    translations[rows, columns], found[rows, columns] = tokens, values
    return Shortlist(
        frequent=always,
        frequent_counts=np.zeros(len(always), dtype=np.int64),
        frequent_probabilities=np.zeros((len(copies), len(always)), dtype=np.float32),
        translations=translations,
        probabilities=found,
        copies=copies,
        vocabulary_size=vocabulary_size,
        tokenizer_sha256=tokenizer_sha256,
        pairs=0,
        iterations=0,
    )


def by_frequency(tokens: NDArray[np.int32], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices [M] that sort tokens [M] by descending frequency, END first.

    Equally frequent tokens are in ascending order.
    """
    return np.lexsort((tokens, -counts, tokens != END))


def best_translations(
    tokens: NDArray[np.int32],
    probabilities: NDArray[np.float32],
    frequent: NDArray[np.int32],
    best: int,
    copies: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Select the most probable candidates of each source token, and always its copy.

    Args:
        tokens: [S, M] candidates, without repetitions in a row, in any order.
        probabilities: [S, M]; candidates of probability 0 are ignored.
        frequent: [F] tokens to leave out.
        best: C.
        copies: [S], as in `Shortlist`.

    Returns:
        Tokens [S, C] and probabilities [S, C] as in `Shortlist`.
    """
    own = copies[:, None]
    probabilities = np.where(np.isin(tokens, frequent), 0, probabilities)
    wanted = ~np.isin(own, frequent) & (own > END)
    is_own = (tokens == own) & wanted
    # The copy moves to a separate column, where it is selected at any probability.
    own_probability = np.where(is_own, probabilities, 0).sum(axis=1, keepdims=True)
    probabilities = np.where(is_own, 0, probabilities)
    tokens = np.hstack((tokens, np.where(wanted, own, PAD)))
    priority = np.hstack((probabilities, np.where(wanted, 2.0, 0.0).astype(np.float32)))
    probabilities = np.hstack((probabilities, own_probability.astype(np.float32)))
    tokens = np.where(priority > 0, tokens, PAD)
    missing = max(0, best - tokens.shape[1])
    pad = ((0, 0), (0, missing))
    tokens, probabilities = np.pad(tokens, pad), np.pad(probabilities, pad)
    chosen = np.lexsort((tokens, -np.pad(priority, pad)), axis=1)[:, :best]
    tokens = np.take_along_axis(tokens, chosen, axis=1)
    probabilities = np.take_along_axis(probabilities, chosen, axis=1)
    order = np.lexsort((tokens, tokens == PAD, -probabilities), axis=1)
    return (
        np.take_along_axis(tokens, order, axis=1).astype(np.int32),
        np.take_along_axis(probabilities, order, axis=1).astype(np.float32),
    )


def is_shortlist(sample: bytes) -> bool:
    """Recognize a shortlist of any version by the beginning of its file."""
    size = int.from_bytes(sample[:8], "little")
    try:
        head = json.loads(sample[8 : 8 + size])
        return _KIND in head["__metadata__"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return False


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the description and the arrays of a shortlist."""
    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {}).get(_KIND, "null"))
            if not isinstance(description, dict):
                raise InputError(
                    f"{path} is a safetensors file, but not a shortlist; give a file that "
                    "`translate-trt shortlist` made."
                )
            names = _TYPES.keys() & file.keys()
            return description, {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise InputError(
            f"there is no file {path}; make it with: translate-trt shortlist"
        ) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is damaged or not a shortlist ({error}). {_MAKE_AGAIN}"
        ) from error


def _check(shortlist: Shortlist) -> None:
    """Raise a ValueError if shapes, dtypes or values of the arrays are invalid."""
    frequent, translations = shortlist.frequent, shortlist.translations
    count, best, sources = len(frequent), translations.shape[-1], len(shortlist.copies)
    shapes = {
        "frequent": (count,),
        "frequent_counts": (count,),
        "frequent_probabilities": (sources, count),
        "translations": (sources, best),
        "probabilities": (sources, best),
        "copies": (sources,),
    }
    for name, shape in shapes.items():
        array = getattr(shortlist, name)
        if array.shape != shape or array.dtype != _TYPES[name]:
            raise ValueError(f"{name} is {array.dtype} {array.shape}")
    if END not in frequent or PAD in frequent or START in frequent or np.any(np.diff(frequent) < 1):
        raise ValueError("frequent is not ascending, or not with END and without PAD and START")
    for tokens in (frequent, translations, shortlist.copies):
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < shortlist.vocabulary_size:
            raise ValueError("a token is outside the vocabulary")

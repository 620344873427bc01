"""Alignments of training pairs: words in Pharaoh format, and tokens in files.

A link of two words links each token of the one with each token of the other. The end symbols of
source and target are linked as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.tokenizer import WORD_START, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

#: numpy's name of the type of positions in files; it limits the length of sentences.
LINK_TYPE = "uint16"

_LINK = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")

Links = list[tuple[int, int]]


def check_length(max_length: int) -> None:
    """Raise an OptionError if positions of so long sentences do not fit into the files."""
    largest = int(np.iinfo(LINK_TYPE).max)
    if max_length > largest:
        raise OptionError(
            f"max_length is {max_length}; with alignments it must be at most {largest}."
        )


def read_links(line: str, source_words: int, target_words: int) -> Links:
    """Read an alignment in Pharaoh format: "0-0 1-2", the source word before the hyphen.

    Args:
        line: Alignment of a pair.
        source_words: Words of the source. Word number `source_words` is the end symbol.
        target_words: Words of the target.

    Raises:
        ValueError: The format is another, or a word does not exist.
    """
    links: Links = []
    for part in line.split():
        match = _LINK.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:20]!r} is no link such as 0-1")
        source, target = int(match[1]), int(match[2])
        for side, word, count in (
            ("source", source, source_words),
            ("target", target, target_words),
        ):
            if word > count:
                raise ValueError(f"{part} names a word of the {side}, which has {count}")
        links.append((source, target))
    return links


class TokenLinker:
    """Links of tokens from links of words, for the vocabularies of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._starts = tuple(
            [piece.startswith(WORD_START) for piece in pieces]
            for pieces in (
                tokenizer.source_pieces(range(tokenizer.source_vocabulary_size)),
                tokenizer.target_pieces(range(tokenizer.vocabulary_size)),
            )
        )

    def link(
        self, pair: tuple[str, str], tokens: tuple[list[int], list[int]], line: str
    ) -> NDArray[np.int64] | None:
        """Return the links of a pair as [links, 2] positions of target and source, ascending.

        Args:
            pair: Source and target text.
            tokens: Their tokens, without end symbols.
            line: Alignment of the words.

        Returns:
            None if the tokens divide the text into other words, which normalization may do.
        """
        words = [len(text.split()) for text in pair]
        spans = [self._spans(side, tokens[side]) for side in (0, 1)]
        if [len(found) - 1 for found in spans] != words:
            return None
        links = {(len(tokens[1]), len(tokens[0]))}
        for source, target in read_links(line, *words):
            links.update((t, s) for t in spans[1][target] for s in spans[0][source])
        return np.array(sorted(links), dtype=np.int64)

    def _spans(self, side: int, tokens: Sequence[int]) -> list[range]:
        """Return the positions of each word, and those of the end symbol."""
        starts = [index for index, token in enumerate(tokens) if self._starts[side][token]]
        ends = [*starts[1:], len(tokens)] if starts else []
        end = range(len(tokens), len(tokens) + 1)
        return [*map(range, starts, ends), end]


@dataclass(frozen=True)
class TokenLinks:
    """Linked tokens of pairs: those of pair i are positions[offsets[i] : offsets[i + 1]].

    Attributes:
        positions: [2 * links], target and source position of each link in turn.
        offsets: [pairs + 1], in elements of `positions`.
    """

    positions: NDArray[np.uint16]
    offsets: NDArray[np.int64]

    def of_batch(
        self, rows: NDArray[np.int64], target_width: int, source_width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the links of the pairs `rows` in attention weights [N, T, S].

        The target distribution of a position is uniform over the source tokens that it is linked
        with.

        Args:
            rows: [N].
            target_width: T.
            source_width: S. Links with later positions are left out.

        Returns:
            [links] indices of the flattened weights, and [links] probabilities of the target
            distribution.
        """
        import torch  # not at the top: data prepare reports wrong usage without it

        counts = (self.offsets[rows + 1] - self.offsets[rows]) // 2
        pair = np.repeat(np.arange(len(rows)), counts)
        # Position of each link among those of its pair.
        own = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = self.offsets[rows][pair] + 2 * own
        target = self.positions[places].astype(np.int64)
        source = self.positions[places + 1].astype(np.int64)
        inside = source < source_width
        position, source = (pair * target_width + target)[inside], source[inside]
        shares = 1.0 / np.bincount(position, minlength=1)[position]
        return (
            torch.from_numpy(position * source_width + source),
            torch.from_numpy(shares.astype(np.float32)),
        )

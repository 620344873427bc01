"""Cleaning: kept pairs, and the counts of dropped pairs."""

from __future__ import annotations

import numpy as np
import pytest

from translate_trt.runtime.errors import OptionError
from translate_trt.train.data.cleaning import CleanChunk, clean_chunk, first_occurrences
from translate_trt.train.data.corpora import PrepareOptions


def clean(*pairs: tuple[str, str], **options: float) -> CleanChunk:
    source = [f"{one}\n".encode() for one, _ in pairs]
    target = [f"{other}\n".encode() for _, other in pairs]
    return clean_chunk(source, target, PrepareOptions(**options))  # type: ignore[arg-type]


def test_lines_are_stripped_and_kept_in_order() -> None:
    chunk = clean(("  a b\t", "c\r"), ("d", "\u00a0e\u2028f\x85g"))
    assert chunk.source == b"a b\nd\n"
    assert chunk.target.decode() == "c\ne\u2028f\x85g\n"
    assert chunk.dropped == {}


def test_the_last_line_needs_no_end() -> None:
    chunk = clean_chunk([b"a\n", b"b"], [b"c\n", b"d"], PrepareOptions())
    assert (chunk.source, chunk.target) == (b"a\nb\n", b"c\nd\n")


@pytest.mark.parametrize("pair", [("", "a"), ("a", " \t"), ("\u2028", "a"), ("", "")])
def test_empty_sides(pair: tuple[str, str]) -> None:
    assert clean(pair, ("a", "a")).dropped == {"empty": 1}


def test_the_ratio_is_of_characters_and_has_an_allowance() -> None:
    for source, target in ((4, 22), (22, 4), (1, 13), (100, 310)):
        assert clean(("é" * source, "x" * target)).dropped == {}
    for source, target in ((4, 23), (23, 4), (1, 14), (100, 311)):
        assert clean(("é" * source, "x" * target)).dropped == {"length_ratio": 1}
    assert clean(("a", "x" * 19), max_length_ratio=9).dropped == {}


def test_lines_of_too_many_characters_are_too_long() -> None:
    assert clean(("a" * 160, "b" * 160), max_length=10).dropped == {}
    assert clean(("a" * 161, "b" * 160), max_length=10).dropped == {"too_long": 1}


def test_bytes_that_are_not_utf8() -> None:
    chunk = clean_chunk([b"a\n", b"caf\xe9\n"], [b"b\n", b"c\n"], PrepareOptions())
    assert (chunk.source, chunk.dropped) == (b"a\n", {"not_utf8": 1})


def test_equal_pairs_have_equal_hashes_and_no_others() -> None:
    pairs = [("a", "b"), ("b", "a"), ("a", "b "), ("ab", "c"), ("a", "bc"), ("a", "B")]
    hashes = clean(*pairs).hashes.tolist()
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == len(pairs) - 1
    assert clean(("a", "b")).hashes[0] == hashes[0]


def test_hashes_are_the_same_in_every_process() -> None:
    # The hashes are computed in separate processes.
    assert clean(("a", "b")).hashes.tolist() == [1355876199954053899]


def test_first_occurrences() -> None:
    hashes = np.array([7, 5, 7, 2**64 - 1, 5, 7, 0], dtype=np.uint64)
    assert first_occurrences(hashes).tolist() == [True, True, False, True, False, False, True]
    assert first_occurrences(hashes[:1]).tolist() == [True]


@pytest.mark.parametrize("settings", [{"max_length": 1}, {"max_length_ratio": float("nan")}])
def test_options_out_of_range(settings: dict[str, float | str]) -> None:
    with pytest.raises(OptionError, match=next(iter(settings))):
        PrepareOptions(**settings)  # type: ignore[arg-type]

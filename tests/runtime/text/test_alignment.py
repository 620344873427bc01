"""Alignments of words, compared with loops over tokens and words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, word_tokenizer
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment, join_alignments
from translate_trt.runtime.text.tokenizer import Span, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_model: Path) -> Tokenizer:
    return Tokenizer(tokenizer_model, tokenizer_model)


def aligned(source: str, target: str, rows: list[list[float]]) -> Alignment:
    """Return an alignment of texts whose tokens end at each "|" and before each space."""

    def spans(text: str) -> tuple[str, tuple[Span, ...]]:
        tokens = [part for word in text.split(" ") for part in f" {word}".split("|")]
        tokens[0] = tokens[0][1:]
        ends = [len("".join(tokens[:count])) for count in range(len(tokens) + 1)]
        return "".join(tokens), tuple(pairwise(ends))

    (source, columns), (target, words) = spans(source), spans(target)
    weights = np.array(rows, np.float32)
    return Alignment(source, target, (AlignedSegment(columns, words, weights),))


def test_each_target_word_has_the_source_word_of_the_largest_weight() -> None:
    found = aligned("the cat", "die Katze", [[0.9, 0.1], [0.2, 0.3]])
    assert found.pairs() == [(0, 0), (1, 1)]
    assert found.pharaoh() == "0-0 1-1"
    assert aligned("a b", "x y", [[0.0, 0.1], [0.1, 0.0]]).pharaoh() == "0-1 1-0"


def test_many_segments() -> None:
    """Time does not grow with the square of the number of segments."""
    words = [(begin, begin + 1) for begin in range(0, 40_000, 2)]
    weights = np.eye(2, dtype=np.float32)
    segments = tuple(
        AlignedSegment(pair, pair, weights) for pair in zip(words[::2], words[1::2], strict=True)
    )
    text = "a " * len(words)
    assert Alignment(text, text, segments).pairs() == [(n, n) for n in range(len(words))]


def test_subwords_of_the_source_add_up_and_those_of_the_target_are_averaged() -> None:
    # The whole word "x|y" has 0.2 + 0.2 of "b|c" in the first row, and 0.3 of "a".
    assert aligned("a b|c", "x", [[0.3, 0.2, 0.2]]).pairs() == [(1, 0)]
    rows = [[0.9, 0.1], [0.0, 0.5], [0.0, 0.5]]
    assert aligned("a b", "x|y|z", rows).pairs() == [(1, 0)]
    assert aligned("a b", "x|y|z", rows).pairs(0.29) == [(0, 0), (1, 0)]
    assert aligned("a b", "x|y|z", rows).pairs(0.31) == [(1, 0)]


def test_a_threshold_selects_any_number_of_pairs() -> None:
    found = aligned("a b", "x y", [[0.5, 0.5], [0.1, 0.2]])
    assert found.pharaoh(0.5) == "0-0 1-0"
    assert found.pharaoh(0) == "0-0 0-1 1-0 1-1"
    assert found.pharaoh(1.0) == ""


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), True, "0.5"])
def test_a_threshold_is_a_number_from_0_to_1(threshold: float) -> None:
    with pytest.raises(OptionError, match="from 0 to 1"):
        aligned("a", "x", [[1.0]]).pairs(threshold)


def test_words_are_those_of_the_texts() -> None:
    found = Alignment(" the\u3000cat ", "die  Katze")
    assert found.source_words == ((1, 4), (5, 8))
    assert found.target_words == ((0, 3), (5, 10))
    assert found.pairs() == []
    assert Alignment("", "").pharaoh() == ""


def test_tokens_without_characters_belong_to_the_word_they_are_in_or_before() -> None:
    segment = AlignedSegment(
        ((0, 0), (0, 1), (1, 2), (3, 3), (3, 4)), ((0, 1),), np.eye(1, 5, 3, np.float32)
    )
    assert Alignment("ab c", "x", (segment,)).pairs() == [(1, 0)]
    segment = AlignedSegment(((0, 1), (1, 2)), ((0, 1), (1, 2)), np.eye(2, dtype=np.float32))
    assert Alignment("a ", "x ", (segment,)).pairs() == [(0, 0)]


def test_joined_alignments_have_the_words_of_the_whole() -> None:
    one, two = aligned("a b", "x y", [[0, 1], [1, 0]]), aligned("c", "z", [[1]])
    joined = join_alignments("- a b  c", "- x y z", [(one, 2, 2), (two, 7, 6)])
    assert joined.pharaoh() == "1-2 2-1 3-3"


def test_two_segments_may_share_a_word() -> None:
    half = aligned("a", "x", [[0.4]])
    joined = join_alignments("a b", "xx", [(half, 0, 0), (aligned("a", "x", [[0.6]]), 2, 1)])
    assert joined.pairs() == [(1, 0)]


WORDS = st.text(alphabet="ab ", max_size=12)


@given(source=WORDS, target=WORDS, data=st.data())
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_equal_to_loops_over_tokens(source: str, target: str, data: st.DataObject) -> None:
    def cut(text: str) -> list[Span]:
        ends = data.draw(st.sets(st.integers(0, len(text))))
        return list(pairwise(sorted({0, len(text)} | ends)))

    columns, rows = cut(source), cut(target)
    seed = data.draw(st.integers(0, 100))
    weights = np.random.default_rng(seed).random((len(rows), len(columns)), np.float32)
    found = Alignment(source, target, (AlignedSegment(tuple(columns), tuple(rows), weights),))
    expected = {}
    owners = [
        [words_of(span, words) for span in spans]
        for spans, words in ((columns, found.source_words), (rows, found.target_words))
    ]
    for index in range(len(found.target_words)):
        sums = dict.fromkeys(range(len(found.source_words)), 0.0)
        for row, of_row in enumerate(owners[1]):
            for column, of_column in enumerate(owners[0]):
                for word in of_column:
                    if index in of_row:
                        share = 1 / len(of_row) / len(of_column)
                        sums[word] += float(weights[row, column]) * share
        best = sorted(sums.values())[-2:]
        if len(best) == 2 and best[1] - best[0] < 1e-4:
            return  # a tie within rounding
        if sums and max(sums.values()) > 0:
            expected[index] = max(sums, key=lambda word: sums[word])
    assert found.pairs() == sorted((word, index) for index, word in expected.items())


def words_of(span: Span, words: tuple[Span, ...]) -> list[int]:
    """Return the words that a token overlaps, or else the one that follows or is the last."""
    overlapping = [n for n, (begin, end) in enumerate(words) if begin < span[1] and span[0] < end]
    following = [n for n, (_, end) in enumerate(words) if span[0] < end]
    return overlapping or following[:1] or [len(words) - 1][: len(words)]


TEXTS = ["the cat sleeps.", "  Hi ﬁne  日本 😀x  ", "a\tb\x0bc", "½ e\u0301", "\ud800 x", "", " "]


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_spans_cover_the_words_of_the_source(tokenizer: Tokenizer, text: str) -> None:
    spans = tokenizer.source_spans(text)
    assert len(spans) == len(tokenizer.encode_source(text))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    covered = {n for begin, end in spans for n in range(begin, end)}
    assert {n for n, character in enumerate(text) if character.isalnum()} <= covered


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_spans_cover_the_translation(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode_target(text)
    decoded, spans = tokenizer.target_spans(tokens)
    assert decoded == tokenizer.decode(tokens)
    assert [begin for begin, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    assert (spans[-1][1] if spans else 0) == len(decoded)
    for count in range(len(tokens)):
        begin = tokenizer.decode(tokens[:count])
        if "\ufffd" not in begin:  # within the bytes of a character
            assert decoded[: spans[count][0]].startswith(begin)


def test_spans_of_a_vocabulary_of_words(tmp_path: Path) -> None:
    names = ["<pad>", "<unk>", "<s>", "</s>", "the", "cat"]
    model = word_tokenizer(TokenMap(names, SpecialTokens(0, 1, 2, 3)))
    (tmp_path / "words.spm").write_bytes(model)
    tokenizer = Tokenizer(tmp_path / "words.spm", tmp_path / "words.spm")
    assert tokenizer.source_spans(" the  cat\tx ") == [(1, 4), (6, 9), (10, 11)]


def test_an_old_sentencepiece_is_named(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: object, text: str) -> None:
        raise AssertionError("called without return_type")

    monkeypatch.setattr(sentencepiece.SentencePieceProcessor, "encode", encode)
    with pytest.raises(OptionError, match="-U sentencepiece"):
        tokenizer.source_spans("the cat")

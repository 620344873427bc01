from __future__ import annotations

import random

import pytest

from translate_trt.runtime.pieces import split_text


def characters(text: str) -> list[int]:
    return [ord(character) for character in text.strip()]


def words(text: str) -> list[int]:
    return [hash(word) for word in text.split()]


def test_what_fits_stays_whole() -> None:
    assert split_text("a b c", words, 3) == [words("a b c")]


@pytest.mark.parametrize("text", ["", "   ", "\t"])
def test_a_blank_text_has_no_pieces(text: str) -> None:
    assert split_text(text, words, 5) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_word_is_kept_in_order_and_no_piece_is_too_long(seed: int) -> None:
    rng = random.Random(seed)
    text = " ".join(
        str(rng.randrange(10**6)) + rng.choice(["", "", ".", "?"]) for _ in range(10_000)
    )
    pieces = split_text(text, words, 50)
    assert [token for piece in pieces for token in piece] == words(text)
    assert max(map(len, pieces)) <= 50
    assert min(map(len, pieces)) > 0


def test_it_prefers_ends_of_sentences() -> None:
    text = "One two three four five. Six seven eight nine."
    assert split_text(text, words, 8) == [
        words("One two three four five."),
        words("Six seven eight nine."),
    ]
    quoted = 'One two three "four five." Six seven eight nine.'
    assert split_text(quoted, words, 8)[0] == words('One two three "four five."')


def test_one_giant_word_is_cut_between_characters() -> None:
    pieces = split_text("x" * 1000, characters, 64)
    assert [token for piece in pieces for token in piece] == [ord("x")] * 1000
    assert max(map(len, pieces)) <= 64


def test_text_without_spaces() -> None:
    text = "漢字は難しい。" * 40
    pieces = split_text(text, characters, 30)
    assert [token for piece in pieces for token in piece] == characters(text)
    assert max(map(len, pieces)) <= 30


def test_one_character_of_many_tokens() -> None:
    assert split_text("漢", lambda text: [1, 2, 3], 2) == [[1, 2], [3]]

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from translate_trt.runtime.text.segments import segment_texts, split_text
from translate_trt.runtime.text.tokenizer import Tokenizer


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
    segments = split_text(text, words, 50)
    assert [token for segment in segments for token in segment] == words(text)
    assert max(map(len, segments)) <= 50
    assert min(map(len, segments)) > 0


def test_it_prefers_ends_of_sentences() -> None:
    text = "One two three four five. Six seven eight nine."
    assert split_text(text, words, 8) == [
        words("One two three four five."),
        words("Six seven eight nine."),
    ]
    quoted = 'One two three "four five." Six seven eight nine.'
    assert split_text(quoted, words, 8)[0] == words('One two three "four five."')


def test_one_giant_word_is_cut_between_characters() -> None:
    segments = split_text("x" * 1000, characters, 64)
    assert [token for segment in segments for token in segment] == [ord("x")] * 1000
    assert max(map(len, segments)) <= 64


def test_text_without_spaces() -> None:
    text = "漢字は難しい。" * 40
    segments = split_text(text, characters, 30)
    assert [token for segment in segments for token in segment] == characters(text)
    assert max(map(len, segments)) <= 30


def test_one_character_of_many_tokens() -> None:
    assert split_text("漢", lambda text: [1, 2, 3], 2) == [[1, 2], [3]]


# What an encoder makes of spaces does not count: these two drop them, as the tokenizer nearly does.


def letters(text: str) -> list[int]:
    return [ord(character) for character in text if not character.isspace()]


def code_bytes(text: str) -> list[int]:
    return list("".join(text.split()).encode())


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


@pytest.mark.parametrize("encode", [letters, code_bytes])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 16, 50])
def test_any_text_and_any_limit(encode: Callable[[str], list[int]], limit: int) -> None:
    rng = random.Random(limit)
    for length in [*range(13), *(rng.randint(13, 300) for _ in range(20))]:
        for _ in range(4):
            text = "".join(rng.choices("abcdefgh.!?   \u2026\u3002\uff01漢字é\U0001f600", k=length))
            segments = split_text(text, encode, limit)
            assert [token for segment in segments for token in segment] == encode(text)
            assert all(0 < len(segment) <= limit for segment in segments)


@pytest.mark.parametrize("text", ["漢字 ", "漢 ", " 漢字", "é  ", "漢\u3000 "])
def test_a_short_text_that_ends_in_a_space_gets_shorter_too(text: str) -> None:
    segments = split_text(text, code_bytes, 1)
    assert [token for segment in segments for token in segment] == code_bytes(text)


@pytest.mark.parametrize("end", ["! ", '." ', ".) ", "\u2026 ", "?\u201d ", "。 "])
def test_ends_of_sentences(end: str) -> None:
    # The nearest space to the middle is after the first bbb.
    text = f"aaa aaa aaa{end}bbb bbb bbb bbb bbb"
    first, second = map(text_of, split_text(text, letters, 16))
    assert first == "aaaaaaaaa" + end.strip()
    assert second == "b" * 15


def test_an_end_of_sentence_far_from_the_middle_is_not_worth_a_lopsided_cut() -> None:
    text = "a. bbbb cccc dddd eeee ffff gggg"
    assert list(map(text_of, split_text(text, letters, 16))) == ["a.bbbbccccdddd", "eeeeffffgggg"]


def test_pieces_are_not_crumbs() -> None:
    segments = split_text(" ".join(["word"] * 10_000), letters, 100)
    assert min(map(len, segments)) > 100 / 4


def test_characters_stay_whole() -> None:
    text = "吾輩は猫である名前はまだ無い" * 30
    segments = split_text(text, code_bytes, 90)
    assert "".join(bytes(segment).decode() for segment in segments) == text


def test_with_a_real_tokenizer(tokenizer_model: Path) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    text = "The cat sleeps under the big tree. A dog walks over the river! " * 20
    segments = split_text(text, tokenizer.encode_source, 47)
    assert len(segments) > 1
    assert max(map(len, segments)) <= 47
    assert " ".join(map(tokenizer.decode, segments)).split() == text.split()


@pytest.mark.parametrize("text", ["a cat " + "\u00bd " * 12, "\ufdfa" * 13])
def test_a_text_that_normalization_makes_longer(text: str, tokenizer_model: Path) -> None:
    """Fewer bytes than the limit can be more tokens than the limit."""
    encode = Tokenizer(tokenizer_model, tokenizer_model).encode_source
    assert len(text.encode()) < 47 < len(encode(text))
    segments = segment_texts(text, encode, 47)
    assert "".join(segments) == text
    assert all(len(encode(segment)) <= 47 for segment in segments)

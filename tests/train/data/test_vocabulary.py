from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece

from translate_trt.runtime.errors import InputError, TranslateTrtError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, PAD, START, UNKNOWN
from translate_trt.train.data import vocabulary as module
from translate_trt.train.data.vocabulary import SMALLEST_VOCABULARY, sample_rows, train_tokenizer

LINES = ["the cat sat on the mat", "der Hund läuft über die Straße", "a dog and a cat"] * 50


def test_byte_fallback_knows_every_text(tmp_path: Path) -> None:
    path = tmp_path / "t.spm"
    train_tokenizer(LINES, 320, path)
    tokenizer = Tokenizer(path, path)
    for text in ("the cat", "😀 漢字 ελληνικά", "Straße"):
        tokens = tokenizer.encode_source(text)
        assert UNKNOWN not in tokens
        assert tokenizer.decode(tokens) == text
    ids = (tokenizer.pad_token, tokenizer.unknown_token, tokenizer.start_token, tokenizer.end_token)
    assert ids == (PAD, UNKNOWN, START, END)


def test_a_small_corpus_gives_fewer_pieces(tmp_path: Path) -> None:
    size = train_tokenizer(LINES, 5000, tmp_path / "t.spm")
    assert 260 < size < 5000
    assert Tokenizer(tmp_path / "t.spm", tmp_path / "t.spm").vocabulary_size == size


def test_the_same_text_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train_tokenizer(LINES, 320, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_sample_is_of_different_rows_in_their_order_and_by_the_seed() -> None:
    rows = sample_rows(1000, 601, 3).tolist()
    assert len(rows) == 300
    assert rows == sorted(set(rows))
    assert 0 <= rows[0] < rows[-1] < 1000
    assert sample_rows(1000, 601, 3).tolist() == rows != sample_rows(1000, 601, 4).tolist()
    assert sample_rows(5, 10, 3).tolist() == [0, 1, 2, 3, 4]


def test_special_tokens_and_bytes_are_first(tmp_path: Path) -> None:
    train_tokenizer(LINES, 320, tmp_path / "t.spm")
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "t.spm"))
    assert [model.id_to_piece(index) for index in range(4)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert [model.is_byte(index) for index in (3, 4, 259, 260)] == [False, True, True, False]


def test_the_smallest_vocabulary(tmp_path: Path) -> None:
    # SentencePiece requires a piece for every character of the text.
    with pytest.raises(InputError, match="take 260"):
        train_tokenizer(LINES, SMALLEST_VOCABULARY, tmp_path / "t.spm")
    with pytest.raises(InputError, match="--vocab"):
        train_tokenizer(LINES, SMALLEST_VOCABULARY + 1, tmp_path / "t.spm")


def test_too_few_pieces_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too small"):
        train_tokenizer(LINES, 100, tmp_path / "t.spm")
    for lines in ([" ", ""], ["\u2003"], ["x" * 20_000]):
        with pytest.raises(InputError, match="train"):
            train_tokenizer(lines, 300, tmp_path / "t.spm")
    assert not (tmp_path / "t.spm").exists()


def test_a_newline_in_a_line_ends_no_text(tmp_path: Path) -> None:
    for name, lines in (("a", LINES), ("b", [line.replace(" ", "\n") for line in LINES])):
        train_tokenizer(["", *lines, "\n", *lines], 320, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_error_in_the_text_is_raised_and_leaves_no_file(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield from LINES
        raise InputError("the text is damaged")

    with pytest.raises(InputError, match="damaged"):
        train_tokenizer(lines(), 320, tmp_path / "t.spm")
    assert list(tmp_path.iterdir()) == []


def test_the_death_of_the_training_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_apart", lambda *_: (-9, b""))
    with pytest.raises(TranslateTrtError, match="status -9"):
        train_tokenizer(LINES, 320, tmp_path / "t.spm")
    assert list(tmp_path.iterdir()) == []

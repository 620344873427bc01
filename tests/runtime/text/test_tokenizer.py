from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sentencepiece

from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, word_tokenizer
from translate_trt.runtime.errors import BundleError
from translate_trt.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_model: Path) -> Tokenizer:
    return Tokenizer(tokenizer_model, tokenizer_model)


@pytest.fixture(scope="module")
def pieces(tokenizer_model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_model))


@pytest.mark.parametrize(
    "text",
    [
        "the cat sleeps.",
        "der Hund läuft über den Fluss",
        "😀 family 👨\u200d👩\u200d👧",
        "猫は眠る",
        "кошка спит",
        "القط نائم",
        "𝄞 \U0010ffff",
    ],
)
def test_any_script_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode_source(text)
    assert tokenizer.unknown_token not in tokens
    assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("text", ["", " ", "\t", " \u00a0\u3000 ", "\0", "\x85\u2028", "\r"])
def test_nothing_but_space_has_no_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode_source(text) == []
    assert tokenizer.encode_target(text) == []


CONTROLS = [
    *("\0", "\x01", "\t", "\n", "\x0b", "\x0c", "\r", "\x1c", "\x1f"),
    *("\x7f", "\x80", "\x85", "\x9f", "\u2028", "\u2029", "\ud800", "\udfff"),
]


@pytest.mark.parametrize("character", CONTROLS, ids=ascii)
def test_control_characters_part_words(tokenizer: Tokenizer, character: str) -> None:
    assert tokenizer.encode_source(f"cat{character}dog") == tokenizer.encode_source("cat dog")
    assert tokenizer.encode_target(f"cat{character}dog") == tokenizer.encode_target("cat dog")


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\0", "\x0b", "\x0c", "\x1d", "\x85", "\u2028", "\u2029"]
)
def test_bytes_cannot_spell_a_line_end(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor, character: str
) -> None:
    spelled = [pieces.piece_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
    tokens = [*tokenizer.encode_target("cat"), *spelled, *tokenizer.encode_target("dog")]
    assert character in pieces.decode(tokens)
    assert tokenizer.decode(tokens) == "cat  dog"


def test_half_a_character_decodes_to_one_line(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    assert tokenizer.decode([pieces.piece_to_id("<0xE2>")]) == "\ufffd"


def test_batches_equal_single_texts(tokenizer: Tokenizer) -> None:
    texts = ["the cat", "", "grün 😀"]
    tokens = [tokenizer.encode_source(text) for text in texts]
    assert tokenizer.encode_source_batch(texts) == tokens
    assert tokenizer.encode_target_batch(texts) == tokens
    assert tokenizer.decode_batch(tokens) == texts
    assert tokenizer.encode_source_batch([]) == []
    assert tokenizer.decode_batch([]) == []


def test_special_tokens_are_the_models_and_never_text(tokenizer: Tokenizer) -> None:
    special = (
        tokenizer.pad_token,
        tokenizer.unknown_token,
        tokenizer.start_token,
        tokenizer.end_token,
    )
    assert special == (0, 1, 2, 3)
    assert tokenizer.decode([0, 2, 3]) == ""
    assert not {0, 2, 3} & set(tokenizer.encode_source("<s> </s> <pad>"))


def test_two_models(tokenizer_model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    source, target = tmp_path / "source.spm", tmp_path / "target.spm"
    shutil.copy(tokenizer_model, source)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat", "a dog"] * 20),
        model_prefix=str(tmp_path / "target"),
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=True,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "target.model").rename(target)
    both = Tokenizer(source, target)
    assert both.source_vocabulary_size == tokenizer.vocabulary_size
    assert both.vocabulary_size != both.source_vocabulary_size
    assert both.start_token == -1
    assert both.encode_source("grün") == tokenizer.encode_source("grün")
    assert both.encode_target("grün") != tokenizer.encode_source("grün")
    assert both.decode(both.encode_target("the cat")) == "the cat"


@pytest.mark.parametrize("kept", [0, 1, 1000])
def test_truncated_model(tokenizer_model: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.spm"
    path.write_bytes(tokenizer_model.read_bytes()[:kept])
    with pytest.raises(BundleError, match=r"cut\.spm"):
        Tokenizer(tokenizer_model, path)


def test_missing_or_other_file(tokenizer_model: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        Tokenizer(tmp_path / "no.spm", tokenizer_model)
    with pytest.raises(BundleError, match="Is a directory"):
        Tokenizer(tmp_path, tokenizer_model)
    (tmp_path / "text").write_text("not a model " * 50)
    with pytest.raises(BundleError, match="SentencePiece"):
        Tokenizer(tmp_path / "text", tokenizer_model)


def test_unknown_words_in_a_row_are_as_many_tokens(tmp_path: Path) -> None:
    path = tmp_path / "words.spm"
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "the", "@@cat", "é"]
    path.write_bytes(word_tokenizer(TokenMap(tokens, SpecialTokens(0, 1, 2, 3))))
    words = Tokenizer(path, path)
    assert words.encode_source("  the x y  é z </s>  the@@cat @@cat\u00a0 ") == [
        4, 1, 1, 6, 1, 1, 1, 1,
    ]  # fmt: skip
    assert words.encode_target_batch(["", "@@cat the"]) == [[], [5, 4]]
    assert words.decode([4, 5, 6]) == "the @@cat é"

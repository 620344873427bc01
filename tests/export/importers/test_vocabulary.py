from __future__ import annotations

from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from support.hugging_face_models import train_pieces

from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError

Model = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]
KINDS = Model.SentencePiece
PIECES = ["\u2581cat", "\u2581", "c", "a", "t", "\u2581dog"]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


def save_model(path: Path, model_type: str = "UNIGRAM", trained: int = 0) -> Path:
    model = Model()
    model.pieces.add(piece="<unk>", type=KINDS.UNKNOWN)
    for score, piece in enumerate(PIECES):
        model.pieces.add(piece=piece, score=-1.0 - score)
    model.trainer_spec.model_type = model.trainer_spec.ModelType.Value(model_type)
    model.trainer_spec.vocab_size = trained or len(model.pieces)
    model.normalizer_spec.name = "identity"
    path.write_bytes(model.SerializeToString())
    return path


def remap(path: Path, *more: str) -> SentencePieceProcessor:
    token_map = TokenMap([*SPECIAL, *PIECES, *more], SpecialTokens(0, 1, 2, 3))
    _, (content, _) = make_tokenizers(
        (path, None), (token_map, token_map), lambda token: token == ">>de<<",
        lambda token: token == "__de__",
    )  # fmt: skip
    return SentencePieceProcessor(model_proto=content)


def test_each_token_has_a_piece_of_its_kind(tmp_path: Path) -> None:
    found = remap(save_model(tmp_path / "spm"), ">>de<<", "x", "__de__", "leftover")
    ids = {found.id_to_piece(number): number for number in range(found.get_piece_size())}
    special = [found.is_control(0), found.is_unknown(1), found.is_control(2), found.is_control(3)]
    assert special == [True] * 4
    assert found.encode("cat dog") == [ids["\u2581cat"], ids["\u2581dog"]]
    assert found.encode(">>de<< cat") == [ids["\u2581>>de<<"], ids["\u2581cat"]]
    assert found.encode("catx")[-1] == ids["x"]
    assert found.is_control(ids["__de__"])
    assert found.is_unused(ids["leftover"])


@pytest.mark.parametrize("token", ["x", "leftover"])
def test_a_model_that_lost_pieces_is_damaged(token: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"lacks '{token}' of the vocabulary: it is damaged"):
        remap(save_model(tmp_path / "spm", trained=20), token)
    remap(save_model(tmp_path / "spm", trained=20), ">>de<<", "__de__")


def test_a_model_of_another_vocabulary(tmp_path: Path) -> None:
    token_map = TokenMap([*SPECIAL, *PIECES[:-1]], SpecialTokens(0, 1, 2, 3))
    path = save_model(tmp_path / "spm")
    with pytest.raises(InputError, match="another model's tokenizer"):
        make_tokenizers((path, None), (token_map, token_map))


LINES = ["the cat sat on the mat", "he met the man in the city", "hello world what"] * 20


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_added_pieces_leave_the_segmentation_alone(kind: str, tmp_path: Path) -> None:
    """Tokens such as fairseq's madeupword0000, and <s>, which decoding does not start with."""
    path = tmp_path / "spm"
    path.write_bytes(train_pieces(LINES, kind, 30))
    original = SentencePieceProcessor(model_file=str(path))
    tokens = [original.id_to_piece(number) for number in range(original.get_piece_size())]
    assert tokens[:3] == ["<unk>", "<s>", "</s>"]
    more = ["madeupword0000", "the ", "<pad>", ">>de<<"]
    token_map = TokenMap([*tokens, *more], SpecialTokens(None, 0, 2, 2))
    _, (content, _) = make_tokenizers(
        (path, None), (token_map, token_map), lambda token: token == ">>de<<"
    )
    found = SentencePieceProcessor(model_proto=content)
    ids = {found.id_to_piece(number): number for number in range(found.get_piece_size())}
    assert found.is_control(ids["<s>"])
    is_kept = found.is_control if kind == "bpe" else found.is_unused
    assert all(is_kept(ids[token]) for token in more[:3])
    for line in [*LINES[:3], "the madeupword0000 met", "<s> x <pad>the  world"]:
        assert found.encode(line, out_type=str) == original.encode(line, out_type=str)
    for line in (">>de<< the city", "the >>de<<"):
        assert "\u2581>>de<<" in found.encode(line, out_type=str)


def test_a_word_that_is_also_a_piece(tmp_path: Path) -> None:
    """As after add_tokens("cat") in transformers."""
    token_map = TokenMap([*SPECIAL, *PIECES, "cat"], SpecialTokens(0, 1, 2, 3))
    path = save_model(tmp_path / "spm")
    with pytest.raises(InputError, match="'▁cat'"):
        make_tokenizers((path, None), (token_map, token_map), lambda token: token == "cat")


def test_surrogates_are_not_text() -> None:
    with pytest.raises(InputError, match=r"'\\ud83d'"):
        TokenMap([*SPECIAL, "\ud83d"], SpecialTokens(0, 1, 2, 3))

from __future__ import annotations

from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, remap_tokenizers
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
    _, (content, _) = remap_tokenizers(
        (path, path), (token_map, token_map), lambda token: token == ">>de<<",
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


def test_byte_pairs_take_no_further_piece(tmp_path: Path) -> None:
    path = save_model(tmp_path / "spm", "BPE")
    remap(path, ">>de<<", "x", "__de__")
    with pytest.raises(InputError, match="is a byte-pair encoding and lacks 'leftover'"):
        remap(path, "leftover")

"""Random Marian models, written by Hugging Face's transformers."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import sentencepiece
import torch


def pieces_of(model: Path) -> list[str]:
    """Return the pieces of a SentencePiece model without the special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [
        processor.id_to_piece(place)
        for place in range(processor.get_piece_size())
        if not processor.is_control(place) and not processor.is_unknown(place)
    ]


def save_random_marian(
    directory: Path, source: Path, target: Path, lacking: int = 0, width: int = 32, **changes: Any
) -> Any:
    """Save a MarianMTModel of random weights with its tokenizer; return the model.

    The vocabulary is made as that of the OPUS-MT models is: the end, the unknown token, pieces of
    both SentencePiece models, languages, and at last the padding symbol, with which decoding starts
    and which is never generated.

    Args:
        directory: where it goes.
        source: SentencePiece model of the source.
        target: of the target.
        lacking: so many pieces are not in the vocabulary.
        width: of the layers.
        changes: of MarianConfig.
    """
    import transformers

    pieces = list(dict.fromkeys([*pieces_of(source), *pieces_of(target)]))
    random.Random(1).shuffle(pieces)
    pieces = pieces[: len(pieces) - lacking]
    tokens = ["</s>", "<unk>", *pieces, ">>deu<<", ">>fra<<", "<pad>"]
    pad = len(tokens) - 1
    settings = {
        "vocab_size": len(tokens), "d_model": width, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "activation_function": "swish", "scale_embedding": True,
        "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad,
        "forced_eos_token_id": None, "dropout": 0.0, "max_position_embeddings": 128,
        "init_std": 0.15,
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**(settings | changes))).eval()
    model.final_logits_bias.normal_()
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.num_beams = 3
    directory.mkdir()
    model.save_pretrained(directory)
    for name, file in (("source.spm", source), ("target.spm", target)):
        shutil.copyfile(file, directory / name)
    vocabulary = {token: place for place, token in enumerate(tokens)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    return model


def marian_tokenizer(directory: Path) -> Any:
    """Load the tokenizer of Hugging Face."""
    import transformers

    files = [str(directory / name) for name in ("source.spm", "target.spm", "vocab.json")]
    return transformers.MarianTokenizer(*files)

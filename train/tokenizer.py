"""A joint SentencePiece vocabulary from the training text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import END, PAD, START, UNKNOWN

# 256 bytes and the four special pieces: what any vocabulary holds before the first learned piece.
SMALLEST_VOCABULARY = 256 + 4

# SentencePiece leaves out longer lines; its own default, 4,192, would drop some real paragraphs.
LONGEST_LINE_BYTES = 16_384


def train_tokenizer(
    lines: Iterable[str],
    vocabulary_size: int,
    path: Path,
    seed_sentences: int = 2_000_000,
    model_type: str = "unigram",
) -> int:
    """Train a vocabulary and write its model file.

    Byte fallback is on: every text has a tokenization and no input is unknown.

    Args:
        lines: sentences of both languages; read once, so that an iterator will do.
        vocabulary_size: pieces wanted. A small corpus may not have so many; then it gets fewer.
        path: where the `.spm` file goes.
        seed_sentences: at most so many lines are looked at, taken at random by a fixed seed.
        model_type: "unigram", or "bpe" for the paper's byte-pair encoding.

    Returns:
        The number of pieces the vocabulary has.

    Raises:
        InputError: the text cannot give a vocabulary.
    """
    if vocabulary_size <= SMALLEST_VOCABULARY:
        raise InputError(
            f"a vocabulary of {vocabulary_size} pieces is too small: the special pieces and the "
            f"256 bytes alone take {SMALLEST_VOCABULARY}."
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for line in lines if line.strip()),
            model_writer=model,
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            model_type=model_type,
            byte_fallback=True,
            character_coverage=0.9999,
            normalization_rule_name="nmt_nfkc",
            max_sentence_length=LONGEST_LINE_BYTES,
            input_sentence_size=seed_sentences,
            shuffle_input_sentence=True,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=START,
            eos_id=END,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"SentencePiece could not train a vocabulary of {vocabulary_size} pieces: {error}. "
            "Give it more text or ask for fewer pieces (--vocabulary-size)."
        ) from error
    path.write_bytes(model.getvalue())
    return int(sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).get_piece_size())

"""A joint SentencePiece vocabulary from the training text."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, TranslateTrtError
from translate_trt.runtime.io.atomic_files import write_bytes_atomically
from translate_trt.train.config import END, PAD, START, UNKNOWN
from translate_trt.train.worker_processes import lines_from_parent, run_apart

# 256 bytes and the four special pieces: what any vocabulary holds before the first learned piece.
SMALLEST_VOCABULARY = 256 + 4

# SentencePiece leaves out longer lines; its own default, 4,192, would drop some real paragraphs.
LONGEST_LINE_BYTES = 16_384

_REFUSED = 3  # exit status of the process that trains; 1 and 2 are Python's own


def train_tokenizer(
    lines: Iterable[str],
    vocabulary_size: int,
    path: Path,
    model_type: str = "unigram",
) -> int:
    """Train a vocabulary and write its model file.

    Byte fallback is on: every text has a tokenization and no input is unknown.

    SentencePiece works for minutes on a large text and hears no signal meanwhile. It does so in a
    process of its own, so that Ctrl-C takes effect at once.

    Args:
        lines: sentences of both languages; read once, so that an iterator will do. All are used.
        vocabulary_size: pieces wanted. A small corpus may not have so many; then it gets fewer.
        path: where the `.spm` file goes, whole or not at all.
        model_type: "unigram", or "bpe" for the paper's byte-pair encoding.

    Returns:
        The number of pieces the vocabulary has.

    Raises:
        InputError: the text cannot give a vocabulary.
        TranslateTrtError: that process was killed.
        OutputError: the file cannot be written.
    """
    if vocabulary_size <= SMALLEST_VOCABULARY:
        raise InputError(
            f"a vocabulary of {vocabulary_size} pieces is too small: the special pieces and the "
            f"256 bytes alone take {SMALLEST_VOCABULARY}."
        )
    settings = {
        "vocab_size": vocabulary_size,
        "hard_vocab_limit": False,
        "model_type": model_type,
        "byte_fallback": True,
        "character_coverage": 0.9999,
        "normalization_rule_name": "nmt_nfkc",
        "max_sentence_length": LONGEST_LINE_BYTES,
        "input_sentence_size": 0,  # all: what 0.2.3 samples differs from run to run, seed or not
        "pad_id": PAD,
        "unk_id": UNKNOWN,
        "bos_id": START,
        "eos_id": END,
        "minloglevel": 2,
    }
    status, answer = run_apart(_train, _messages(settings, lines))
    if status == _REFUSED:
        raise InputError(_refusal(answer.decode(), vocabulary_size))
    if status:
        raise TranslateTrtError(
            f"the process that trains the vocabulary ended unexpectedly (status {status}), perhaps "
            "for lack of memory; give it less text (data prepare: --vocabulary-sentences)."
        )
    write_bytes_atomically(path, answer)
    return int(sentencepiece.SentencePieceProcessor(model_proto=answer).get_piece_size())


def _refusal(message: str, vocabulary_size: int) -> str:
    """Say what to do about an error of SentencePiece, whose own texts name its internals."""
    if "sentences_.empty()" in message:
        return (
            "there is no text to train a vocabulary on: every line is empty, or longer than "
            f"{LONGEST_LINE_BYTES} bytes. Check the files."
        )
    if "all_chars_count" in message:
        return "the text to train a vocabulary on holds blanks alone. Check the files."
    if required := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {vocabulary_size} pieces is too small for this text, whose "
            f"characters and special pieces alone take {required[1]}; ask for more than that "
            "(--vocabulary-size), or take out lines in other scripts."
        )
    return f"SentencePiece could not train a vocabulary of {vocabulary_size} pieces: {message}"


def sample_rows(count: int, sentences: int, seed: int) -> NDArray[np.int64]:
    """Which of `count` pairs to train on, in their order, to have at most so many sentences."""
    wanted = min(count, sentences // 2)
    random = np.random.Generator(np.random.PCG64(seed))
    return np.sort(random.choice(count, wanted, replace=False, shuffle=False))


def _messages(settings: dict[str, Any], lines: Iterable[str]) -> Iterator[bytes]:
    yield json.dumps(settings).encode()
    for line in lines:
        if line.strip():
            yield line.replace("\n", " ").encode()


def _train() -> None:
    """What the other process does: `_messages` in, the model or SentencePiece's refusal out."""
    messages = lines_from_parent()
    settings = json.loads(next(messages))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line.decode() for line in messages), model_writer=model, **settings
        )
    except (RuntimeError, OSError) as error:
        sys.stdout.buffer.write(str(error).encode())
        sys.exit(_REFUSED)
    sys.stdout.buffer.write(model.getvalue())

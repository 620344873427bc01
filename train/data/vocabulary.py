"""Training of SentencePiece vocabularies."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from translate_trt.runtime.errors import InputError, TranslateTrtError
from translate_trt.runtime.io.atomic_files import write_bytes_atomically
from translate_trt.train.config import END, PAD, START, UNKNOWN
from translate_trt.train.worker_processes import lines_from_parent, run_apart

log = logging.getLogger("translate_trt")

# Pieces of any vocabulary before the first learned one: 256 bytes and four special pieces.
SMALLEST_VOCABULARY = 256 + 4

# SentencePiece skips longer lines; its default, 4,192, drops some real paragraphs.
LONGEST_LINE_BYTES = 16_384

#: Type of a vocabulary of whole words, those of the text alone, such as the labels of trees.
WORDS = "word"

_REFUSED = 3  # exit status of the training process; Python uses 1 and 2


def train_tokenizer(
    lines: Iterable[str],
    vocabulary_size: int,
    path: Path,
    model_type: str = "unigram",
    symbols: Sequence[str] = (),
    normalization: str = "nmt_nfkc",
    controls: Sequence[str] = (),
) -> int:
    """Train a vocabulary and write its model file atomically.

    Byte fallback is on: no input is unknown, except to a vocabulary of words. SentencePiece trains
    for minutes on a large text and blocks signals meanwhile; a separate process lets Ctrl-C take
    effect at once.

    Args:
        lines: Sentences of the languages, iterated once; all are used.
        vocabulary_size: Requested size. A small corpus may yield a smaller vocabulary.
        path: Path of the `.spm` file.
        model_type: "unigram", "bpe" for the paper's byte-pair encoding, or `WORDS`.
        symbols: User-defined symbols: each is a piece of the vocabulary, and never a part of one.
        normalization: Name of SentencePiece's normalization.
        controls: Control symbols, which no text is tokenized to.

    Returns:
        The size of the vocabulary.

    Raises:
        InputError: No vocabulary can be trained on the text.
        TranslateTrtError: The training process was killed.
        OutputError: The file cannot be written.
    """
    has_bytes = model_type != WORDS
    if has_bytes and vocabulary_size <= SMALLEST_VOCABULARY:
        raise InputError(
            f"a vocabulary of {vocabulary_size} tokens is too small: the special tokens and the "
            f"256 bytes alone take {SMALLEST_VOCABULARY}."
        )
    log.info("training a vocabulary of %d tokens", vocabulary_size)
    settings = {
        "vocab_size": vocabulary_size,
        "hard_vocab_limit": False,
        "model_type": model_type,
        "byte_fallback": has_bytes,
        # A word with a character beyond the coverage would be no token of a vocabulary of words.
        "character_coverage": 0.9999 if has_bytes else 1.0,
        "normalization_rule_name": normalization,
        "max_sentence_length": LONGEST_LINE_BYTES,
        "input_sentence_size": 0,  # no sampling: in 0.2.3 it differs between runs, despite the seed
        "pad_id": PAD,
        "unk_id": UNKNOWN,
        "bos_id": START,
        "eos_id": END,
        "user_defined_symbols": [*symbols],
        "control_symbols": [*controls],
        "minloglevel": 2,
    }
    status, answer = run_apart(_train, _messages(settings, lines))
    if status == _REFUSED:
        raise InputError(_refusal(answer.decode(), vocabulary_size))
    if status:
        raise TranslateTrtError(
            f"the process that trains the vocabulary ended unexpectedly (status {status}), perhaps "
            "for lack of memory; train on fewer sentences (data prepare: --vocabulary-sentences)."
        )
    write_bytes_atomically(path, answer)
    size = int(sentencepiece.SentencePieceProcessor(model_proto=answer).get_piece_size())
    if has_bytes and size < vocabulary_size:
        log.warning("the text gave a vocabulary of %d tokens instead of %d", size, vocabulary_size)
    return size


def _refusal(message: str, vocabulary_size: int) -> str:
    """Translate an error message of SentencePiece into advice for the user."""
    if "sentences_.empty()" in message:
        return (
            "there is no text to train a vocabulary on: every line is empty, or longer than "
            f"{LONGEST_LINE_BYTES} bytes. Check the files."
        )
    if "all_chars_count" in message:
        return "the text to train a vocabulary on is only white space. Check the files."
    if required := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"a vocabulary of {vocabulary_size} tokens is too small for this text, whose "
            f"characters and special tokens alone take {required[1]}; raise --vocabulary-size "
            "above that, or remove lines in other scripts."
        )
    return f"SentencePiece could not train a vocabulary of {vocabulary_size} tokens: {message}"


def sample_rows(count: int, sentences: int, seed: int) -> NDArray[np.int64]:
    """Sample, in order, rows of at most `sentences` sentences out of `count` pairs."""
    wanted = min(count, sentences // 2)
    random = np.random.Generator(np.random.PCG64(seed))
    return np.sort(random.choice(count, wanted, replace=False, shuffle=False))


def _messages(settings: dict[str, Any], lines: Iterable[str]) -> Iterator[bytes]:
    yield json.dumps(settings).encode()
    for line in lines:
        if line.strip():
            yield line.replace("\n", " ").encode()


def _train() -> None:
    """Train in the separate process: read `_messages`, write the model or an error message."""
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

"""Tokenization into token files: dropped pairs, and the content of the files."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END
from translate_trt.train.data.encode import encode_lines, token_type
from translate_trt.train.data.vocabulary import train_tokenizer

SOURCE = ["the cat sleeps", "", "the big house", "a dog", "the green tree walks over the river"]
TARGET = ["der Hund", "Haus", "das Haus ist groß", " ", "klein"]


def test_token_types() -> None:
    assert [token_type(size) for size in (300, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


@pytest.mark.parametrize("kind", ["uint16", "uint32"])
def test_pairs_with_an_empty_side_are_left_out(tokenizer_model: Path, kind: str) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    encoded = encode_lines(SOURCE, TARGET, (tokenizer_model, tokenizer_model), None, kind)
    assert encoded.dropped == {"empty": 2, "too_long": 0}
    for side, lines, found in zip((0, 1), (SOURCE, TARGET), encoded.tokens, strict=True):
        sentences = [[*tokenizer.encode_source(lines[row]), END] for row in (0, 2, 4)]
        assert np.frombuffer(found, kind).tolist() == [*itertools.chain(*sentences)]
        assert encoded.lengths[side].tolist() == [len(sentence) for sentence in sentences]


def test_the_length_limit_includes_the_end_symbol(tokenizer_model: Path) -> None:
    rows = [0, 2, 4]
    source, target = [SOURCE[row] for row in rows], [TARGET[row] for row in rows]
    longest = encode_lines(
        source, target, (tokenizer_model, tokenizer_model), None, "uint16"
    ).lengths
    limit = max(int(lengths.max()) for lengths in longest)
    for allowed, left in ((limit, 3), (limit - 1, 2)):
        encoded = encode_lines(
            source, target, (tokenizer_model, tokenizer_model), allowed, "uint16"
        )
        assert len(encoded.lengths[0]) == len(encoded.lengths[1]) == left
        assert encoded.dropped == {"empty": 0, "too_long": 3 - left}


def test_another_model_of_the_same_name_is_noticed(tokenizer_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.spm"
    shutil.copyfile(tokenizer_model, path)
    os.utime(path, ns=(0, 0))
    before = encode_lines(SOURCE, TARGET, (path, path), None, "uint16")
    train_tokenizer(["other words altogether", "and some more"] * 50, 290, path)
    after = encode_lines(SOURCE, TARGET, (path, path), None, "uint16")
    assert before.tokens != after.tokens

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
from translate_trt.train.data.batches import ParallelData, TokenArray
from translate_trt.train.data.encode import SplitWriter, encode_lines, token_type
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


def test_a_split_written_in_chunks_is_the_same(tokenizer_model: Path, tmp_path: Path) -> None:
    entries = []
    for name, parts in (("whole", [slice(0, 5)]), ("parts", [slice(0, 2), slice(2, 5)])):
        (tmp_path / name).mkdir()
        with SplitWriter(tmp_path / name, "train") as writer:
            for part in parts:
                lines = SOURCE[part], TARGET[part]
                writer.append(
                    encode_lines(*lines, (tokenizer_model, tokenizer_model), None, "uint16")
                )
        entries.append(writer.entry())
    assert entries[0] == entries[1]
    names = [f"train.{side}.{part}" for side in ("source", "target")
             for part in ("tokens", "offsets")]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(names)
    content = [(tmp_path / "parts" / name).read_bytes() for name in names]
    assert content == [(tmp_path / "whole" / name).read_bytes() for name in names]
    arrays = [
        TokenArray(np.frombuffer(tokens, np.uint16), np.frombuffer(offsets, np.int64))
        for tokens, offsets in (content[:2], content[2:])
    ]
    assert entries[0] == {
        "pairs": 3,
        "source_tokens": len(arrays[0].tokens),
        "target_tokens": len(arrays[1].tokens),
        "longest_source": arrays[0].lengths.max(),
        "longest_target": arrays[1].lengths.max(),
        "fingerprint": ParallelData(arrays[0], arrays[1]).fingerprint(),
    }

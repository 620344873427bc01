"""Preparation of text, and memory-mapped reading of the token files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data import prepare as module
from translate_trt.train.data.batches import encode_parallel, epoch_batches
from translate_trt.train.data.corpora import PrepareOptions
from translate_trt.train.data.prepare import Preparation, prepare
from translate_trt.train.data.text_sources import TextSource
from translate_trt.train.data.token_files import PreparedData, open_prepared

pytestmark = pytest.mark.slow

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
OPTIONS = PrepareOptions(vocabulary_size=330)


def numbers(count: int, seed: int) -> list[tuple[str, str]]:
    """Distinct pairs of numbers in words."""
    rng = random.Random(seed)
    rows = [[rng.randrange(10) for _ in range(rng.randint(4, 12))] for _ in range(count)]
    return [
        (" ".join(WORDS[i] for i in row), " ".join(GERMAN[i] for i in row))
        for row in dict.fromkeys(map(tuple, rows))
    ]


PAIRS = numbers(120, 1)
VALID = [("one two", "eins zwei"), ("", "leer"), ("three\u2028four", "drei vier")]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., tuple[TextSource, TextSource]]:
    def write(name: str, pairs: list[tuple[str, str]], pack: bool = False) -> Any:
        sources = []
        for side, language in enumerate(("en", "de")):
            content = "".join(f"{pair[side]}\n" for pair in pairs).encode()
            path = tmp_path / f"{name}.{language}{'.gz' if pack else ''}"
            path.write_bytes(gzip.compress(content) if pack else content)
            sources.append(TextSource(path))
        return tuple(sources)

    return write


@pytest.fixture
def make(
    tmp_path: Path, write: Callable[..., tuple[TextSource, TextSource]]
) -> Callable[..., PreparedData]:
    def make(
        pairs: list[tuple[str, str]] = PAIRS,
        out: str = "data",
        workers: int = 1,
        force: bool = False,
        **options: Any,
    ) -> PreparedData:
        job = Preparation(
            "custom", ("en", "de"), [write("train", pairs)], [write("valid", VALID)], [],
            dataclasses.replace(OPTIONS, **options), ["here"],
        )  # fmt: skip
        prepare(job, tmp_path / out, workers, force)
        return open_prepared(tmp_path / out)

    return make


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_data_as_training_from_text(make: Callable[..., PreparedData]) -> None:
    prepared = make()
    tokenizer = Tokenizer(*prepared.tokenizers)
    expected = encode_parallel(
        tokenizer.encode_source_batch([source for source, _ in PAIRS]),
        tokenizer.encode_target_batch([target for _, target in PAIRS]),
        256,
    )
    data = prepared.split("train")
    for side, other in ((data.source, expected.source), (data.target, expected.target)):
        assert side.tokens.dtype == np.uint16
        assert side.tokens.tolist() == other.tokens.tolist()
        assert side.offsets.dtype == np.int64
        assert side.offsets.tolist() == other.offsets.tolist()
        assert isinstance(side.tokens.base, np.memmap)
    for rows, others in zip(
        epoch_batches(data, 100, 1, 0), epoch_batches(expected, 100, 1, 0), strict=True
    ):
        batch, other_batch = data.batch(rows), expected.batch(others)
        for name, tensor in vars(batch).items():
            other = getattr(other_batch, name)  # the bias is None without padding
            assert (tensor is None) == (other is None)
            assert tensor is None or torch.equal(tensor, other)


def test_data_json(make: Callable[..., PreparedData]) -> None:
    long = " ".join(WORDS * 9), " ".join(GERMAN * 9)
    prepared = make([*PAIRS, PAIRS[3], ("", "x"), ("a" * 50, "b"), long], max_length=60)
    entry = prepared.splits["train"]
    data = prepared.split("train")
    assert entry["read"] == len(PAIRS) + 4
    assert entry["dropped"] == {
        "not_utf8": 0, "empty": 1, "too_long": 1, "length_ratio": 1, "duplicate": 1
    }  # fmt: skip
    assert entry["pairs"] == len(data) == len(PAIRS)
    for side, array in (("source", data.source), ("target", data.target)):
        assert entry[f"{side}_tokens"] == len(array.tokens)
        assert entry[f"longest_{side}"] == array.lengths.max() < 60
    fresh = dataclasses.replace(data, known_fingerprint=None)
    assert entry["fingerprint"] == data.fingerprint() == fresh.fingerprint()
    assert prepared.index["settings"] == dataclasses.asdict(
        dataclasses.replace(OPTIONS, max_length=60)
    )
    assert prepared.index["origin"] == ["here"]
    assert (prepared.name, prepared.source_language, prepared.target_language) == (
        "custom", "en", "de"
    )  # fmt: skip
    size = Tokenizer(*prepared.tokenizers).vocabulary_size
    assert prepared.vocabulary_size == size > 300


def test_all_of_the_validation_text_stays(make: Callable[..., PreparedData]) -> None:
    prepared = make(max_length=8)
    assert prepared.text("valid") == ([a for a, _ in VALID], [b for _, b in VALID])
    assert len(prepared.split("valid")) == 2
    assert prepared.splits["valid"]["dropped"] == {"empty": 1}
    with pytest.raises(InputError, match="'test'"):
        prepared.split("test")
    with pytest.raises(InputError, match=r"train\.source\.txt"):
        prepared.text("train")


def test_chunks_and_processes_make_no_difference(
    make: Callable[..., PreparedData], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [*PAIRS, *PAIRS[:10], ("", ""), *numbers(30, 2)]
    options = {"vocabulary_sentences": 60, "augment": "upper=0.3,typos=0.3"}
    whole = files(make(pairs, "whole", **options).path)
    monkeypatch.setattr(module, "CHUNK_PAIRS", 7)
    parts = files(make(pairs, "parts", workers=2, **options).path)
    indexes = [json.loads(found.pop("data.json")) for found in (whole, parts)]
    for index in indexes:
        assert set(index.pop("seconds")) == {"clean", "vocabulary", "encode"}
    assert indexes[0] == indexes[1]
    assert whole == parts


def test_duplicates_stay_if_asked_for(make: Callable[..., PreparedData]) -> None:
    assert len(make([*PAIRS, *PAIRS[:5]], keep_duplicates=True).split("train")) == len(PAIRS) + 5


def test_several_files_and_gzip(
    tmp_path: Path, write: Callable[..., tuple[TextSource, TextSource]]
) -> None:
    train = [write("a", PAIRS[:50]), write("b", PAIRS[50:], pack=True)]
    job = Preparation(
        "x", (None, None), train, [write("v", VALID)], [write("t", VALID[:1])], OPTIONS
    )
    prepare(job, tmp_path / "out", 1)
    prepared = open_prepared(tmp_path / "out")
    assert len(prepared.split("train")) == len(PAIRS)
    assert prepared.text("test") == (["one two"], ["eins zwei"])


def test_a_complete_directory_is_replaced_only_by_force(make: Callable[..., PreparedData]) -> None:
    old = make().split("train")
    tokens = old.source.tokens.tolist()
    with pytest.raises(OutputError, match=r"--output.*--force"):
        make(PAIRS[:60])
    assert len(make(PAIRS[:60], force=True).split("train")) == 60
    assert old.source.tokens.tolist() == tokens  # open files stay readable


def test_a_directory_of_something_else_is_left_alone(
    make: Callable[..., PreparedData], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"\(thesis\.txt\)"):
        make(force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        make(out="file")


def test_an_interrupted_directory_is_not_taken_for_whole(
    make: Callable[..., PreparedData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "data" / "downloads").mkdir(parents=True)
    (tmp_path / "data" / "downloads" / "a.tgz").write_text("kept")
    for function in ("_train_vocabularies", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(module, function, stop)
            with pytest.raises(KeyboardInterrupt):
                make()
        if function == "_train_vocabularies":
            assert [path.name for path in (tmp_path / "data").iterdir()] == ["downloads"]
        with pytest.raises(InputError, match=r"has no data\.json"):
            open_prepared(tmp_path / "data")
    assert len(make().split("train")) == len(PAIRS)
    assert sorted(path.name for path in (tmp_path / "data").iterdir() if path.is_dir()) == [
        "downloads"
    ]
    assert (tmp_path / "data" / "downloads" / "a.tgz").read_text() == "kept"


@pytest.mark.parametrize(
    ("pairs", "message"), [([], r"pair.*0"), ([("", "a"), ("b", "x" * 40)], r"1 empty.*length")]
)
def test_nothing_left(
    make: Callable[..., PreparedData], pairs: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make(pairs)


def test_all_pairs_too_long_in_tokens(make: Callable[..., PreparedData]) -> None:
    with pytest.raises(InputError, match=f"no pair of {len(PAIRS)} .* {len(PAIRS)} too long"):
        make(max_length=4)


@pytest.mark.parametrize("broken", [("valid", 0), ("test", 1), ("train", 1)])
def test_missing_files_are_reported_before_any_work(
    tmp_path: Path, write: Callable[..., tuple[TextSource, TextSource]], broken: tuple[str, int]
) -> None:
    pairs = {name: write(name, PAIRS) for name in ("train", "valid", "test")}
    missing = pairs[broken[0]][broken[1]].path
    missing.unlink()
    job = Preparation(
        "x", (None, None), [write("first", PAIRS), pairs["train"]], [pairs["valid"]],
        [pairs["test"]], OPTIONS,
    )  # fmt: skip
    with pytest.raises(InputError, match=re.escape(f"there is no file {missing}")):
        prepare(job, tmp_path / "out", 1)
    assert not (tmp_path / "out").exists()


def test_validation_text_without_a_pair(
    tmp_path: Path, write: Callable[..., tuple[TextSource, TextSource]]
) -> None:
    valid = write("valid", [("a", ""), ("", "b")])
    job = Preparation("x", (None, None), [write("train", PAIRS)], [valid], [], OPTIONS)
    with pytest.raises(InputError, match="both sides"):
        prepare(job, tmp_path / "out", 1)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train.source.tokens", lambda old: old[:-2], "but should have"),
        ("train.target.offsets", lambda old: old + bytes(8), "but should have"),
        ("train.target.offsets", lambda old: old[:-8] + bytes(8), "belong together"),
        ("valid.source.tokens", None, "cannot read"),
        ("tokenizer.spm", lambda old: old + b"x", "vocabulary"),
        ("tokenizer.spm", None, "cannot read"),
        ("data.json", None, "has no data.json"),
        ("data.json", lambda _: b"{", "cannot be read"),
        ("data.json", lambda _: b"[]", "JSON"),
        ("data.json", lambda old: old.replace(b'"splits"', b'"split"'), "'splits'"),
        ("data.json", lambda old: old.replace(b'"pairs"', b'"pair"'), "'pairs'"),
        ("data.json", lambda old: old.replace(b'version": 3', b'version": 4'), "upgrade"),
        ("data.json", lambda old: old.replace(b'version": 3', b'version": 2'), "prepare --force"),
    ],
)
def test_damage_is_reported(
    make: Callable[..., PreparedData],
    name: str,
    change: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    path = make().path
    if change is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(change((path / name).read_bytes()))
    with pytest.raises(InputError, match=message) as raised:
        [open_prepared(path).split(split) for split in ("train", "valid")]
    assert str(path) in str(raised.value)


def test_check_reads_the_tokens(make: Callable[..., PreparedData]) -> None:
    prepared = make()
    prepared.check("train")
    tokens = prepared.path / "train.source.tokens"
    content = bytearray(tokens.read_bytes())
    content[4] ^= 1
    tokens.write_bytes(content)
    prepared.split("train")
    with pytest.raises(InputError, match="fingerprint"):
        prepared.check("train")
    prepared.split("train").check_fingerprint(lambda: True)  # an abandoned check raises nothing
    prepared.check("valid")


@pytest.mark.parametrize("value", [10**15, -1, 0], ids=["beyond", "negative", "empty sentence"])
def test_offsets_that_are_none(make: Callable[..., PreparedData], value: int) -> None:
    prepared = make()
    path = prepared.path / "train.target.offsets"
    offsets = np.fromfile(path, dtype=np.int64)
    offsets[7] = value or offsets[6]
    offsets.tofile(path)
    with pytest.raises(InputError, match="sentence"):
        prepared.split("train")


def test_tokens_beyond_the_vocabulary(make: Callable[..., PreparedData]) -> None:
    prepared = make()
    path = prepared.path / "valid.target.tokens"
    tokens = np.fromfile(path, dtype=prepared.token_type)
    tokens[1] = prepared.vocabulary_size
    tokens.tofile(path)
    message = f"a target token has id {prepared.vocabulary_size}, but the vocabulary ends at "
    with pytest.raises(InputError, match=re.escape(f"{prepared.path} (valid): {message}")):
        prepared.split("valid").batch(np.array([0, 1]))

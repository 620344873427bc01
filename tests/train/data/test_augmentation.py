"""Modified copies of training pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data.augmentation import (
    ADDS_WORDS,
    KINDS,
    modified_copies,
    modified_pair,
    parse_shares,
)
from translate_trt.train.data.segmentation import Segmentation
from translate_trt.train.data.token_files import PreparedData, open_prepared

SOURCE = "Where is (the) Strasse of cats? See https://example.com/x1 now and then, please."
TARGET = "Wo ist (die) Straße der Katzen? Siehe https://example.com/x1 ab und zu, bitte."


@pytest.mark.parametrize(
    ("kind", "source", "target", "copy"),
    [
        ("upper", "a cat's tail.", "der Ruß.", ("A CAT'S TAIL.", "DER RUSS.")),
        ("upper", "我用 iPhone 已经很久了", "I use it", None),
        ("upper", "I use it", "我用 it", ("I USE IT", "我用 IT")),
        ("upper", "A 1", "ein", None),
        ("title", "(a cat's) so-so 2nd tail", "émile", ("(A Cat's) So-so 2nd Tail", "Émile")),
        ("lower", "Two Cats", "Zwei Katzen", ("two cats", "Zwei Katzen")),
        ("punctuation", "Wait...", "Warte.", None),
        ("punctuation", "A cat.", "Katze", None),
        ("punctuation", "A cat .", "Katze.", None),
        ("punctuation", "一只猫。", "A cat.", ("一只猫", "A cat")),
        ("typos", "a 1 b2b x@y.org", "nichts", None),
        ("typos", "", "", None),
    ],
)  # fmt: skip
def test_copies(kind: str, source: str, target: str, copy: tuple[str, str] | None) -> None:
    expected = [] if copy is None else [(kind, copy)]
    for seed in range(5):
        assert list(modified_copies(source, target, {kind: 1.0}, seed)) == expected
        assert modified_pair(kind, source, target, seed) == (copy or (source, target))


def test_random_copies() -> None:
    copies = {kind: {modified_pair(kind, SOURCE, TARGET, n) for n in range(60)} for kind in KINDS}
    for source, target in copies["typos"]:
        assert target == TARGET
        assert sum(map(str.__ne__, source.split(), SOURCE.split())) in (1, 2)
        assert "https://example.com/x1" in source
    ends = {(source[len(SOURCE) - 1 :], target[len(TARGET) - 1 :])
            for source, target in copies["punctuation"]}  # fmt: skip
    assert ends == {(end, end) for end in ("", ",", ":", ";", "...")}
    noise = [(a.split(), b.split()) for a, b in copies["noise"]]
    assert {len(a) - len(SOURCE.split()) for a, _ in noise} == {1}
    assert all(a[0] == b[0] if b[1] == "Wo" else a[-1] == b[-1] for a, b in noise)
    assert len(noise) > 30
    for kind in {*KINDS} - {ADDS_WORDS}:  # alignments stay right
        for source, target in copies[kind]:
            assert len(source.split()) == len(SOURCE.split())
            assert len(target.split()) == len(TARGET.split())


def test_shares_are_of_pairs_and_independent_of_each_other() -> None:
    shares = {"upper": 0.1, "typos": 0.5}
    pairs = [(f"The number {n}", f"Nummer {n}") for n in range(400)]
    both = [list(modified_copies(*pair, shares, 1)) for pair in pairs]
    alone = [list(modified_copies(*pair, {"typos": 0.5}, 1)) for pair in pairs]
    assert [[copy for copy in found if copy[0] == "typos"] for found in both] == alone
    counts = [sum(kind == name for found in both for kind, _ in found) for name in shares]
    assert 25 < counts[0] < 55
    assert 170 < counts[1] < 230
    assert both != [list(modified_copies(*pair, shares, 2)) for pair in pairs]


@pytest.mark.parametrize("text", ["upper", "upper=", "upper=0", "upper=1.1", "upper=nan", "x=0.1",
                                  "upper=0.1,upper=0.2", "upper=0.1,", ","])  # fmt: skip
def test_wrong_shares(text: str) -> None:
    with pytest.raises(OptionError, match=r"such as upper=0\.05,typos=0\.1"):
        parse_shares(text)


PAIRS = [(f"the cat number {n} sleeps.", f"die Katze Nummer {n} schläft.") for n in range(40)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("text.en", "text.de", "text.align")]
    columns = (*zip(*PAIRS, strict=True), ["0-0 1-1 2-2 3-3 4-4"] * len(PAIRS))
    for path, lines in zip(paths, columns, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def prepare(files: list[Path], out: Path, *flags: object) -> Result:
    source, target, _ = files
    return CliRunner().invoke(main, ["data", "prepare", *map(str, (
        "--from", source, target, "--valid", source, target, "--output", out,
        "--vocabulary-size", 340, *flags,
    ))])  # fmt: skip


def texts(prepared: PreparedData) -> list[tuple[str, str]]:
    data, tokenizer = prepared.split("train"), Tokenizer(*prepared.tokenizers)
    sides = [
        tokenizer.decode_batch(
            [tokens[:-1] for tokens in np.split(side.tokens, side.offsets[1:-1])]
        )
        for side in (data.source, data.target)
    ]
    return list(zip(*sides, strict=True))


def test_prepared_data_has_originals_and_copies(files: list[Path], tmp_path: Path) -> None:
    flags = ("--augment", "upper=0.3,typos=0.4", "--alignment", files[2], "--workers", 1)
    done = prepare(files, tmp_path / "data", *flags)
    assert done.exit_code == 0, done.output
    prepared = open_prepared(tmp_path / "data")
    expected = []
    for pair in PAIRS:
        copies = modified_copies(*pair, {"upper": 0.3, "typos": 0.4}, 1)
        expected += [pair, *(copy for _, copy in copies)]
    assert texts(prepared) == expected
    split = prepared.splits["train"]
    upper = sum(pair[0].isupper() for pair in expected)
    assert split["copies"] == {"typos": len(expected) - len(PAIRS) - upper, "upper": upper}
    assert split["corpora"] == [len(expected)]
    assert split["unlinked"] == 0
    assert len(prepared.split("valid")) == len(PAIRS)
    pieces = Tokenizer(*prepared.tokenizers).target_pieces(range(prepared.vocabulary_size))
    assert "T" in pieces  # the vocabulary has seen the copies
    shown = CliRunner().invoke(main, ["data", "info", str(tmp_path / "data")])
    assert f"{upper} upper" in shown.output


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_segmentations_of_the_same_text(files: list[Path], tmp_path: Path, kind: str) -> None:
    flags = ("--alignment", files[2], "--vocabulary-type", kind, "--workers", 1)
    more = ("--segmentations", 3, "--segmentation-alpha", 0.3)
    assert prepare(files, tmp_path / "plain", *flags).exit_code == 0
    assert prepare(files, tmp_path / "data", *flags, *more).exit_code == 0
    plain, prepared = (open_prepared(tmp_path / name) for name in ("plain", "data"))
    assert texts(prepared) == PAIRS * 3
    split = prepared.splits["train"]
    assert (split["copies"], split["unlinked"]) == ({"segmentation": 2 * len(PAIRS)}, 0)
    assert prepared.splits["valid"] == plain.splits["valid"]
    model, sources = prepared.tokenizers[0], [source for source, _ in PAIRS]
    first, rows = (
        [tokens.tolist()[:-1] for tokens in np.split(side.tokens, side.offsets[1:-1])]
        for side in (plain.split("train").source, prepared.split("train").source)
    )
    again = [Segmentation(0.3, 1, number).encode(model, sources) for number in (1, 2)]
    assert rows == first + again[0] + again[1]
    assert again[0] != again[1] != Segmentation(0.3, 2, 2).encode(model, sources)
    lengths = [sum(map(len, one)) for one in (first, *again)]
    assert min(lengths[1:]) > lengths[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--augment", "upper=1"), "augment changes text"),
        (("--segmentations", 2), "one segmentation"),
    ],
)
def test_refused_combinations(
    files: list[Path], tmp_path: Path, flags: tuple[object, ...], message: str
) -> None:
    done = prepare(files, tmp_path / "data", "--augment", "noise=0.1", "--alignment", files[2])
    assert (done.exit_code, "noise adds words" in done.stderr) == (2, True)
    trees = tmp_path / "trees.mrg"
    trees.write_text("(S (NN cat))\n")
    done = CliRunner().invoke(main, ["data", "prepare", *map(str, (
        "--trees", trees, "--valid-trees", trees, "--output", tmp_path / "x", *flags
    ))])  # fmt: skip
    assert (done.exit_code, message in done.stderr) == (2, True)


def test_a_modified_test_set(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "capitals"
    arguments = ["data", "augment", "upper", *map(str, files[:2]), "--output", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    for path, name in zip(files, ("source.txt", "target.txt"), strict=False):
        assert (out / name).read_text() == path.read_text().upper()

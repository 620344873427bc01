"""`data prepare --trees`: treebanks as token files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data.token_files import open_prepared
from translate_trt.train.data.trees import find_treebank

TREE = "( (S (NP-SBJ (DT The) (NN {0}))\n  (VP (VBZ runs) (NP (-NONE- *))) (. .)) )\n"
WORDS = ["dog", "cat", "horse", "Stra\u00dfe", "\ufb01g", "(", "x"]


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    bank = tmp_path / "bank"
    (bank / "02").mkdir(parents=True)
    (bank / "03").mkdir()
    trees = [TREE.format(word.replace("(", "-LRB-")) for word in WORDS]
    (bank / "02" / "b.mrg").write_text("".join(trees[:3]))
    (bank / "02" / "a.mrg").write_text(TREE.format("ant") + "( (NP (-NONE- *)) )\n(NN a b)")
    (bank / "03" / "c.tree.gz").write_bytes(gzip.compress("".join(trees[3:]).encode()))
    (bank / "README").write_text("not a tree")
    return bank


def prepare(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", "prepare", *map(str, arguments), "--workers", "1"])


def test_words_and_labels(treebank: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = prepare(
        "--trees", treebank / "02", "--trees", treebank / "03", "--valid-trees", treebank / "03",
        "--source-vocabulary-size", 290, "--output", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "a.mrg: the tree that begins in line 4 is left out: the bracket NN a" in done.stderr
    assert "a.mrg: 1 trees without words are left out" in done.stderr
    prepared = open_prepared(out)
    assert [len(prepared.split(name)) for name in ("train", "valid")] == [8, 4]
    tokenizer = Tokenizer(*prepared.tokenizers)
    assert set(tokenizer.target_pieces(range(4, tokenizer.vocabulary_size))) == {
        "\u2581" + label
        for label in ["(S", "(NP", "(VP", "DT", "NN", "VBZ", ".", ")S", ")NP", ")VP"]
    }
    data = prepared.split("train")
    offsets = data.target.offsets
    for row, word in enumerate(["ant", *WORDS]):
        target = data.target.tokens[offsets[row] : offsets[row + 1] - 1].tolist()
        assert tokenizer.decode(target) == "(S (NP DT NN )NP (VP VBZ )VP . )S"
        begin, end = data.source.offsets[row : row + 2]
        source = data.source.tokens[begin : end - 1].tolist()
        assert source == tokenizer.encode_source(f"The {word} runs .")
        assert tokenizer.source_pieces([1]) == ["<unk>"]
        assert 1 not in source
    assert data.links is not None
    begin, end = data.links.offsets[:2]
    # Each label is linked with the tokens of the word that comes next: "The", "ant", "runs", ".",
    # and after it the end symbol.
    words = tokenizer.source_pieces(data.source.tokens[: data.source.offsets[1]])
    starts = [index for index, piece in enumerate(words) if piece.startswith("\u2581")]
    bounds = [*starts, len(words) - 1, len(words)]
    next_words = [0, 0, 0, 1, 2, 2, 2, 3, 3, 4, 4]
    assert data.links.positions[begin:end].reshape(-1, 2).tolist() == [
        [label, token]
        for label, word in enumerate(next_words)
        for token in range(bounds[word], bounds[word + 1])
    ]
    # Identity normalization: a ligature and a wide bracket are not their plain characters.
    assert tokenizer.encode_source("\ufb01g") != tokenizer.encode_source("fig")
    assert tokenizer.encode_source("\uff08") != tokenizer.encode_source("(")
    assert (out / "valid.trees.txt").read_text().splitlines()[2] == (
        "(S (NP (DT The) (NN -LRB-)) (VP (VBZ runs)) (. .))"
    )
    index = json.loads((out / "data.json").read_text())
    assert index["trees"]
    assert index["settings"]["max_length"] == 512
    info = CliRunner().invoke(main, ["data", "info", str(out), "--check"])
    assert "290 source and 14 target tokens" in info.stdout

    again = prepare(
        "--trees", treebank, "--valid-trees", treebank, "--source-vocabulary-size", 0,
        "--output", out, "--force",
    )  # fmt: skip
    assert again.exit_code == 2
    assert "--source-" in again.stderr
    assert open_prepared(out).source_vocabulary_size == 290  # untouched


def test_files_of_a_directory(treebank: Path, tmp_path: Path) -> None:
    files = find_treebank([treebank / "README", treebank])
    assert [file.name for file in files] == ["README", "a.mrg", "b.mrg", "c.tree.gz"]
    done = prepare("--trees", treebank, "--valid-trees", treebank / "x", "--output", tmp_path / "o")
    assert "file" in done.stderr
    (tmp_path / "empty").mkdir()
    done = prepare(
        "--trees", treebank, "--valid-trees", tmp_path / "empty", "--output", tmp_path / "o"
    )
    assert "whose names" in done.stderr


def test_two_vocabularies_of_text(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.en").write_text("one two three\nfour five six\n" * 9)
        (tmp_path / f"{name}.de").write_text("eins zwei drei\nvier f\u00fcnf sechs\n" * 9)
    out, pairs = (
        tmp_path / "out",
        [[tmp_path / f"{n}.{c}" for c in ("en", "de")] for n in ("train", "valid")],
    )
    done = prepare(
        "--from", *pairs[0], "--valid", *pairs[1], "--vocabulary-size", 285,
        "--source-vocabulary-size", 280, "--output", out,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    prepared = open_prepared(out)
    tokenizer = Tokenizer(*prepared.tokenizers)
    assert (tokenizer.source_vocabulary_size, tokenizer.vocabulary_size) == (
        prepared.source_vocabulary_size, prepared.vocabulary_size,
    )  # fmt: skip
    assert [path.name for path in prepared.tokenizers] == ["source.spm", "target.spm"]
    # The umlaut is a letter of the target alone.
    assert "\u00fc" not in "".join(tokenizer.source_pieces(range(prepared.source_vocabulary_size)))
    assert "\u00fc" in "".join(tokenizer.target_pieces(range(prepared.vocabulary_size)))


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (3_000, ()),
        # The label is not in the sample that the source vocabulary is trained on.
        (400, ("--vocabulary-sentences", 100)),
        (400, ("--vocabulary-size", 5)),
    ],
)
def test_a_rare_label_is_a_token(count: int, options: Sequence[object], tmp_path: Path) -> None:
    """Even one with a character that no other label has, in one tree of thousands."""
    trees = tmp_path / "trees.mrg"
    trees.write_text(
        "(S (NP (DT a) (NN b)) (VP (VBZ c) (NP (DT d) (NN e))))\n" * count + "(X (QY f))"
    )
    done = prepare(
        "--trees", trees, "--valid-trees", trees, "--source-vocabulary-size", 290,
        "--output", tmp_path / "out", *options,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    tokenizer = Tokenizer(*open_prepared(tmp_path / "out").tokenizers)
    assert 1 not in tokenizer.encode_target("(X QY )X")

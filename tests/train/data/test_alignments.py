"""Alignments of training pairs: `data prepare --alignment`, and their links in batches."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data.alignments import TokenLinker, TokenLinks, check_length, read_links
from translate_trt.train.data.encode import BACK_TRANSLATED
from translate_trt.train.data.token_files import open_prepared


def test_links_in_pharaoh_format() -> None:
    assert read_links(" 0-1\t2-0  3-2 ", 3, 2) == [(0, 1), (2, 0), (3, 2)]
    assert read_links("", 3, 2) == []
    for line, reason in {
        "0-0 1": "'1' is no link",
        "0-0 -1-1": "'-1-1' is no link",
        "0-0 1?1": "no link such as 0-1",
        "4-0": "4-0 names a word of the source, which has 3",
        "0-3": "0-3 names a word of the target, which has 2",
    }.items():
        with pytest.raises(ValueError, match=reason):
            read_links(line, 3, 2)


def test_words_become_tokens(tokenizer_model: Path) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    linker = TokenLinker(tokenizer)
    texts = "the zz dog", "Hund yyy"
    tokens = tokenizer.encode_source(texts[0]), tokenizer.encode_target(texts[1])
    pieces = tokenizer.source_pieces(tokens[0]), tokenizer.target_pieces(tokens[1])
    words = [np.cumsum([piece[0] == "\u2581" for piece in side]) - 1 for side in pieces]
    assert words[0].tolist().count(1) > 1  # "zz" is several tokens
    found = linker.link(texts, tokens, "1-1 2-0 2-0")
    assert found is not None
    expected = {(len(tokens[1]), len(tokens[0]))}
    for source, target in ((1, 1), (2, 0)):
        rows, columns = np.flatnonzero(words[1] == target), np.flatnonzero(words[0] == source)
        expected |= {(int(row), int(column)) for row in rows for column in columns}
    assert [tuple(link) for link in found.tolist()] == sorted(expected)
    # The words of the text are not those of other tokens.
    assert linker.link(("the dog", texts[1]), tokens, "") is None


def test_links_of_a_batch() -> None:
    rng = random.Random(1)
    lengths = [(rng.randint(1, 6), rng.randint(1, 5)) for _ in range(9)]
    pairs = [
        sorted({(rng.randrange(t), rng.randrange(s)) for _ in range(rng.randrange(7))})
        for t, s in lengths
    ]
    flat = [number for links in pairs for link in links for number in link]
    offsets = np.cumsum([0, *(2 * len(links) for links in pairs)])
    links = TokenLinks(np.array(flat, np.uint16), offsets)
    rows = np.array([7, 2, 2, 0, 5])
    for width in (6, 5, 3):  # of the source: all, without the end symbol, and fewer
        index, shares = links.of_batch(rows, 7, width)
        dense = torch.zeros(len(rows) * 7 * width).index_put((index,), shares)
        expected = torch.zeros(len(rows), 7, width)
        for place, row in enumerate(rows):
            for target, source in pairs[row]:
                if source < width:
                    expected[place, target, source] = 1
        expected /= expected.sum(-1, keepdim=True).clamp_min(1)
        torch.testing.assert_close(dense.view(len(rows), 7, width), expected)
    index, shares = links.of_batch(rows[:0], 7, 6)
    assert len(index) == len(shares) == 0


def prepare(*arguments: object) -> Result:
    words = ["data", "prepare", *map(str, arguments), "--vocabulary-size", "300", "--workers", "1"]
    return CliRunner().invoke(main, words)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Source, target and alignment of five pairs: one is empty, one too long, one a repetition."""
    pairs = [
        ("one two", "eins zwei", "0-0 1-1"),
        ("", "leer", ""),
        ("three " * 40, "drei", "0-0"),
        ("one two", "eins zwei", "0-1"),
        ("four five six", "sechs vier", "2-0 0-1"),
    ]
    paths = [tmp_path / name for name in ("text.en", "text.de", "text.align")]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def test_alignments_stay_with_their_pairs(files: list[Path], tmp_path: Path) -> None:
    source, target, alignment = files
    out = tmp_path / "out"
    given = ("--from", source, target, "--valid", source, target, "--output", out)
    done = prepare(*given, "--alignment", alignment, "--max-pair-length", 60)
    assert done.exit_code == 0, done.stderr
    prepared = open_prepared(out)
    data, tokenizer = prepared.split("train"), Tokenizer(*prepared.tokenizers)
    assert data.links is not None
    assert len(data) == 2
    expected = TokenLinker(tokenizer)
    for row, (texts, line) in enumerate(
        {("one two", "eins zwei"): "0-0 1-1", ("four five six", "sechs vier"): "2-0 0-1"}.items()
    ):
        tokens = tokenizer.encode_source(texts[0]), tokenizer.encode_target(texts[1])
        links = expected.link(texts, tokens, line)
        assert links is not None
        begin, end = data.links.offsets[row : row + 2]
        assert data.links.positions[begin:end].reshape(-1, 2).tolist() == links.tolist()
    assert prepared.split("valid").links is None
    assert data._checksum(lambda: False) == data.fingerprint()
    assert CliRunner().invoke(main, ["data", "info", str(out), "--check"]).exit_code == 0

    changed = out / "train.alignment.links"
    changed.write_bytes(changed.read_bytes()[::-1])
    with pytest.raises(InputError, match="fingerprint"):
        open_prepared(out).check("train")
    offsets = np.fromfile(out / "train.alignment.offsets", np.int64)
    offsets[[1, 2]] = offsets[[2, 1]]
    offsets.tofile(out / "train.alignment.offsets")
    with pytest.raises(InputError, match="--force"):
        open_prepared(out).split("train")

    assert prepare(*given, "--force").exit_code == 0
    assert open_prepared(out).split("train").links is None
    assert not changed.exists()


def test_back_translated_sources_begin_with_a_tag_and_shift_their_links(
    files: list[Path], tmp_path: Path
) -> None:
    source, target, alignment = files
    other = [tmp_path / name for name in ("bt.en", "bt.de", "bt.align")]
    for path, line in zip(other, ("two <BT> one", "zwei eins", "0-0 2-1"), strict=True):
        path.write_text(f"{line}\n")
    out = tmp_path / "out"
    done = prepare(
        "--from", source, target, "--valid", source, target, "--output", out, "--alignment",
        alignment, "--back-translated", *other[:2], "--alignment", other[2], "--augment", "upper=1",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    prepared = open_prepared(out)
    data, tokenizer = prepared.split("train"), Tokenizer(*prepared.tokenizers)
    assert data.links is not None
    count = len(data)
    assert prepared.splits["train"]["corpora"] == [count - 2, 2]
    tag = tokenizer.source_pieces(range(prepared.vocabulary_size)).index(BACK_TRANSLATED)
    for row in range(count):
        sentence = data.source.tokens[slice(*data.source.offsets[row : row + 2])].tolist()
        assert (sentence[0] == tag) == (row >= count - 2)
        assert tag not in sentence[1:]
    own = tokenizer.encode_source("two <BT> one"), tokenizer.encode_target("zwei eins")
    links = TokenLinker(tokenizer).link(("two <BT> one", "zwei eins"), own, "0-0 2-1")
    assert links is not None
    found = data.links.positions[slice(*data.links.offsets[count - 2 : count])].reshape(-1, 2)
    assert found.tolist() == [[target, source + 1] for target, source in links.tolist()]
    assert prepared.split("valid").source.tokens.tolist().count(tag) == 0
    assert "back-translated 2 training pairs" in " ".join(
        CliRunner().invoke(main, ["data", "info", str(out)]).stdout.split()
    )


def test_wrong_alignments(files: list[Path], tmp_path: Path) -> None:
    source, target, alignment = files
    given = ["--from", source, target, "--valid", source, target, "--output", tmp_path / "out"]
    lines = alignment.read_text().splitlines()

    def error(*more: object) -> str:
        done = prepare(*given, *more)
        assert done.exit_code in (1, 2), done.output
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.tokens"))
        return done.stderr

    alignment.write_text("\n".join([*lines[:4], "2-0 3-5"]) + "\n")
    message = error("--alignment", alignment)
    assert "text.align" in message
    alignment.write_text("\n".join(lines[:4]) + "\n")
    assert "text.align has 4 lines and " in (message := error("--alignment", alignment))
    assert "alignment" in message
    alignment.write_text("\n".join([*lines[:4], "2-\udce4".encode("utf-8", "replace").decode()]))
    assert "line 5: '2-?' is no link such as 0-1" in error("--alignment", alignment)
    assert "2 alignments for 1 pairs" in error("--alignment", alignment, "--alignment", alignment)
    assert "there is no file" in error("--alignment", tmp_path / "none")
    terms = tmp_path / "terms.tsv"
    terms.write_text("one\teins\n")
    assert "terminology changes the words of the source" in error(
        "--alignment", alignment, "--terminology", terms
    )
    done = prepare("--trees", source, "--valid-trees", source, "--output", tmp_path / "out",
                   "--back-translated", source, target)  # fmt: skip
    assert "--back-translated is text" in done.stderr
    done = prepare("--trees", source, "--valid-trees", source, "--alignment", alignment,
                   "--output", tmp_path / "out")  # fmt: skip
    assert "--alignment needs --from" in done.stderr
    check_length(65_535)
    with pytest.raises(OptionError, match="max_length is 65536"):
        check_length(65_536)

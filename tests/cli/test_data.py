from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main

pytest.importorskip("torch", reason="the training packages are needed")


def data(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for name, count in (("train", 60), ("val", 3)):
        for language, word in (("en", "house"), ("de", "Haus")):
            lines = (f"{word} number {index}\n" for index in range(count))
            (tmp_path / f"{name}.{language}").write_text("".join(lines))
    return tmp_path


def local(text: Path, *arguments: object) -> Result:
    files = [
        [text / f"{name}.{language}" for language in ("en", "de")] for name in ("train", "val")
    ]
    return data(
        "prepare", "--from", *files[0], "--valid", *files[1], "--output", text / "out",
        "--vocabulary-size", 320, "--workers", 1, *arguments,
    )  # fmt: skip


def test_text_of_ones_own(text: Path) -> None:
    result = local(text, "--test", text / "val.en", text / "val.de")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{text / 'out'}\n"
    assert "utf8" in result.stderr
    index = json.loads(data("info", text / "out", "--json").stdout)
    assert index == json.loads((text / "out" / "data.json").read_text())
    assert (index["name"], index["source_language"], index["target_language"]) == (
        "custom", "en", "de"
    )  # fmt: skip
    assert list(index["splits"]) == ["train", "valid", "test"]
    assert [entry[0] for entry in index["origin"]] == [
        str(text / name) for name in ("train.en", "val.en", "val.en")
    ]


def test_a_name_lends_its_settings(text: Path) -> None:
    assert local(text, "wmt14-en-fr", "--source-language", "de").exit_code == 0
    index = json.loads((text / "out" / "data.json").read_text())
    assert (index["name"], index["source_language"], index["target_language"]) == (
        "wmt14-en-fr", "de", "fr"
    )  # fmt: skip
    assert index["settings"]["vocabulary_size"] == 320


def test_every_setting_is_a_flag(text: Path) -> None:
    flags = {
        "--max-length-ratio": 2.5, "--vocabulary-type": "unigram",
        "--vocabulary-sentences": 50, "--seed": 3,
        "--source-vocabulary-size": 300, "--normalization": "identity", "--augment": "lower=1",
        "--symbols": "<br>", "--segmentations": 2, "--segmentation-alpha": 0.2,
    }  # fmt: skip
    given = [part for flag in flags.items() for part in flag]
    local(text, *given, "--keep-duplicates", "--max-pair-length", 200)
    assert json.loads((text / "out" / "data.json").read_text())["settings"] == {
        "max_length": 200, "max_length_ratio": 2.5, "keep_duplicates": True,
        "vocabulary_size": 320, "vocabulary_type": "unigram", "vocabulary_sentences": 50, "seed": 3,
        "source_vocabulary_size": 300, "normalization": "identity", "augment": "lower=1",
        "symbols": "<br>", "segmentations": 2, "segmentation_alpha": 0.2,
    }  # fmt: skip


def test_the_table_of_info(text: Path) -> None:
    (text / "train.en").write_text("\n" + (text / "train.en").read_text()[15:])
    local(text)
    result = data("info", text / "out", "--check")
    assert result.exit_code == 0
    table = " ".join(result.stdout.split())
    for part in ("corpus custom", "languages en to de", "tokens, uint16", "pairs 59 of 60",
                 "dropped 1 empty", "pairs 3 of 3", "dropped none"):  # fmt: skip
        assert part in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a corpus (wmt14-en-de, wmt14-en-fr), or give text with --from"),
        (["--trees", "a.mrg"], "give --trees and --valid-trees together"),
        (["wmt14-en-de", "--trees", "a", "--valid-trees", "b"], "--trees takes the place of text"),
        (["--from", "a.en", "a.de"], "--from needs --valid"),
        (["wmt14-en-de", "--test", "a.en", "a.de"], "--valid and --test need --from"),
        (["wmt14-en-de", "--alignment", "a"], "--alignment needs --from"),
        (["wmt14-en-de", "--language-tags"], "--language-tags needs --from"),
        (["wmt14-en-de", "--symbols", "a b"], "symbols 'a b'"),
        (["wmt14-en-de", "--symbols", "<a>,<s>"], "symbols '<a>,<s>'"),
        (["--from", "a.en", "a.de", "--valid", "v.en", "v.de"], "there is no file a.en"),
    ],
)
def test_what_cannot_be(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = data("prepare", *arguments, "--output", tmp_path / "out", "--workers", 1)
    assert result.exit_code == (1 if message.startswith("there is no file") else 2)
    assert message in result.stderr

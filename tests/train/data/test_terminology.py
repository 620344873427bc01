"""Training pairs annotated with the target phrases of a glossary."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.bundle.term_annotation import SYMBOLS, TermAnnotation
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data import prepare as prepare_module
from translate_trt.train.data.terminology import TerminologyOptions
from translate_trt.train.data.token_files import PreparedData, open_prepared

PAIRS = [(f"the cat number {n}", f"die Katze Nummer {n}") for n in range(40)]
PAIRS += [(f"a cat number {n}", f"ein Tier Nummer {n}") for n in range(20)]
PAIRS += [("odd ⟦ symbols ⟧ here", "seltsame ⟼ Zeichen")]
VALID = [("the cat", "die Katze")]


@pytest.fixture
def glossary(tmp_path: Path) -> Path:
    path = tmp_path / "glossary.tsv"
    path.write_text("cat\tKater\tKatze\n", encoding="utf-8")
    return path


def run(directory: Path, name: str, *flags: object) -> Result:
    files: list[Any] = []
    for part, pairs in (("--from", PAIRS), ("--valid", VALID)):
        files.append(part)
        for side, language in enumerate(("en", "de")):
            path = directory / f"{part[2:]}.{language}"
            path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
            files.append(path)
    arguments = ["data", "prepare", *files, "--output", directory / name, "--workers", 1,
                 "--vocabulary-size", 340, *flags]  # fmt: skip
    return CliRunner().invoke(main, list(map(str, arguments)))


def sentences(prepared: PreparedData, split: str = "train") -> list[list[str]]:
    """Pieces of the source sentences, without the end symbol."""
    data, tokenizer = prepared.split(split), Tokenizer(*prepared.tokenizers)
    offsets = data.source.offsets
    return [
        tokenizer.source_pieces(data.source.tokens[offsets[n] : offsets[n + 1] - 1].tolist())
        for n in range(len(data))
    ]


def test_a_share_of_the_pairs_with_terms_is_annotated(tmp_path: Path, glossary: Path) -> None:
    done = run(tmp_path, "data", "--terminology", glossary)
    assert done.exit_code == 0, done.output
    prepared = open_prepared(tmp_path / "data")
    record = prepared.index["terminology"]
    assert prepared.term_annotation == TermAnnotation()
    assert f"annotated {record['annotated']} pairs" in done.stderr
    found = sentences(prepared)
    annotated = [n for n, pieces in enumerate(found) if SYMBOLS[0] in pieces]
    assert 10 < len(annotated) == record["annotated"] < 30
    assert all(PAIRS[n][1].startswith("die Katze") for n in annotated)
    text = "".join(found[annotated[0]]).replace("\u2581", " ").strip()
    assert text == PAIRS[annotated[0]][0].replace(" cat", "⟦ cat⟼ Katze⟧")
    counts = Counter(piece for pieces in found for piece in pieces)
    assert {counts[symbol] for symbol in SYMBOLS} == {len(annotated)}
    # All other text is plain: validation, and symbols of the training text.
    assert "".join(sentences(prepared, "valid")[0]).endswith("cat")
    brackets = Tokenizer(*prepared.tokenizers).encode_source("odd [ symbols ] here")
    assert len(found[-1]) == len(brackets)
    assert "training pairs annotated (append)" in CliRunner().invoke(
        main, ["data", "info", str(tmp_path / "data")]
    ).stdout  # fmt: skip


def test_the_choice_depends_on_seed_and_text_alone(
    tmp_path: Path, glossary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TerminologyOptions(glossary)
    source, target = map(list, zip(*PAIRS, strict=True))
    annotated, targets, _ = options.annotate(source, target, 1)
    assert options.annotate(source[::-1], target[::-1], 1)[0] == annotated[::-1]
    assert options.annotate(source, target, 2)[0] != annotated
    assert targets == [*target[:-1], "seltsame > Zeichen"]
    every = TerminologyOptions(glossary, terminology_share=1.0)
    assert every.annotate(source, target, 1)[2] == 40
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 7)
    for name in ("a", "b"):
        assert run(tmp_path, name, "--terminology", glossary).exit_code == 0
    for file in ("train.source.tokens", "tokenizer.spm"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_plain_data_has_no_annotation(tmp_path: Path) -> None:
    assert run(tmp_path, "data").exit_code == 0
    prepared = open_prepared(tmp_path / "data")
    assert prepared.term_annotation is None
    index = prepared.index | {"terminology": {"annotation": {"form": "append"}}}
    (tmp_path / "data" / "data.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"data\.json is damaged"):
        _ = open_prepared(tmp_path / "data").term_annotation


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--terminology-share", "0.1"], "--terminology"),
        (["--terminology", "glossary.tsv", "--terminology-share", "0"], "above"),
        (["--terminology", "missing.tsv"], "missing.tsv"),
    ],
)
def test_errors(
    tmp_path: Path, glossary: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, "data", *flags)
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_glossary_in_the_wrong_direction_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tsv"
    path.write_text("Katze\tcat\n")
    done = run(tmp_path, "data", "--terminology", path)
    assert "pair" in done.stderr

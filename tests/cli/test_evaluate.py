"""`translate-trt evaluate` through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.compiled import compile_once
from support.models import lively_model, save_model
from support.shared import SharedFiles

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.cli import main
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.evaluation.scoring import make_metric, paired_bootstrap
from translate_trt.train.evaluation.validation import translate_reference

pytestmark = pytest.mark.slow

SOURCE = [
    "the cat runs.",
    "a big dog sleeps under the tree",
    "",
    "Haus Hund läuft.",
    "the house under the tree",
    "a green cat walks over the small house",
] * 4


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


def result(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def reader(tokenizer: Path, path: Path, seed: int) -> Checkpoint:
    """Checkpoint of a model that has learned to copy its source backwards, a little."""
    size = Tokenizer(tokenizer, tokenizer).vocabulary_size
    tokens = range(4 + 256, size)  # after the special tokens and the bytes
    return open_checkpoint(save_model(lively_model(size, seed, 60, tokens), path, tokenizer))


@pytest.fixture(scope="module")
def readable(tokenizer_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return reader(tokenizer_model, tmp_path_factory.mktemp("one") / "checkpoint", 0)


@pytest.fixture(scope="module")
def other(tokenizer_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model with the same vocabulary."""
    return reader(tokenizer_model, tmp_path_factory.mktemp("other") / "checkpoint", 5).path


@pytest.fixture(scope="module")
def bundle(readable: Checkpoint, shared: SharedFiles) -> Path:
    return compile_once(shared, readable, BuildOptions())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("text") / "test.en", SOURCE)


@pytest.fixture(scope="module")
def expected(readable: Checkpoint) -> list[str]:
    """Translations of the source by the checkpoint."""
    tokenizer = Tokenizer(*readable.tokenizers)
    return translate_reference(readable.load_model(), tokenizer, SOURCE, SearchOptions())[0]


@pytest.fixture(scope="module")
def reference(source: Path, expected: list[str]) -> Path:
    """Translations with swapped words, for scores between 0 and 100."""
    lines = [
        " ".join(line.split()[::-1]) if index % 3 == 0 else f"{line} UV-Licht"
        for index, line in enumerate(expected)
    ]
    return write(source.with_name("test.de"), lines)


# ---- files of translations ----


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Files of a reference, a good system and a bad system."""
    right = [f"Das ist die E-Mail-Adresse von Haus Nummer {n}, nicht wahr?" for n in range(40)]
    good = [line.replace(" nicht", " oder") if "1" in line else line for line in right]
    bad = [line.replace("die E-Mail-Adresse", "der Brief") for line in right]
    return [
        write(tmp_path / name, lines)
        for name, lines in (("right.de", right), ("good.txt", good), ("bad.txt", bad))
    ]


def test_the_table(three: list[Path]) -> None:
    reference, good, bad = three
    done = run("--reference", reference, good, bad)
    assert done.exit_code == 0
    assert done.stderr == ""
    right, *systems = (path.read_text().splitlines() for path in three)
    scores = [
        [f"{make_metric(name, right)(texts).score:.2f}" for texts in systems]
        for name in ("bleu", "chrf", "tokenized-bleu")
    ]
    (difference,) = paired_bootstrap(systems, right)
    low, high = difference.interval
    shown = f"{difference.value:+.2f} [{low:+.2f}, {high:+.2f}]"
    lines = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert lines[:3] == [
        ["system", "BLEU", "chrF2", "tokenized BLEU", "difference in BLEU (95 %)", "p"],
        [str(good), *(column[0] for column in scores)],
        [str(bad), *(column[1] for column in scores), shown, f"{difference.p_value:.3f}"],
    ]
    for name, line in zip(("bleu", "chrf", "tokenized-bleu"), lines[4:7], strict=True):
        assert make_metric(name, right)(right).signature in line[0]


def test_the_difference_in_chrf(three: list[Path]) -> None:
    reference, good, bad = three
    found = result("--reference", reference, "--metric", "chrf", "--metric", "bleu", good, bad)
    first, second = found["systems"]
    difference = second["difference"]
    assert difference["metric"] == "chrF2"
    scores = [one["scores"]["chrf"]["score"] for one in (first, second)]
    assert difference["value"] == pytest.approx(scores[1] - scores[0])
    low, high = difference["interval"]
    assert low < difference["value"] < high < 0


def test_comet(three: list[Path], fake_comet: Any) -> None:
    reference, good, bad = three
    asked = ["--reference", reference, "--reference", bad, "--metric", "comet", good]
    refused = run(*asked)
    assert refused.exit_code == 2
    assert "--source" in refused.stderr
    assert fake_comet.loaded == []
    found = result(*asked, "--source", reference)["systems"][0]["scores"]["comet"]
    source, texts, other = (path.read_text().splitlines() for path in (reference, good, bad))
    scores = [
        fake_comet.score(line, text, right)
        for lines in (source, other)
        for line, text, right in zip(source, texts, lines, strict=True)
    ]
    assert found["score"] == pytest.approx(100 * sum(scores) / len(scores))
    assert found["signature"] == "nrefs:2|model:Unbabel/wmt22-comet-da|version:2.2.7"


def test_several_references(three: list[Path]) -> None:
    reference, good, bad = three
    found = result("--reference", reference, "--reference", bad, good, bad)
    assert found["reference"] == [str(reference), str(bad)]
    first, second = (system["scores"]["bleu"]["score"] for system in found["systems"])
    assert first < second == pytest.approx(100)
    assert run("--reference", reference, "--reference", reference, bad).exit_code == 0
    trees = run("--reference", reference, "--reference", bad, good, "--metric", "evalb")
    assert trees.exit_code == 2


def test_json(three: list[Path]) -> None:
    reference, good, bad = three
    found = result("--reference", reference, good, bad, "--metric", "ter", "--metric", "chrf++")
    assert (found["reference"], found["sentences"]) == (str(reference), 40)
    first, second = found["systems"]
    assert [first["name"], second["name"]] == [str(good), str(bad)]
    assert list(first["scores"]) == ["ter", "chrf++"]
    assert "|nw:2|" in first["scores"]["chrf++"]["signature"]
    assert first["scores"]["ter"]["score"] < second["scores"]["ter"]["score"]
    assert first["search"] is first["difference"] is second["search"] is None
    low, high = second["difference"]["interval"]
    assert low < second["difference"]["value"] < high < 0
    assert second["difference"]["p_value"] < 0.01


def test_the_language_of_tokenized_bleu(three: list[Path], tmp_path: Path) -> None:
    def tokens(*flags: object) -> str:
        (system,) = result(three[1], "--metric", "tokenized-bleu", *flags)["systems"]
        return str(system["scores"]["tokenized-bleu"]["signature"].split("|")[3])

    nameless = write(tmp_path / "right.txt", three[0].read_text().splitlines())
    assert tokens("--reference", three[0]) == "tok:moses-de+compounds-split"
    assert tokens("--reference", three[0], "--bleu-language", "fr") == "tok:moses-fr"
    assert tokens("--reference", nameless, "--bleu-language", "DE").endswith("split")
    refused = run("--reference", nameless, three[1], "--metric", "tokenized-bleu")
    assert refused.exit_code == 2
    assert "give --bleu-language" in refused.stderr
    done = run("--reference", nameless, three[1])
    assert "BLEU" in done.stderr
    assert "tokenized BLEU" not in done.stdout


# ---- models ----


def test_a_checkpoint_scores_as_its_translations(
    readable: Checkpoint, source: Path, reference: Path, expected: list[str], tmp_path: Path
) -> None:
    translations = write(tmp_path / "out.de", expected)
    first, second = result(
        "--reference", reference, "--source", source, readable.path, translations
    )["systems"]
    assert first["scores"] == second["scores"]
    assert 1 < first["scores"]["chrf"]["score"] < 99
    assert second["difference"] == {
        "metric": "BLEU", "value": 0.0, "interval": [0.0, 0.0], "p_value": 1.0,
    }  # fmt: skip
    assert (first["search"]["beam_size"], first["search"]["length_penalty"]) == (4, 0.6)


def test_a_bundle_scores_as_its_translator(
    bundle: Path, source: Path, reference: Path, tmp_path: Path
) -> None:
    options = SearchOptions(beam_size=2, max_length=9)
    translator = Translator(bundle, threads=1)
    texts = [found.text for found in translator.translate(SOURCE, options)]
    first, second = result(
        "--reference", reference, "--source", source, bundle,
        write(tmp_path / "out.de", texts), "--beam-size", 2,
        "--max-length", "9", "--threads", 1,
    )["systems"]  # fmt: skip
    assert first["name"] == f"{bundle} (onnx-fp32)"
    assert first["scores"] == second["scores"]
    assert (first["search"]["beam_size"], first["search"]["max_length"]) == (2, 9)


def test_an_ensemble_is_one_more_system(
    readable: Checkpoint, other: Path, source: Path, reference: Path
) -> None:
    flags = ("--reference", reference, "--source", source, "--metric", "chrf")
    alone, twice = result(
        *flags, readable.path, "--ensemble", readable.path, "--ensemble", readable.path
    )["systems"]
    assert twice["name"] == f"ensemble of {readable.path}, {readable.path}"
    assert twice["scores"] == alone["scores"]
    one, another, both = result(
        *flags, readable.path, other, "--ensemble", readable.path, "--ensemble", other
    )["systems"]
    assert one["scores"] == alone["scores"]
    scores = {system["scores"]["chrf"]["score"] for system in (one, another, both)}
    assert len(scores) == 3  # the ensemble differs from both members


# ---- what cannot be done ----


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--reference", "r.de"], 2, "name files"),
        (["--reference", "r.de", "h", "missing"], 1, "file missing"),
        (["--reference", "empty", "h"], 1, "reference line"),
        (["--reference", "r.de", "h", "short"], 1, "short has 1 lines and r.de has 2"),
        (["--reference", "r.de", "--source", "short", "h"], 1, "short has 1 lines and r.de has 2"),
        (["--reference", "r.de", "folder"], 1, "folder holds"),
        (["--reference", "r.de", "h", "--ensemble", "folder"], 2, "single checkpoint"),
        (["--reference", "r.de", "h", "--metric", "evalb", "--metric", "bleu"], 2, "evalb"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name, lines in (("r.de", ["a", "b"]), ("h", ["a", "b"]), ("short", ["a"]), ("empty", [])):
        write(Path(name), lines)
    done = run(*arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stdout == ""


GOLD = ["(S (NP (PRP It)) (VP (VBZ works)) (. .))", "(S (NP (NN Rain)) (VP (VBD fell)))"] * 4
FLAT = [line.replace("(VP (V", "(NP (V") for line in GOLD]


def test_trees(tmp_path: Path) -> None:
    gold, flat = write(tmp_path / "gold.trees", GOLD), write(tmp_path / "flat.trees", FLAT)
    done = run("--reference", gold, "--metric", "evalb", gold, flat)
    assert done.exit_code == 0, done.output
    lines = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert lines[0] == ["system", "F1", "difference in F1 (95 %)", "p"]
    assert lines[1] == [str(gold), "100.00"]
    assert lines[2] == [str(flat), "66.67", "-33.33 [-33.33, -33.33]", "0.001"]
    assert f"{flat}: F1 with gold tags 66.67, recall 66.67, precision 66.67" in done.stdout
    found = result("--reference", gold, "--metric", "evalb", flat)["systems"][0]["scores"]["evalb"]
    assert found["details"]["lines with other words"] == 0

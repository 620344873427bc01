"""`translate-trt plot` and `translate-trt attention` through the command line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.models import lively_model, save_model

from translate_trt.runtime.cli import main
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.evaluation.attention_maps import KINDS, attend_sentence
from translate_trt.train.evaluation.attention_plots import STYLES

pytestmark = pytest.mark.slow

SENTENCE = "the cat runs under the tree"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def png_size(path: Path) -> tuple[int, int]:
    """Width and height in the header of a PNG file."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    return int(width), int(height)


# ---- plot ----


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """Directory of a run that has only metrics.jsonl."""
    path = tmp_path / "run"
    path.mkdir()
    lines: list[dict[str, Any]] = [
        {
            "step": step, "epoch": 1, "loss": 100 / step, "log_likelihood": -90 / step,
            "target_tokens_per_second": 1e4 + step, "learning_rate": 1e-5 * step,
            "skipped_steps": 0,
        }
        for step in range(10, 60, 10)
    ]  # fmt: skip
    lines.append({"step": 50, "validation": {"loss": 3.0, "bleu": 12.5}})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_plot_draws_runs(metrics: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    done = run("plot", metrics, metrics, "--output", out)
    assert (done.exit_code, done.output) == (0, "")
    width, height = png_size(out)
    assert width == 1200
    assert height >= 800
    refused = run("plot", metrics, "--output", out)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    before = out.read_bytes()
    assert run("plot", metrics, "--output", out, "--force").exit_code == 0
    assert out.read_bytes() != before  # one run instead of two


@pytest.mark.parametrize(
    ("name", "out", "code", "message"),
    [("nothing", "a.png", 1, "metrics.jsonl"), ("run", "nowhere/a.png", 1, "directory")],
)
def test_plot_says_what_is_wrong(
    metrics: Path, tmp_path: Path, name: str, out: str, code: int, message: str
) -> None:
    done = run("plot", tmp_path / name, "--output", tmp_path / out)
    assert done.exit_code == code
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [metrics]


# ---- attention ----


@pytest.fixture(scope="module")
def checkpoint(tokenizer_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    model = lively_model(size, steps=60, tokens=range(260, size))
    return save_model(model, tmp_path_factory.mktemp("attention") / "checkpoint", tokenizer_model)


def expected(checkpoint: Path, target: str | None, options: SearchOptions) -> Any:
    opened = open_checkpoint(checkpoint)
    tokenizer = Tokenizer(opened.tokenizer, opened.tokenizer)
    return attend_sentence(opened.load_model(), tokenizer, SENTENCE, target, options)


@pytest.mark.parametrize(("kind", "style"), [*zip(KINDS, (*STYLES, *STYLES), strict=False)])
def test_attention_draws_every_kind(
    checkpoint: Path, tmp_path: Path, kind: str, style: str
) -> None:
    sizes = []
    for layer in ("1", "all"):
        out = tmp_path / f"{layer}.png"
        arguments = ("--kind", kind, "--style", style, "--layer", layer, "--head", "2")
        done = run("attention", "--checkpoint", checkpoint, SENTENCE, *arguments, "--output", out)
        assert (done.exit_code, done.output) == (0, "")
        sizes.append(png_size(out))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > 1.5 * sizes[0][1]  # a panel for each of the two layers


def test_attention_as_json(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("attention", "--checkpoint", checkpoint, SENTENCE, "--json", "--beam-size", 1)
    assert list(tmp_path.iterdir()) == []
    value = json.loads(done.stdout)
    found = expected(checkpoint, None, SearchOptions(beam_size=1))
    assert value["translation"] == found.translation
    cross = found.maps["cross"]
    assert (value["kind"], tuple(value["query"]), tuple(value["key"])) == (
        "cross",
        cross.query,
        cross.key,
    )
    (layer,) = value["layers"]  # the top layer
    assert layer["layer"] == 2
    assert [head["head"] for head in layer["heads"]] == [1, 2, 3, 4]
    weights = np.array([head["weights"] for head in layer["heads"]])
    np.testing.assert_allclose(weights, cross.weights[1].numpy(), atol=1e-6)


def test_attention_of_a_parsed_sentence(parser_run: Path, tmp_path: Path) -> None:
    arguments = ("attention", "--checkpoint", parser_run, "the red dog sees the cat .")
    value = json.loads(run(*arguments, "--json", "--beam-size", 1).stdout)
    tokenizer = Tokenizer(*open_checkpoint(parser_run).tokenizers)
    labels = tokenizer.target_pieces(tokenizer.encode_target(value["translation"]))
    assert value["query"] == [*labels, "</s>"]
    assert any(label.startswith("\u2581(") for label in labels)
    assert (
        "".join(value["key"])
        == "\u2581the\u2581red\u2581dog\u2581sees\u2581the\u2581cat\u2581.</s>"
    )
    (head, _) = value["layers"][0]["heads"]
    assert np.shape(head["weights"]) == (len(value["query"]), len(value["key"]))

    tree = "(S (NP (DT the) (JJ red) (NN dog)) (VP (VBZ sees) (NP (DT the) (NN cat))) (. .))"
    gold = "(S (NP DT JJ NN )NP (VP VBZ (NP DT NN )NP )VP . )S"
    for given in (tree, gold):
        forced = json.loads(run(*arguments, "--translation", given, "--json").stdout)
        assert forced["query"] == [*(f"\u2581{label}" for label in gold.split()), "</s>"]
        assert forced["translation"] == gold
    out = tmp_path / "parse.svg"
    assert run(*arguments, "--translation", tree, "--output", out).exit_code == 0
    assert "(VP" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SENTENCE, "--layer", "3"), "the layers of the decoder are 1 to 2"),
        ((SENTENCE, "--layer", "top", "--kind", "encoder"), "the layers of the encoder are 1 to 2"),
        ((SENTENCE, "--head", "0"), "--head"),
        (("  ",), "sentence is empty"),
        ((SENTENCE, "--output", "a.gif"), "must end in one of .png"),
    ],
)
def test_attention_says_what_is_wrong(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("attention", "--checkpoint", checkpoint, *arguments)
    assert done.exit_code == (1 if "is empty" in message else 2)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []

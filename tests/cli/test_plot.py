"""`translate-trt plot` and `translate-trt attention` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.attention import attention_weights
from translate_trt.train.checkpoint import Checkpoint

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    entry = {"step": 2, "epoch": 1, "loss": 1.0, "learning_rate": 1.0}
    (tmp_path / "run").mkdir()
    text = json.dumps({**entry, "target_tokens_per_second": 1.0}) + "\n"
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    return tmp_path / "run"


def test_plot_writes_into_the_run_again_and_again(run_directory: Path) -> None:
    for _ in range(2):
        done = run("plot", run_directory)
        assert (done.exit_code, done.stdout) == (0, f"{run_directory / 'curves.png'}\n")
    assert (run_directory / "curves.png").read_bytes()[:8] == PNG


def test_plot_does_not_replace_a_named_picture(run_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.png"
    assert run("plot", run_directory, run_directory, "--out", out).exit_code == 0
    done = run("plot", run_directory, "--out", out)
    assert done.exit_code == 1
    assert "--force" in done.stderr
    assert run("plot", run_directory, "--out", out, "--force").exit_code == 0
    done = run("plot", tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "metrics.jsonl" in done.stderr


@pytest.mark.parametrize("style", ["lines", "matrix"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_attention_is_drawn(kind: str, style: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "picture.png"
    arguments = ("attention", "the cat runs", "--checkpoint", checkpoint.path, "--kind", kind)
    done = run(*arguments, "--style", style, "--layer", 1, "--head", 2, "--out", out)
    assert (done.exit_code, done.stdout) == (0, f"{out}\n")
    assert out.read_bytes()[:8] == PNG
    assert run(*arguments, "--out", out).exit_code == 1  # exists


def test_attention_as_numbers(checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer(checkpoint.tokenizer, checkpoint.tokenizer)
    source = tokenizer.encode_source("the big cat")
    target = tokenizer.encode_target("Haus Hund")
    expected = attention_weights(checkpoint.load_model(), source, target).cross
    base = ("attention", "the big cat", "--checkpoint", checkpoint.path, "--json")
    for flags, layer, heads in (
        ((), 1, [0, 1, 2, 3]),
        (("--layer", 1, "--head", 4, "--head", 2), 0, [3, 1]),
    ):
        done = run(*base, "--translation", "Haus Hund", *flags)
        value = json.loads(done.stdout)
        assert value["layer"] == layer + 1
        assert value["heads"] == [head + 1 for head in heads]
        np.testing.assert_allclose(value["weights"], expected[layer][heads], atol=1e-6)
        assert value["queries"][0] == "<s>"
        assert value["keys"][-1] == "</s>"
        assert "".join(value["queries"][1:]).replace("\u2581", " ").strip() == "Haus Hund"
    own = json.loads(run(*base).stdout)  # of the model's own translation
    assert own["keys"] == value["keys"]
    assert len(own["queries"]) >= 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["the cat", "--layer", "3"], "the model has layers 1 to 2"),
        (["the cat", "--layer", "0"], "the model has layers 1 to 2"),
        (["the cat", "--head", "5"], "the model has heads 1 to 4"),
        (["  "], "the sentence is empty"),
        (["the cat " * 40], "a picture has room for 60"),
        (["the cat", "--out", "a.bmp"], "the file's ending says the format"),
    ],
)
def test_what_cannot_be_drawn(
    flags: list[str], message: str, checkpoint: Checkpoint, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = run("attention", *flags, "--checkpoint", checkpoint.path)
    assert done.exit_code == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())

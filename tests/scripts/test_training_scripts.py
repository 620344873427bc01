"""The scripts for Table 3 and WMT14, on a model and a corpus that take seconds."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.scripts import run_script

pytestmark = pytest.mark.nightly

SMALL = "--device cpu --threads 1 --precision fp32 --d-model 32 --d-ff 32 --steps 6 --log-every 2"
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five-six": "fünf-sechs"}


def run(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    done = run_script(script, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    flags = []
    for name, option, count in (("train", "--from", 200), ("v", "--valid", 9), ("t", "--test", 9)):
        rows = [rng.choices(list(WORDS), k=rng.randint(1, 8)) for _ in range(count)]
        for language, words in (("en", dict(zip(WORDS, WORDS, strict=True))), ("de", WORDS)):
            text = "".join(" ".join(words[word] for word in row) + "\n" for row in rows)
            (directory / f"{name}.{language}").write_text(text, encoding="utf-8")
        flags += [option, directory / f"{name}.en", directory / f"{name}.de"]
    out = directory / "prepared"
    program = [sys.executable, "-m", "translate_trt.runtime.cli"]
    options = ["--output", out, "--vocabulary-size", "300", "--workers", "1"]
    subprocess.run([*program, "data", "prepare", *flags, *options], check=True)
    return out


def test_table_3_is_trained_and_printed(data: Path, tmp_path: Path) -> None:
    arguments = ("table3.sh", data, tmp_path / "out", "tiny", "plain", "h1", "smoothing0.0")
    done = run(*arguments, PARALLEL="2", DEVICE="cpu", OPTIONS=SMALL)
    report = json.loads((tmp_path / "out/table3.json").read_text())
    assert list(report["results"]) == ["plain", "h1", "smoothing0.0"]
    for name, row in report["results"].items():
        (found,) = row["runs"]
        assert found["perplexity"] > 1
        assert (found["steps"], found["seed"]) == (6, 1)
        assert "tok:moses-de" in found["tokenized_signature"]  # as the paper's numbers beside it
        (line,) = (line for line in done.stdout.splitlines() if f"| {name} |" in line)
        assert f"| {math.log(found['perplexity']):.2f} | {found['bleu']:.2f} |" in line
        assert ("did not train" in line) == (math.log(found["perplexity"]) >= found["unigram_loss"])
    assert "1.67 | 24.9" in done.stdout  # the paper's
    heads = {
        name: json.loads((tmp_path / "out" / name / "run.json").read_text())["model"]["heads"]
        for name in ("plain-seed1", "h1-seed1")
    }
    assert heads == {"plain-seed1": 4, "h1-seed1": 1}
    # Again: nothing is trained anew but the seed that is added.
    before = (tmp_path / "out/h1-seed1/metrics.jsonl").stat().st_mtime_ns
    run(*arguments[:4], "plain", SEEDS="1 2", DEVICE="cpu", OPTIONS=SMALL)
    assert (tmp_path / "out/h1-seed1/metrics.jsonl").stat().st_mtime_ns == before
    report = json.loads((tmp_path / "out/table3.json").read_text())
    seeds = {name: [run["seed"] for run in row["runs"]] for name, row in report["results"].items()}
    assert seeds == {"plain": [1, 2], "h1": [1], "smoothing0.0": [1]}


def test_wmt14_is_trained_by_a_group_and_scored(data: Path, tmp_path: Path) -> None:
    options = f"{SMALL} --checkpoint-every 3 --heads 2 --warmup-steps 10"
    done = run("train_wmt14.sh", "en-de", "base", tmp_path / "out", data, GPUS="2", OPTIONS=options)
    settings = json.loads((tmp_path / "out/run/run.json").read_text())
    assert settings["train"]["batch_tokens"] == 25_000
    assert (tmp_path / "out/run/checkpoint-averaged/config.json").exists()
    assert "BLEU" in done.stdout
    assert "step 6/6" in done.stderr


def test_a_row_that_a_preset_lacks_is_named_before_training(tmp_path: Path) -> None:
    done = run_script("table3.sh", tmp_path, tmp_path / "out", "tiny", "plain", "n2")
    assert done.returncode == 1
    assert "tiny-n2" in done.stderr
    assert not (tmp_path / "out").exists()

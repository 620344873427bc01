"""A run from files to a checkpoint: it learns, survives being killed, and goes on exactly."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from translate_trt.runtime.errors import CheckpointError, InputError, OptionError, OutputError
from translate_trt.train.checkpoint import AVERAGED, numbered_checkpoints
from translate_trt.train.run import TextPair, prepare_job, train_model
from translate_trt.train.trainer import Trainer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
SETTINGS: dict[str, Any] = {
    "vocabulary_size": 320,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 32,
    "d_ff": 32,
    "heads": 2,
    "dropout": 0.2,
    "batch_tokens": 256,
    "micro_batch_tokens": 128,
    "warmup_steps": 20,
    "steps": 12,
    "checkpoint_every": 4,
    "validate_every": 0,
    "log_every": 4,
    "average_checkpoints": 2,
}
CPU = torch.device("cpu")


def write_pairs(directory: Path, name: str, count: int, seed: int) -> TextPair:
    rng = random.Random(seed)
    rows = [[rng.randrange(10) for _ in range(rng.randint(1, 8))] for _ in range(count)]
    for language, words in (("en", WORDS), ("de", GERMAN)):
        text = "".join(" ".join(words[index] for index in row) + "\n" for row in rows)
        (directory / f"{name}.{language}").write_text(text, encoding="utf-8")
    return TextPair(directory / f"{name}.en", directory / f"{name}.de")


@pytest.fixture
def text(tmp_path: Path) -> tuple[TextPair, TextPair]:
    return write_pairs(tmp_path, "train", 200, 1), write_pairs(tmp_path, "valid", 10, 2)


def run(text: tuple[TextPair, TextPair], out: Path, resume: bool = False, **changes: Any) -> Path:
    settings = {**SETTINGS, **changes}
    job = prepare_job(text[0], text[1], out, "tiny", settings, resume=resume)
    return train_model(job, CPU, resume)


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def assert_equal(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def command(text: tuple[TextPair, TextPair], out: Path, *more: str, **changes: Any) -> list[str]:
    flags = [
        part
        for name, value in {**SETTINGS, **changes}.items()
        for part in ("--" + name.replace("_", "-"), str(value))
    ]
    program = "import sys; from translate_trt.runtime.cli import main; main()"
    files = ["--train", *map(str, vars(text[0]).values())]
    files += ["--valid", *map(str, vars(text[1]).values())]
    return [sys.executable, "-c", program, "train", "--config", "tiny", "--threads", "1",
            "--out", str(out), *files, *flags, *more]  # fmt: skip


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until a checkpoint of that step or later stands there; the run must not have ended."""
    for _ in range(1200):
        found = numbered_checkpoints(out)
        if found and int(found[-1].name.rpartition("-")[2]) >= step:
            return
        assert process.poll() is None, "training ended too early"
        time.sleep(0.1)
    raise AssertionError(f"no checkpoint of step {step} after two minutes")


def test_it_learns(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    out = tmp_path / "run"
    averaged = run(text, out, steps=120, checkpoint_every=60, dropout=0.0)
    assert averaged == out / AVERAGED
    entries = [json.loads(line) for line in (out / "training.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in entries if "loss" in entry]
    assert losses[-1] < 0.6 * losses[0]
    assert "averaged" in entries[-1]
    assert 0 <= entries[-1]["averaged"]["bleu"] <= 100


def test_the_average_is_of_the_last_checkpoints(
    text: tuple[TextPair, TextPair], tmp_path: Path
) -> None:
    averaged = weights(run(text, tmp_path / "run"))
    kept = numbered_checkpoints(tmp_path / "run")
    assert [path.name for path in kept] == ["checkpoint-00000008", "checkpoint-00000012"]
    one, two = map(weights, kept)
    for name, tensor in averaged.items():
        expected = (one[name].double() + two[name].double()) / 2
        assert torch.equal(tensor, expected.float())


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_weights(
    text: tuple[TextPair, TextPair], tmp_path: Path
) -> None:
    # Checkpoints of steps 200, 400, ...: the kill comes at an arbitrary step between two of them.
    changes = {"steps": 1000, "checkpoint_every": 200}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(text, whole, **changes), check=True, capture_output=True)
    with subprocess.Popen(
        command(text, broken, **changes), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_for_step(broken, 200, process)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (broken / AVERAGED).exists()
    subprocess.run(command(text, broken, "--resume", **changes), check=True, capture_output=True)
    for name in (AVERAGED, "checkpoint-00001000"):
        assert_equal(whole / name, broken / name)


@pytest.mark.slow
def test_interrupted_saves_and_resumes(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    changes = {"steps": 100_000, "checkpoint_every": 50}
    with subprocess.Popen(
        command(text, out, **changes), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_for_step(out, 50, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    step = int(numbered_checkpoints(out)[-1].name.rpartition("-")[2])
    assert f"stopped at step {step}" in errors
    more = {"steps": step + 5, "checkpoint_every": 50}
    subprocess.run(command(text, out, "--resume", **{**changes, "steps": step + 5}),
                   check=True, capture_output=True)  # fmt: skip
    subprocess.run(command(text, whole, **more), check=True, capture_output=True)
    name = f"checkpoint-{step + 5:08d}"
    assert_equal(out / name, whole / name)


def test_resume_with_dropout_in_one_process(
    text: tuple[TextPair, TextPair], tmp_path: Path
) -> None:
    run(text, tmp_path / "whole", steps=11)
    run(text, tmp_path / "parts", steps=7)
    run(text, tmp_path / "parts", resume=True, steps=11)
    name = "checkpoint-00000011"
    assert_equal(tmp_path / "whole" / name, tmp_path / "parts" / name)


def test_resume_before_the_first_checkpoint_starts_over(
    text: tuple[TextPair, TextPair], tmp_path: Path
) -> None:
    run(text, tmp_path / "whole")
    prepare_job(text[0], text[1], tmp_path / "killed", "tiny", SETTINGS)  # no step was taken
    run(text, tmp_path / "killed", resume=True)
    assert_equal(tmp_path / "whole" / AVERAGED, tmp_path / "killed" / AVERAGED)


def test_a_resumed_run_keeps_its_settings(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    run(text, tmp_path / "run")
    with pytest.raises(OptionError, match="d_ff"):
        run(text, tmp_path / "run", resume=True, d_ff=64)


def test_other_data_is_noticed(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    run(text, tmp_path / "run")
    other = write_pairs(tmp_path, "other", 200, 9), text[1]
    with pytest.raises(CheckpointError, match="other data"):
        run(other, tmp_path / "run", resume=True, steps=20)


def test_a_damaged_checkpoint_is_named(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    run(text, tmp_path / "run")
    path = numbered_checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        run(text, tmp_path / "run", resume=True, steps=20)


def test_an_existing_directory(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    run(text, tmp_path / "run", steps=2)
    with pytest.raises(OutputError, match=r"--resume.*--force"):
        run(text, tmp_path / "run", steps=2)
    assert (tmp_path / "run" / AVERAGED).exists()
    job = prepare_job(text[0], text[1], tmp_path / "run", "tiny", SETTINGS, force=True)
    assert not (job.out / AVERAGED).exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years")
    with pytest.raises(OutputError, match="will not delete"):
        prepare_job(text[0], text[1], precious, "tiny", SETTINGS, force=True)
    assert (precious / "thesis.txt").exists()


def test_unequal_and_empty_files(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    out = tmp_path / "run"
    unequal = TextPair(text[0].source, text[1].target)
    with pytest.raises(InputError, match=r"200 lines.*10"):
        prepare_job(unequal, text[1], out, "tiny", SETTINGS)
    empty = TextPair(tmp_path / "empty.en", tmp_path / "empty.de")
    empty.source.touch()
    empty.target.touch()
    with pytest.raises(InputError, match="is empty"):
        prepare_job(empty, text[1], out, "tiny", SETTINGS)
    assert not out.exists()


def test_gradients_accumulate(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    job = prepare_job(text[0], text[1], tmp_path / "run", "tiny", {**SETTINGS, "dropout": 0.0})
    batches = [job.data.batch(torch.arange(first, first + 20).numpy()) for first in (0, 20, 40)]
    whole = job.data.batch(torch.arange(60).numpy())
    results = []
    for parts in (batches, [whole]):
        trainer = Trainer(job, CPU)
        trainer.optimizer.step = lambda: None  # type: ignore[assignment,method-assign,misc,return-value]
        trainer.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        loss, _, tokens = trainer._optimizer_step(parts)
        gradients = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
        results.append((loss, tokens, gradients))
    assert results[0][1] == results[1][1]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for one, other in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_bf16_is_near_fp32(text: tuple[TextPair, TextPair], tmp_path: Path) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        out = tmp_path / precision
        run(text, out, steps=4, log_every=4, dropout=0.0, precision=precision)
        losses.append(json.loads((out / "training.jsonl").read_text().splitlines()[0])["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def test_a_loss_that_is_no_number_stops_the_run(
    text: tuple[TextPair, TextPair], tmp_path: Path
) -> None:
    job = prepare_job(text[0], text[1], tmp_path / "run", "tiny", SETTINGS)
    trainer = Trainer(job, CPU)
    with torch.no_grad():
        trainer.model.embedding.weight.fill_(float("nan"))
    with pytest.raises(Exception, match="the loss is nan at step 1"):
        trainer.run()
    assert numbered_checkpoints(job.out) == []

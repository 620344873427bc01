"""Distributed training with gloo on the CPU, started by torchrun: equal to a single process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from support.paths import ROOT
from support.runs import train_arguments

from translate_trt.runtime.cli import main
from translate_trt.train.checkpoint import AVERAGED, numbered_checkpoints
from translate_trt.train.trainer.distributed import Group, choose_device
from translate_trt.train.trainer.job import Job
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.metrics import read_metrics

pytestmark = pytest.mark.slow

MEMBER = ROOT / "tests/support/group_member.py"
Text = TextFiles
Settings = dict[str, Any]


def torchrun(processes: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(processes), *arguments]  # fmt: skip


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def losses(out: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(out) if "loss" in entry]


def rows_taken(directory: Path, rounds: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(directory.glob(f"{rounds}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@pytest.fixture
def exact(settings: Settings) -> Settings:
    """Settings without dropout, which differs between processes; every step is logged."""
    return {
        **settings,
        "dropout": 0.0,
        "initialization": "xavier",
        "clip_norm": 3.2,  # by these weights, of some steps, not of all
        "micro_batch_tokens": 64,
        "log_every": 1,
        "steps": 24,
        "checkpoint_every": 8,
        "warmup_steps": 400,  # weights move by 1e-3, and rounding is not blown up by Adam
    }


@pytest.fixture(scope="module")
def train_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Text, Settings], Path]:
    """Function that trains in this process, once for equal settings."""
    runs: dict[str, Path] = {}

    def train(text: Text, settings: Settings) -> Path:
        key = json.dumps(settings)
        if key not in runs:
            out = tmp_path_factory.mktemp("alone") / "run"
            done = CliRunner().invoke(main, train_arguments(text, out, settings))
            assert done.exit_code == 0, (done.output, done.exception)
            runs[key] = out
        return runs[key]

    return train


@pytest.mark.parametrize(
    ("processes", "batch_tokens"),
    [
        (2, 256),
        pytest.param(3, 256, marks=pytest.mark.nightly),
        pytest.param(4, 16, marks=pytest.mark.nightly),
    ],
)
def test_a_group_trains_like_one_process(
    processes: int, batch_tokens: int, text: Text, exact: Settings, tmp_path: Path,
    train_alone: Callable[[Text, Settings], Path],
) -> None:  # fmt: skip
    # 16 tokens are 1 to 8 sentences a step: of four processes, some have none.
    exact["batch_tokens"] = batch_tokens
    group, rows = tmp_path / "group", tmp_path / "rows"
    rows.mkdir()
    alone = train_alone(text, exact)
    command = torchrun(processes, str(MEMBER), *train_arguments(text, group, exact))
    done = run(command, ROWS_DIRECTORY=str(rows))
    assert done.stdout.split() == [str(group / AVERAGED)]  # only one process prints
    shares = [entry["rows"] for entry in rows_taken(rows, "0")]
    assert any(not share for share in shares) == (batch_tokens == 16)
    assert losses(group) == pytest.approx(losses(alone), rel=1e-5)
    shares_clipped = [entry["clipped_share"] for entry in read_metrics(alone) if "loss" in entry]
    assert 0 < sum(shares_clipped) < len(shares_clipped)
    for name in ("checkpoint-00000024", AVERAGED):
        one, other = (load_file(out / name / "model.safetensors") for out in (alone, group))
        start = load_file(alone / "checkpoint-00000016" / "model.safetensors")
        for key, tensor in one.items():
            if key.endswith("key.bias"):
                # Softmax does not change if all its scores grow alike, so the true gradient is
                # zero: Adam makes steps of its rounding error, in no direction that matters.
                continue
            torch.testing.assert_close(other[key], tensor, atol=1e-5, rtol=0)
            if name != AVERAGED:
                assert float((tensor - start[key]).abs().max()) > 1e-4  # the weights changed


@pytest.mark.nightly
def test_a_process_that_dies_costs_no_sentence(text: Text, exact: Settings, tmp_path: Path) -> None:
    out, whole, rows = tmp_path / "run", tmp_path / "whole", tmp_path / "rows"
    rows.mkdir()
    exact |= {"steps": 20, "checkpoint_every": 4, "average_checkpoints": 9}
    out.mkdir()
    (out / "run.json").write_text(
        '{"model": {}, "train": {}}'
    )  # of an old run: --force is for it, not for the new one
    arguments = train_arguments(text, out, exact, "--force")
    command = torchrun(2, "--max-restarts", "1", str(MEMBER), *arguments)
    done = run(command, ROWS_DIRECTORY=str(rows), DIE_AT_STEP="10")
    assert "continuing from" in done.stderr
    first, second = rows_taken(rows, "0"), rows_taken(rows, "1")
    assert {entry["step"] for entry in first} >= set(range(1, 10))
    resumed = min(entry["step"] for entry in second)
    assert resumed in (5, 9)  # the checkpoint of step 8, or if it was under way, of step 4
    # What counts: the first round up to the checkpoint, and the second.
    counted = [entry for entry in first if entry["step"] < resumed] + second
    epochs: dict[int, Counter[int]] = {}
    position = (0, 0)
    for entry in sorted(counted, key=lambda entry: entry["step"]):
        epoch, index = entry["epoch"]
        epochs.setdefault(epoch - (index == 0), Counter()).update(entry["rows"])
        position = max(position, (epoch, index))
    assert position[0] >= 1  # at least one epoch is whole
    for epoch in range(position[0]):
        assert epochs[epoch] == Counter(range(200))
    # The result is bit-identical to that of an undisturbed run.
    run(
        torchrun(2, str(MEMBER), *train_arguments(text, whole, exact)), ROWS_DIRECTORY=str(tmp_path)
    )
    one, other = (
        load_file(path / "checkpoint-00000020/model.safetensors") for path in (out, whole)
    )
    for key, tensor in one.items():
        assert torch.equal(tensor, other[key]), key


@pytest.mark.nightly
def test_a_run_of_two_processes_resumes_with_three(
    text: Text, exact: Settings, tmp_path: Path, train_alone: Callable[[Text, Settings], Path]
) -> None:
    changed, rows = tmp_path / "changed", tmp_path / "rows"
    rows.mkdir()
    environment = {"ROWS_DIRECTORY": str(rows)}
    run(
        torchrun(2, str(MEMBER), *train_arguments(text, changed, {**exact, "steps": 8})),
        **environment,
    )
    run(torchrun(3, str(MEMBER), *train_arguments(text, changed, exact, "--resume")), **environment)
    assert losses(changed) == pytest.approx(losses(train_alone(text, exact)), rel=1e-5)


@pytest.mark.nightly
def test_sigterm_to_torchrun_saves_and_ends_in_peace(
    text: Text, exact: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    exact |= {"steps": 100_000, "checkpoint_every": 100_000}
    command = torchrun(2, "-m", "translate_trt.runtime.cli", *train_arguments(text, out, exact))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        for _ in range(4000):
            if (out / "metrics.jsonl").exists() and read_metrics(out):
                break
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.03)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    (path,) = numbered_checkpoints(out)
    step = int(path.name.rpartition("-")[2])
    assert f"stopped at step {step}; continue with --resume" in errors
    assert (path / "training/state.json").exists()


@pytest.mark.nightly
def test_torchrun_continues_only_the_run_that_it_began(
    text: Text, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    ends = "killed"

    class Recorded:
        def __init__(self, _job: Job, _group: Group, resume: bool) -> None:
            begun.append(resume)

        def run(self) -> Path | None:
            if ends == "killed":
                raise RuntimeError("a process has died")
            return out / AVERAGED if ends == "finished" else None

    monkeypatch.setattr("translate_trt.train.trainer.loop.Trainer", Recorded)
    out = tmp_path / "run"

    def train(session: str | None, *more: str) -> int:
        if session is None:
            monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        else:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", session)
        # Whatever the count: each machine has its own, and a process that refuses is restarted.
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        return CliRunner().invoke(main, train_arguments(text, out, settings, *more)).exit_code

    def begins(session: str | None, *more: str) -> list[bool]:
        begun.clear()
        assert train(session, *more) == (1 if ends == "killed" or not begun else 0)
        return list(begun)

    assert begins(None) == [False]
    assert begins(None) == begins("a") == []  # a run of another is refused
    assert begins("a", "--force") == [False]
    assert begins("a") == begins("a", "--force") == [True]
    assert begins("none") == []  # without --rdzv-id
    assert begins("none", "--force") == [False]
    assert begins("none") == [True]
    assert begins("a", "--resume") == begins("a") == [True]
    ends = "SIGTERM"  # of torchrun, or because a machine has joined
    assert begins("a") == begins("a") == [True]
    ends = "finished"
    assert begins("a") == [True]
    # It has ended; another torchrun may have the same --rdzv-id.
    assert begins("a") == []
    assert begins("a", "--force") == [False]
    assert begins(None) == []


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(Exception, match="process 2"):
        choose_device("cuda")

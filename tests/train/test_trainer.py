"""Training: it learns, survives being killed, and goes on exactly where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from translate_trt.runtime.errors import CheckpointError, TranslateTrtError
from translate_trt.train import trainer as trainer_module
from translate_trt.train.checkpoint import AVERAGED, numbered_checkpoints
from translate_trt.train.data import Batch
from translate_trt.train.run import TextPair, prepare_job
from translate_trt.train.trainer import Trainer

Text = tuple[TextPair, TextPair]
Run = Callable[..., Path]
Settings = dict[str, Any]
CPU = torch.device("cpu")


def entries(out: Path) -> list[dict[str, Any]]:
    lines = (out / "training.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def last_step(out: Path) -> int:
    """The last step that training.jsonl tells of; 0 before the first."""
    return int(entries(out)[-1]["step"]) if (out / "training.jsonl").exists() else 0


def saved_step(out: Path) -> int:
    """The step of the latest checkpoint; 0 before the first."""
    found = numbered_checkpoints(out)
    return int(found[-1].name.rpartition("-")[2]) if found else 0


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def assert_equal_tensors(one: Path, other: Path) -> None:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def assert_equal(one: Path, other: Path) -> None:
    """Two checkpoints, what resuming would need of them included, are the same bit by bit."""
    assert_equal_tensors(one / "model.safetensors", other / "model.safetensors")
    assert (one / "training").exists() == (other / "training").exists()
    if (one / "training").exists():
        name = "training/optimizer.safetensors"
        assert_equal_tensors(one / name, other / name)
        name = "training/state.json"
        assert (one / name).read_text() == (other / name).read_text()


def command(text: Text, out: Path, settings: Settings, *more: str) -> list[str]:
    flags = [
        part
        for name, value in settings.items()
        for part in ("--" + name.replace("_", "-"), str(value))
    ]
    program = "from translate_trt.runtime.cli import main; main()"
    files = ["--train", *map(str, vars(text[0]).values())]
    files += ["--valid", *map(str, vars(text[1]).values())]
    return [sys.executable, "-c", program, "train", "--config", "tiny", "--threads", "1",
            "--device", "cpu", "--out", str(out), *files, *flags, *more]  # fmt: skip


def train_until(
    reached: Callable[[], bool], send: signal.Signals, arguments: list[str]
) -> tuple[int, str]:
    """Start that command, send it the signal once `reached`; its return code and stderr."""
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        for _ in range(4000):
            if reached():
                break
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.03)
        else:
            process.kill()
            raise AssertionError("it did not get there in two minutes")
        process.send_signal(send)
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def test_it_learns(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    averaged = run(out, steps=120, checkpoint_every=60, validate_every=60, dropout=0.0)
    assert averaged == out / AVERAGED
    logged = entries(out)
    losses = [entry["loss"] for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in logged if "loss" in entry] == list(range(4, 121, 4))
    assert losses[-1] < 0.6 * losses[0]
    assert [entry["step"] for entry in logged if "validation" in entry] == [60]
    assert logged[-1]["averaged"]["loss"] < losses[0]
    assert 0 <= logged[-1]["averaged"]["bleu"] <= 100


def test_the_average_is_of_the_last_checkpoints(run: Run, tmp_path: Path) -> None:
    averaged = weights(run(tmp_path / "run"))
    kept = numbered_checkpoints(tmp_path / "run")
    assert [path.name for path in kept] == ["checkpoint-00000008", "checkpoint-00000012"]
    one, two = map(weights, kept)
    for name, tensor in averaged.items():
        expected = (one[name].double() + two[name].double()) / 2
        assert torch.equal(tensor, expected.float())


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_weights(
    run: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    # Killed while the steps after a checkpoint were under way; they are lost and done again.
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings |= {"checkpoint_every": 20, "log_every": 1}
    code, _ = train_until(
        lambda: saved_step(broken) >= 40 and last_step(broken) % 20 >= 3,
        signal.SIGKILL,
        command(text, broken, {**settings, "steps": 100_000}),
    )
    assert code == -signal.SIGKILL
    assert not (broken / AVERAGED).exists()
    steps = saved_step(broken) + 25
    subprocess.run(command(text, broken, {**settings, "steps": steps}, "--resume"),
                   check=True, capture_output=True)  # fmt: skip
    run(whole, **{**settings, "steps": steps})
    for name in (AVERAGED, f"checkpoint-{steps:08d}"):
        assert_equal(whole / name, broken / name)


@pytest.mark.slow
def test_interrupted_saves_and_resumes(
    run: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    settings |= {"checkpoint_every": 100_000, "log_every": 1}
    code, errors = train_until(
        lambda: last_step(out) >= 5,
        signal.SIGINT,
        command(text, out, {**settings, "steps": 100_000}),
    )
    assert code == 130, errors
    step = saved_step(out)
    assert step >= 5
    assert f"stopped at step {step}; continue with --resume" in errors
    run(out, resume=True, **{**settings, "steps": step + 5})
    run(whole, **{**settings, "steps": step + 5})
    name = f"checkpoint-{step + 5:08d}"
    assert_equal(out / name, whole / name)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_starts_over(
    run: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    settings |= {"checkpoint_every": 100_000, "log_every": 1}
    code, _ = train_until(
        lambda: last_step(out) >= 2,
        signal.SIGKILL,
        command(text, out, {**settings, "steps": 100_000}),
    )
    assert code == -signal.SIGKILL
    assert numbered_checkpoints(out) == []
    run(out, resume=True, **{**settings, "steps": 12})
    run(whole, **{**settings, "steps": 12})
    for name in (AVERAGED, "checkpoint-00000012"):
        assert_equal(out / name, whole / name)


@pytest.mark.parametrize("looks", range(5))
def test_a_signal_at_any_moment_stops_only_what_was_saved(
    looks: int, text: Text, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(trainer_module.StopRequest):
        """A signal that arrives between one look of the loop and the next."""

        left = looks

        @property
        def signal(self) -> int | None:
            self.left -= 1
            return None if self.left >= 0 else int(signal.SIGINT)

        @signal.setter
        def signal(self, value: int | None) -> None:
            pass

    monkeypatch.setattr(trainer_module, "StopRequest", Later)
    settings["checkpoint_every"] = 100
    trainer = Trainer(prepare_job(*text, tmp_path / "run", "tiny", settings), CPU)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.step < settings["steps"]
    assert saved_step(tmp_path / "run") == trainer.step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_interrupts_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with trainer_module.StopRequest() as stop:
        assert stop.signal is None
        signal.raise_signal(number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_resume_with_dropout_in_one_process(run: Run, tmp_path: Path) -> None:
    # 200 pairs are a dozen batches: the seam at step 7 lies within the second epoch.
    run(tmp_path / "whole", steps=11)
    run(tmp_path / "parts", steps=7)
    run(tmp_path / "parts", resume=True, steps=11)
    name = "checkpoint-00000011"
    state = json.loads((tmp_path / "whole" / name / "training/state.json").read_text())
    assert state["epoch"] > 0
    assert_equal(tmp_path / "whole" / name, tmp_path / "parts" / name)


def test_the_seed_decides(run: Run, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        run(tmp_path / name, steps=2, seed=seed)
    name = "checkpoint-00000002"
    assert_equal(tmp_path / "one" / name, tmp_path / "again" / name)
    with pytest.raises(AssertionError):
        assert_equal(tmp_path / "one" / name, tmp_path / "other" / name)


def test_a_damaged_checkpoint_is_named(run: Run, tmp_path: Path) -> None:
    run(tmp_path / "run")
    path = numbered_checkpoints(tmp_path / "run")[-1] / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        run(tmp_path / "run", resume=True, steps=20)


def gradients(trainer: Trainer, batches: list[Batch]) -> tuple[float, int, list[torch.Tensor]]:
    """Loss per token, target tokens and gradients of one step that changes no weight."""
    trainer.optimizer.step = lambda: None  # type: ignore[assignment,method-assign,misc]
    trainer.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    loss, _, tokens = trainer._optimizer_step(batches)
    found = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
    assert len(found) == len(list(trainer.model.parameters()))
    return loss, tokens, found


def test_gradients_accumulate(text: Text, settings: Settings, tmp_path: Path) -> None:
    job = prepare_job(*text, tmp_path / "run", "tiny", {**settings, "dropout": 0.0})
    quarters = [
        job.data.batch(torch.arange(first, last).numpy())
        for first, last in ((0, 10), (10, 30), (30, 35), (35, 60))  # of unequal token counts
    ]
    whole = job.data.batch(torch.arange(60).numpy())
    one, other = gradients(Trainer(job, CPU), quarters), gradients(Trainer(job, CPU), [whole])
    assert one[1] == other[1]
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    for first, second in zip(one[2], other[2], strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("batch_tokens", "micro_batch_tokens", "parts", "places"),
    [(256, 64, 4, 64), (256, 256, 1, 256), (100, 256, 1, 100), (150, 64, 2, 64)],
)
def test_a_step_takes_as_many_micro_batches_as_fit(
    batch_tokens: int,
    micro_batch_tokens: int,
    parts: int,
    places: int,
    text: Text,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings |= {"batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    trainer = Trainer(prepare_job(*text, tmp_path / "run", "tiny", settings), CPU)
    taken: list[list[Batch]] = []

    def note(batches: list[Batch]) -> None:
        taken.append(batches)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_optimizer_step", note)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert len(taken[0]) == parts
    for batch in taken[0]:
        assert max(batch.source.numel(), batch.previous.numel()) <= places


def test_the_learning_rate_is_the_schedules(text: Text, settings: Settings, tmp_path: Path) -> None:
    job = prepare_job(*text, tmp_path / "run", "tiny", settings)
    trainer = Trainer(job, CPU)
    for step in (1, 2):
        trainer._optimizer_step([job.data.batch(torch.arange(5).numpy())])
        expected = 0.8 * 32**-0.5 * step * 20**-1.5  # the preset's scale, within the warm-up
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)
    group = trainer.optimizer.param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)


def test_bf16_is_near_fp32(run: Run, tmp_path: Path) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        run(tmp_path / precision, steps=4, log_every=4, dropout=0.0, precision=precision)
        losses.append(entries(tmp_path / precision)[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]
    kept = weights(numbered_checkpoints(tmp_path / "bf16")[-1])
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}


def test_a_loss_that_is_no_number_stops_the_run(
    text: Text, settings: Settings, tmp_path: Path
) -> None:
    job = prepare_job(*text, tmp_path / "run", "tiny", settings)
    trainer = Trainer(job, CPU)
    with torch.no_grad():
        trainer.model.embedding.weight.fill_(float("nan"))
    with pytest.raises(TranslateTrtError, match="the loss is nan at step 1"):
        trainer.run()
    assert numbered_checkpoints(job.out) == []

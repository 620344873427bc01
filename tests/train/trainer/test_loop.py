"""Training loop: learning, exact resume, signals, damaged checkpoints, full disks."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import flip_bit, record_hashes
from support.runs import assert_equal_tensors, train_arguments

from translate_trt.runtime.errors import CheckpointError, OutputError, TranslateTrtError
from translate_trt.train import hashed_files
from translate_trt.train.checkpoint import (
    AVERAGED,
    BEST,
    numbered_checkpoints,
    open_checkpoint,
    selected_scores,
    step_of,
)
from translate_trt.train.data.batches import Batch
from translate_trt.train.shutdown import StopRequest
from translate_trt.train.trainer import loop as trainer_module
from translate_trt.train.trainer.checkpoints import average_weights
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.job import Job
from translate_trt.train.trainer.load_data import TextFiles
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.objective import Losses
from translate_trt.train.trainer.run import prepare_job
from translate_trt.train.trainer.steps import Step

pytestmark = pytest.mark.slow

Text = TextFiles
Run = Callable[..., Path]
Settings = dict[str, Any]
CPU = Group(torch.device("cpu"))


@pytest.fixture
def make_trainer(text: Text, settings: Settings, tmp_path: Path) -> Callable[..., Trainer]:
    """Function that begins a run in a directory."""

    def make(name: str = "run", **changes: Any) -> Trainer:
        job = prepare_job(text, tmp_path / name, "tiny", {**settings, **changes})
        return Trainer(job, CPU)

    return make


def test_a_new_model_has_the_initial_weights_of_its_recipe(
    make_trainer: Callable[..., Trainer],
) -> None:
    xavier, deepnet = (
        make_trainer(name, initialization=name).model.state_dict() for name in ("xavier", "deepnet")
    )
    name = "encoder.0.feed_forward.inner.weight"
    torch.testing.assert_close(deepnet[name], 0.87 * xavier[name])  # of 1 + 1 layers


def saved_step(out: Path) -> int:
    """Step of the latest checkpoint; 0 before the first."""
    found = numbered_checkpoints(out)
    return int(found[-1].name.rpartition("-")[2]) if found else 0


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def assert_equal(one: Path, other: Path) -> None:
    """Check that two checkpoints, including their training state, are bit-identical."""
    assert_equal_tensors(one, other)
    assert (one / "training").exists() == (other / "training").exists()
    if (one / "training").exists():
        assert_equal_tensors(one, other, "training/optimizer.safetensors")
        name = "training/state.json"
        assert (one / name).read_text() == (other / name).read_text()


def test_training_reduces_the_loss(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    averaged = run(out, steps=120, checkpoint_every=60, validate_every=60, dropout=0.0)
    assert averaged == out / AVERAGED
    logged = read_metrics(out)
    losses = [entry["loss"] for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in logged if "loss" in entry] == list(range(4, 121, 4))
    assert losses[-1] < 0.6 * losses[0]
    assert [entry["step"] for entry in logged if "validation" in entry] == [60, 120]
    assert logged[-1]["averaged"]["loss"] < losses[0]
    assert 0 <= logged[-1]["averaged"]["bleu"] <= 100


def test_the_average_is_of_the_last_checkpoints(trained: Run, tmp_path: Path) -> None:
    averaged = weights(trained(tmp_path / "run"))
    kept = numbered_checkpoints(tmp_path / "run")
    assert [path.name for path in kept] == ["checkpoint-00000008", "checkpoint-00000012"]
    one, two = map(weights, kept)
    for name, tensor in averaged.items():
        expected = (one[name].double() + two[name].double()) / 2
        assert torch.equal(tensor, expected.float())


def test_a_moving_average_takes_the_place_of_the_last_checkpoints(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer(steps=12, checkpoint_every=1, average_checkpoints=12, ema_decay=0.5)
    initial = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    averaged = weights(cast(Path, trainer.run()))
    for name, expected in initial.items():
        for step, path in enumerate(numbered_checkpoints(trainer.job.out), 1):
            share = min(0.5, (1 + step) / (10 + step))  # of the old average
            expected = share * expected + (1 - share) * weights(path)[name]
        assert torch.allclose(averaged[name], expected, atol=1e-6)


@pytest.mark.slow
def test_interrupted_saves_and_resumes(
    run: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    settings |= {"checkpoint_every": 100_000, "log_every": 1}
    program = "from translate_trt.runtime.cli import main; main()"
    endless = train_arguments(text, out, {**settings, "steps": 100_000})
    with subprocess.Popen(
        [sys.executable, "-c", program, *endless], stderr=subprocess.PIPE, text=True
    ) as process:
        while not (logged := read_metrics(out)) or logged[-1]["step"] < 5:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.03)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    step = saved_step(out)
    assert step >= 5
    assert f"stopped at step {step}; continue with --resume" in errors
    run(out, resume=True, **{**settings, "steps": step + 5})
    run(whole, **{**settings, "steps": step + 5})
    # The checkpoint of the signal is not averaged with those of the settings.
    for name in (AVERAGED, f"checkpoint-{step + 5:08d}"):
        assert_equal(out / name, whole / name)
    assert saved_step(out) == step + 5


@pytest.mark.parametrize("looks", range(5))
def test_a_signal_at_any_moment_stops_only_what_was_saved(
    looks: int, make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(trainer_module.StopRequest):
        """Signal that arrives between two polls of the loop."""

        left = looks

        @property
        def signal(self) -> int:
            self.left -= 1
            return 0 if self.left >= 0 else int(signal.SIGINT)

        @signal.setter
        def signal(self, value: int) -> None:
            pass

    monkeypatch.setattr(trainer_module, "StopRequest", Later)
    trainer = make_trainer(checkpoint_every=100)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.step < trainer.config.steps
    assert saved_step(trainer.job.out) == trainer.step


def test_a_second_interrupt_is_obeyed_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert stop.signal == 0
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_repeated_signal_changes_nothing(sent: signal.Signals) -> None:
    before = signal.getsignal(sent)
    with StopRequest() as stop:
        signal.raise_signal(sent)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == sent
    assert signal.getsignal(sent) is before


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer": "muon", "ema_decay": 0.7}, {"precision": "fp16"}], ids=str
)
def test_resume_with_dropout_in_one_process(
    changes: Settings, run: Run, trained: Run, text: Text, settings: Settings, tmp_path: Path
) -> None:
    # 200 pairs are a dozen batches: the seam at step 7 lies within the second epoch.
    trained(tmp_path / "whole", steps=11, **changes)
    trained(tmp_path / "parts", steps=7, **changes)
    prepare_job(text, tmp_path / "begun", "tiny", {**settings, **changes, "steps": 11})  # no step
    name = "checkpoint-00000011"
    state = json.loads((tmp_path / "whole" / name / "training/state.json").read_text())
    assert state["epoch"] > 0
    for parts in ("parts", "begun"):
        precision = changes.get("precision", "fp32")
        run(tmp_path / parts, resume=True, steps=11, precision=precision)
        for one in (name, AVERAGED):
            assert_equal(tmp_path / "whole" / one, tmp_path / parts / one)


def test_the_seed_decides(run: Run, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        run(tmp_path / name, steps=2, seed=seed)
    name = "checkpoint-00000002"
    assert_equal(tmp_path / "one" / name, tmp_path / "again" / name)
    with pytest.raises(AssertionError):
        assert_equal(tmp_path / "one" / name, tmp_path / "other" / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("training/state.json", r"state\.json"),
        ("flipped bit", r"model\.safetensors"),
        ("flipped bit of the optimizer", r"optimizer\.safetensors"),
        ("not a number", r"embedding\.weight\.exp_avg has a non-finite value"),
        ("missing tensor", r"lacks embedding\.weight\.exp_avg; it is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_on_resume(
    name: str,
    message: str,
    run: Run,
    trained: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained(tmp_path / "whole", steps=13)
    trained(tmp_path / "run")
    earlier, last = numbered_checkpoints(tmp_path / "run")
    path = last / "training/optimizer.safetensors"
    if name == "flipped bit":
        flip_bit(last / "model.safetensors")
    elif name == "flipped bit of the optimizer":
        flip_bit(path)
    elif name in ("missing tensor", "not a number"):
        tensors = load_file(path)
        tensors["embedding.weight.exp_avg"][0, 0] = math.nan
        if name == "missing tensor":
            del tensors["embedding.weight.exp_avg"]
        save_file(tensors, path)
        record_hashes(last / "training/state.json")
    else:
        os.truncate(last / name, (last / name).stat().st_size // 2)
    shutil.copytree(last, tmp_path / "damaged")
    run(tmp_path / "run", resume=True, steps=13)
    assert re.search(message + ".*Using the checkpoint before it", caplog.text, re.DOTALL)
    name = "checkpoint-00000013"
    assert_equal(tmp_path / "run" / name, tmp_path / "whole" / name)
    # Undone steps are logged once.
    steps = [entry["step"] for entry in read_metrics(tmp_path / "run") if "loss" in entry]
    assert steps == sorted(set(steps))
    shutil.rmtree(earlier, ignore_errors=True)
    for path in numbered_checkpoints(tmp_path / "run"):
        shutil.rmtree(path)
    shutil.copytree(tmp_path / "damaged", last)
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path / "run", resume=True, steps=20)


def test_a_damaged_checkpoint_is_left_out_of_the_average(
    trained: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path / "run", average_checkpoints=3)
    paths = [path / "model.safetensors" for path in numbered_checkpoints(tmp_path / "run")]
    flip_bit(paths[1])
    found = average_weights([path.parent for path in paths])
    one, two = load_file(paths[0]), load_file(paths[2])
    for name, tensor in found.items():
        assert torch.equal(tensor, ((one[name].double() + two[name].double()) / 2).float())
    assert "checkpoint" in caplog.text
    with pytest.raises(CheckpointError, match="is damaged"):
        average_weights([paths[1].parent])


@pytest.mark.parametrize("step", [8, 12])
def test_a_full_disk_costs_only_a_checkpoint_that_is_not_the_last(
    step: int, make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if f"checkpoint-{step:08d}" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        save_file(tensors, path)

    monkeypatch.setattr(hashed_files, "save_file", full)
    trainer = make_trainer()
    out = trainer.job.out
    if step == trainer.config.steps:
        with pytest.raises(OutputError):
            trainer.run()
    else:
        assert trainer.run() == out / AVERAGED
    assert f"checkpoint-{step:08d} was not saved" in caplog.text
    kept = [step_of(path) for path in numbered_checkpoints(out)]
    assert kept == [one for one in (4, 8, 12) if one != step]
    assert not list(out.glob(".*"))


def test_a_checkpoint_has_the_weights_of_its_step(
    make_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer waits until the run is two steps further.
    make_trainer("plain").run()
    trainer = make_trainer("held")
    reached = {4: threading.Event(), 8: threading.Event(), 12: threading.Event()}

    def slow(tensors: dict[str, torch.Tensor], path: Path) -> None:
        number = re.search(r"checkpoint-(\d+)", str(path))
        assert reached[int(number[1]) if number else 12].wait(60)
        save_file(tensors, path)

    step = trainer._optimizer_step

    def note(work: Step) -> None:
        step(work)
        for number, event in reached.items():
            if trainer.step >= min(number + 2, 12):
                event.set()

    monkeypatch.setattr(hashed_files, "save_file", slow)
    monkeypatch.setattr(trainer, "_optimizer_step", note)
    trainer.run()
    for name in ("checkpoint-00000008", "checkpoint-00000012", AVERAGED):
        assert_equal(tmp_path / "plain" / name, tmp_path / "held" / name)


def test_partial_files_of_a_killed_run_are_removed(run: Run, trained: Run, tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=4)
    (tmp_path / "run/.checkpoint-00000008.0a1b2c3d.partial").mkdir()
    (tmp_path / "run/.checkpoint-00000008.0a1b2c3d.partial/model.safetensors").write_text("half")
    (tmp_path / "run/.mine.partial").mkdir()
    run(tmp_path / "run", resume=True, steps=5)
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".mine.partial"]


def a_step(job: Job, *slices: tuple[int, int]) -> Step:
    """Optimizer step of slices of the training text, a micro-batch each."""
    batches = [job.data.train.batch(np.arange(first, last)) for first, last in slices]
    return Step(batches, sum(len(batch.targets) for batch in batches), (0, 1))


def test_the_norm_of_a_whole_steps_gradients_is_clipped(
    make_trainer: Callable[..., Trainer],
) -> None:
    def updated(
        clip_norm: float, *slices: tuple[int, int]
    ) -> tuple[list[torch.Tensor], list[float]]:
        """Gradients that the optimizer gets, and the recorded norm, steps and clipped steps."""
        trainer = make_trainer(str(next(numbers)), dropout=0.0, clip_norm=clip_norm)
        found: list[torch.Tensor] = []
        (adam,) = trainer.optimizers
        adam.register_step_pre_hook(
            lambda *_: found.extend(p.grad.clone() for p in trainer.model.parameters())
        )
        trainer._optimizer_step(a_step(trainer.job, *slices))
        return found, trainer._norms.tolist()

    numbers = itertools.count()
    plain, (norm, steps, clipped) = updated(0.0, (0, 60))
    assert (steps, clipped) == (1, 0)
    assert norm == pytest.approx(float(torch.cat([g.flatten() for g in plain]).norm()), rel=1e-5)
    # Of a step of four micro-batches, the sum is clipped, not each.
    for slices in ([(0, 60)], [(0, 10), (10, 30), (30, 35), (35, 60)]):
        found, (seen, _, clipped) = updated(norm / 4, *slices)
        assert (seen, clipped) == (pytest.approx(norm, rel=1e-4), 1)
        for first, second in zip(plain, found, strict=True):
            torch.testing.assert_close(second, first / 4, atol=1e-5, rtol=1e-4)
    below, (_, _, clipped) = updated(norm * 1.01, (0, 60))
    assert clipped == 0
    for first, second in zip(plain, below, strict=True):
        assert torch.equal(first, second)


def test_the_learning_rate_is_the_schedules(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    for step in (1, 2):
        trainer._optimizer_step(a_step(trainer.job, (0, 5)))
        expected = 0.8 * 32**-0.5 * step * 20**-1.5  # the preset's scale, within the warm-up
        assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)
    trainer.config = dataclasses.replace(trainer.config, steps=4, cooldown_steps=2)
    for step, share in ((3, 2 / 3), (4, 1 / 3)):
        trainer._optimizer_step(a_step(trainer.job, (0, 5)))
        expected = share * 0.8 * 32**-0.5 * step * 20**-1.5
        assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)
    group = trainer.optimizers[0].param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)


def test_16_bits_are_near_fp32(run: Run, tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "fp16", "bf16"):
        run(tmp_path / precision, steps=12, dropout=0.0, precision=precision)
        losses[precision] = [e["loss"] for e in read_metrics(tmp_path / precision) if "loss" in e]
        assert losses["fp32"] == pytest.approx(losses[precision], rel=0.02)
        last = numbered_checkpoints(tmp_path / precision)[-1]
        assert {tensor.dtype for tensor in weights(last).values()} == {torch.float32}
        state = json.loads((last / "training/state.json").read_text())
        assert (state["scaler"].get("scale", 1) > 1) == (precision == "fp16")
    assert losses["fp16"] != losses["fp32"] != losses["bf16"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_layers_train_like_plain_ones(run: Run, tmp_path: Path) -> None:
    # No batch has this many sentences; such a batch would be specialized by the compiler.
    losses, same = [], {"log_every": 1, "dropout": 0.0, "d_model": 24, "d_ff": 40}
    for choice in ("off", "on"):
        run(tmp_path / choice, steps=12, compile=choice, **same)
        losses.append([e["loss"] for e in read_metrics(tmp_path / choice) if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # Checkpoints do not depend on compilation.
    one, other = (numbered_checkpoints(tmp_path / choice)[-1] for choice in ("off", "on"))
    assert weights(one).keys() == weights(other).keys()
    run(tmp_path / "on", resume=True, steps=13, compile="on", **same)


def poison(trainer: Trainer, steps: Callable[[int], bool]) -> None:
    """Make the loss of the selected steps NaN."""
    whole = trainer.objective

    class Poisoned(torch.nn.Module):
        def forward(self, batch: Batch | None) -> Losses:
            losses: Losses = whole(batch)
            factor = float("nan") if steps(trainer.step + 1) else 1.0
            return losses._replace(loss=losses.loss * factor, smoothed=losses.smoothed * factor)

    trainer.objective = Poisoned()


@pytest.mark.parametrize(("clip_norm", "optimizer"), [(0.0, "adam"), (0.5, "adam"), (0.0, "muon")])
def test_a_non_finite_gradient_skips_only_its_step(
    clip_norm: float,
    optimizer: str,
    make_trainer: Callable[..., Trainer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = make_trainer(steps=3, log_every=1, clip_norm=clip_norm, optimizer=optimizer)
    out = trainer.job.out
    poison(trainer, lambda step: step == 2)
    trained: list[list[torch.Tensor]] = []
    update = trainer._update

    def note() -> None:
        update()
        moments = [x.clone() for x in trainer._optimizer_tensors().values()]
        trained.append([*(p.detach().clone() for p in trainer.model.parameters()), *moments])

    trainer._update = note  # type: ignore[method-assign]
    trainer.run()
    same = [all(map(torch.equal, *pair)) for pair in itertools.pairwise(trained)]
    assert same == [True, False]
    assert all(torch.isfinite(x).all() for x in trained[-1])
    assert [entry.get("skipped_steps") for entry in read_metrics(out)][:3] == [0, 1, 1]
    norms = [entry["gradient_norm"] for entry in read_metrics(out)[:3]]
    assert norms[1] == 0  # of no step
    assert norms[0] > 0
    assert norms[2] > 0
    assert caplog.text.count("1 steps were skipped because") == 1
    state = json.loads((out / "checkpoint-00000003/training/state.json").read_text())
    assert state["skipped"] == 1


def test_a_skipped_step_is_one_of_all_optimizers(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(steps=1, optimizer="muon", precision="fp16")
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    matrix = trainer.model.encoder_layers[0].feed_forward.inner.weight  # of Muon alone
    matrix.register_hook(lambda gradient: gradient * math.inf)
    trainer.run()
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_ten_skipped_steps_in_a_row_stop_the_run(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(steps=40)
    poison(trainer, lambda step: step in range(3, 12))  # nine
    trainer.run()
    trainer = make_trainer("other", steps=40)
    poison(trainer, lambda step: step in range(13, 23))
    with pytest.raises(TranslateTrtError, match=r"finite.*10 steps"):
        trainer.run()
    assert saved_step(trainer.job.out) == 20
    kept = weights(numbered_checkpoints(trainer.job.out)[-1])
    assert all(torch.isfinite(tensor).all() for tensor in kept.values())


SCORES = {4: 10.0, 8: 12.0, 12: 11.0, 16: 12.0, 20: 11.5, 24: 30.0}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Give validations the BLEU of SCORES by step; the test may change it."""
    values = dict(SCORES)

    def validate(self: Trainer, name: str, metrics: Any) -> dict[str, float] | None:
        found = {"loss": 1.0, "bleu": values.get(self.step, 0.0), "chrf": 2.0}
        metrics.write({"step": self.step, name: found})
        return found

    monkeypatch.setattr(Trainer, "validate", validate)
    return values


EARLY = {"steps": 24, "validate_every": 4, "patience": 3, "average_checkpoints": 2}


@pytest.mark.usefixtures("scripted")
def test_the_best_checkpoint_is_kept_and_training_stops_early(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="translate_trt")
    out = tmp_path / "run"
    run(out, **EARLY)
    # Best at 8; the tie of step 16 is no improvement, so steps 12, 16 and 20 end the run.
    assert [step_of(path) for path in numbered_checkpoints(out)] == [16, 20]
    run(tmp_path / "plain", **(EARLY | {"steps": 8, "patience": 0}))
    assert_equal_tensors(out / BEST, tmp_path / "plain/checkpoint-00000008")
    assert selected_scores(out) == {
        "step": 8, "metric": "bleu", "loss": 1.0, "bleu": 12.0, "chrf": 2.0,
    }  # fmt: skip
    assert not (out / BEST / "training").exists()
    assert open_checkpoint(out / BEST).train["selected"]["step"] == 8
    assert open_checkpoint(out).path == out / AVERAGED  # other commands take this one
    logged = [entry for entry in read_metrics(out) if "best" in entry]
    assert [(e["step"], e["best"]["step"], e["best"]["validations_since"]) for e in logged] == [
        (4, 4, 0), (8, 8, 0), (12, 8, 1), (16, 8, 2), (20, 8, 3),
    ]  # fmt: skip
    assert [entry.get("stopped_early") for entry in logged] == [None] * 4 + [1]
    assert "validations" in caplog.text
    assert "greedy" in caplog.text


@pytest.mark.usefixtures("scripted")
def test_a_best_checkpoint_that_could_not_be_written_is_not_the_best(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(**(EARLY | {"steps": 12}))

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if BEST in str(path) and trainer.step == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        save_file(tensors, path)

    monkeypatch.setattr(hashed_files, "save_file", full)
    trainer.run()
    selected = selected_scores(trainer.job.out)
    assert selected is not None
    assert (selected["step"], selected["bleu"]) == (12, 11.0)  # better than step 4, not than 8
    logged = [entry["best"] for entry in read_metrics(trainer.job.out) if "best" in entry]
    assert [(e["step"], e["validations_since"]) for e in logged] == [(4, 0), (4, 0), (12, 0)]


def test_stopping_early_is_resumed_exactly(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: dict[int, float]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, **EARLY)
    update = Trainer._optimizer_step
    for last in (8, 9, 16, 18):  # a step that is validated, and one between; before the checkpoint

        def die(self: Trainer, step: Step, last: int = last) -> None:
            if self.step == last:
                raise RuntimeError("killed")
            update(self, step)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_optimizer_step", die)
            with pytest.raises(RuntimeError, match="killed"):
                run(parts, resume=parts.exists(), **EARLY)
    run(parts, resume=True, **EARLY)
    for name in ("checkpoint-00000016", "checkpoint-00000020", BEST, AVERAGED):
        assert_equal(whole / name, parts / name)
    best = [[entry for entry in read_metrics(out) if "best" in entry] for out in (whole, parts)]
    assert best[0] == best[1]
    # A finished run stays at its end; more patience continues it.
    run(parts, resume=True, **EARLY)
    assert [entry for entry in read_metrics(parts) if "best" in entry] == best[0]
    run(parts, resume=True, **(EARLY | {"patience": 4}))
    assert selected_scores(parts) == {
        "step": 24, "metric": "bleu", "loss": 1.0, "bleu": 30.0, "chrf": 2.0,
    }  # fmt: skip


def test_a_signal_at_a_step_to_validate_delays_the_validation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: dict[int, float]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, **EARLY)
    agreed = Trainer._agreed
    with monkeypatch.context() as patch:
        patch.setattr(
            Trainer, "_agreed",
            lambda self, stop: signal.SIGINT if self.step == 12 else agreed(self, stop),
        )  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            run(parts, **EARLY)
    assert [entry["step"] for entry in read_metrics(parts) if "best" in entry] == [4, 8]
    run(parts, resume=True, **EARLY)
    for name in ("checkpoint-00000020", BEST, AVERAGED):
        assert_equal(whole / name, parts / name)
    assert [e for e in read_metrics(whole) if "best" in e] == [
        e for e in read_metrics(parts) if "best" in e
    ]

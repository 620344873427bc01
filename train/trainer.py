"""The training loop: one process, exact to resume, interruptible between two steps."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from translate_trt.runtime.errors import CheckpointError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    AVERAGED,
    PREFIX,
    TrainingState,
    average_weights,
    load_weights,
    numbered_checkpoints,
    remove_old_checkpoints,
    save_checkpoint,
)
from translate_trt.train.config import ModelConfig, TrainConfig
from translate_trt.train.data import Batch, ParallelData, epoch_batches
from translate_trt.train.evaluate import bleu, perplexity, translate_reference, validation_loss
from translate_trt.train.loss import projected_cross_entropy
from translate_trt.train.model import Transformer
from translate_trt.train.precision import autocast, resolve_precision
from translate_trt.train.schedule import learning_rate

log = logging.getLogger("translate_trt")


@dataclass(frozen=True)
class Validation:
    """Text to measure progress on."""

    data: ParallelData
    source: list[str]
    reference: list[str]


@dataclass(frozen=True)
class Job:
    """Everything a run is made of."""

    out: Path
    model: ModelConfig
    train: TrainConfig
    data: ParallelData
    validation: Validation
    tokenizer: Path
    source_language: str | None = None
    target_language: str | None = None


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a wish that the loop looks at between two steps.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


class Trainer:
    """Trains one model in one process.

    Raises:
        CheckpointError: `resume` finds checkpoints of other data.
    """

    def __init__(self, job: Job, device: torch.device, resume: bool = False) -> None:
        self.job, self.config, self.device = job, job.train, device
        torch.manual_seed(self.config.seed)
        self.model = Transformer(job.model).to(device)
        self.dtype = resolve_precision(self.config, device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=0.0,
            betas=(self.config.adam_beta1, self.config.adam_beta2),
            eps=self.config.adam_epsilon,
            fused=True,
        )
        self.step = self.epoch = self.batch = 0
        self.fingerprint = job.data.fingerprint()
        if resume:
            self._resume()

    # ---- one step ----

    def _micro_batches(self) -> Iterator[Batch]:
        """Batches from where the run stands, epoch after epoch, without end."""
        size = min(self.config.micro_batch_tokens, self.config.batch_tokens)
        while True:
            plan = epoch_batches(self.job.data, size, self.config.seed, self.epoch)
            while self.batch < len(plan):
                rows = plan[self.batch]
                self.batch += 1
                yield self.job.data.batch(rows).to(self.device)
            self.epoch, self.batch = self.epoch + 1, 0

    def _optimizer_step(self, batches: list[Batch]) -> tuple[float, float, int]:
        """Gradients of those batches together, one update.

        Returns:
            Smoothed loss and negative log-likelihood per token in nats, and the target tokens.
        """
        tokens = sum(len(batch.targets) for batch in batches)
        loss = likelihood = 0.0
        for batch in batches:
            with autocast(self.device, self.dtype):
                hidden = self.model(batch.source, batch.source_lengths, batch.previous)
            hidden = hidden.flatten(0, 1)[batch.target_index].to(self.dtype)
            smoothed, plain = projected_cross_entropy(
                hidden, self.model.embedding.weight, batch.targets, self.config.label_smoothing
            )
            (smoothed / tokens).backward()  # type: ignore[no-untyped-call]
            loss += float(smoothed.detach()) / tokens
            likelihood += float(plain) / tokens
        if not math.isfinite(loss):
            raise TranslateTrtError(
                f"the loss is {loss} at step {self.step + 1}; the last checkpoint is from before. "
                "Lower --learning-rate-scale or raise --warmup-steps, then continue with --resume."
            )
        self.step += 1
        rate = learning_rate(
            self.step,
            self.job.model.d_model,
            self.config.warmup_steps,
            self.config.learning_rate_scale,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, likelihood, tokens

    # ---- the run ----

    def run(self) -> Path:
        """Train to the last step, then average the last checkpoints.

        Returns:
            The averaged checkpoint.

        Raises:
            KeyboardInterrupt: stopped by a signal, after a checkpoint was saved.
        """
        self.model.train()
        batches = self._micro_batches()
        size = min(self.config.micro_batch_tokens, self.config.batch_tokens)
        accumulate = max(1, self.config.batch_tokens // size)
        with (
            StopRequest() as stop,
            tqdm(
                total=self.config.steps,
                initial=self.step,
                unit="step",
                disable=not sys.stderr.isatty(),
            ) as bar,
        ):
            meter = _Meter()
            while self.step < self.config.steps:
                results = self._optimizer_step([next(batches) for _ in range(accumulate)])
                meter.add(*results)
                bar.update()
                if self.step % self.config.log_every == 0 or self.step == self.config.steps:
                    self._report(meter, bar)
                    meter = _Meter()
                every = self.config.checkpoint_every
                # Looked at once: a signal that comes after this is for the next step to save.
                stopped = stop.signal is not None
                if self.step % every == 0 or self.step == self.config.steps or stopped:
                    self.save()
                if stopped:
                    log.warning("stopped at step %d; continue with --resume", self.step)
                    raise KeyboardInterrupt
                interval = self.config.validate_every
                if interval and self.step % interval == 0 and self.step < self.config.steps:
                    self.validate("validation")
                    meter.restart()
        return self._finish()

    def _report(self, meter: _Meter, bar: tqdm[Any]) -> None:
        loss, likelihood, speed = meter.summary()
        left = (self.config.steps - self.step) * meter.seconds_per_step()
        bar.set_postfix(epoch=self.epoch + 1, loss=f"{loss:.3f}", tokens_per_second=round(speed))
        if bar.disable:
            log.info(
                "step %d/%d epoch %d loss %.3f perplexity %.2f, %.0f target tokens/s, %s left",
                self.step, self.config.steps, self.epoch + 1, loss, perplexity(likelihood),
                speed, time.strftime("%H:%M:%S", time.gmtime(left)),
            )  # fmt: skip
        self._record(
            {
                "step": self.step,
                "epoch": self.epoch + 1,
                "loss": loss,
                "log_likelihood": -likelihood,
                "target_tokens_per_second": speed,
                "learning_rate": self.optimizer.param_groups[0]["lr"],
            }
        )

    def _record(self, entry: dict[str, Any]) -> None:
        with (self.job.out / "training.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def validate(self, name: str) -> float:
        """Loss and greedy BLEU on the validation set; both are logged. Returns BLEU."""
        self.model.eval()
        loss = validation_loss(self.model, self.job.validation.data)
        tokenizer = Tokenizer(self.job.tokenizer, self.job.tokenizer)
        greedy = SearchOptions(beam_size=1)
        texts, _ = translate_reference(self.model, tokenizer, self.job.validation.source, greedy)
        score = bleu(texts, self.job.validation.reference)
        self.model.train()
        log.info(
            "%s at step %d: loss %.3f, perplexity %.2f, greedy BLEU %.2f (%s)",
            name, self.step, loss, perplexity(loss), score.score, score.signature,
        )  # fmt: skip
        self._record({"step": self.step, name: {"loss": loss, "bleu": score.score}})
        return score.score

    # ---- checkpoints ----

    def _save(self, path: Path, weights: dict[str, Tensor], state: TrainingState | None) -> None:
        languages = (self.job.source_language, self.job.target_language)
        save_checkpoint(
            path, weights, self.job.model, self.config, self.job.tokenizer, languages, state
        )

    def save(self) -> Path:
        """Write a checkpoint of this step, then delete those no longer needed."""
        optimizer = {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }
        state = TrainingState(
            self.step, self.epoch, self.batch, self.fingerprint,
            torch.get_rng_state(), optimizer,
        )  # fmt: skip
        path = self.job.out / f"{PREFIX}{self.step:08d}"
        self._save(path, self.model.state_dict(), state)
        remove_old_checkpoints(self.job.out, keep=self.config.average_checkpoints)
        return path

    def _resume(self) -> None:
        found = numbered_checkpoints(self.job.out)
        if not found:
            return
        path = found[-1]
        state = TrainingState.load(path / "training")
        if state.fingerprint != self.fingerprint:
            raise CheckpointError(
                f"{path} was trained on other data than this; give the same --train files to "
                "--resume, or another --out directory."
            )
        load_weights(self.model, path / "model.safetensors")
        for name, parameter in self.model.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.optimizer.state[parameter] = {
                key: state.optimizer[f"{name}.{key}"].to(
                    self.device if key != "step" or self.device.type == "cuda" else "cpu"
                )
                for key in keys
            }
        self.step, self.epoch, self.batch = state.step, state.epoch, state.batch
        torch.set_rng_state(state.random)
        log.info("continuing from %s", path)

    def _finish(self) -> Path:
        """Average the last checkpoints (section 6.1) and measure the result."""
        last = numbered_checkpoints(self.job.out)[-self.config.average_checkpoints :]
        weights = average_weights(last)
        self.model.load_state_dict(weights)
        self.validate("averaged")
        path = self.job.out / AVERAGED
        self._save(path, weights, None)
        return path


class _Meter:
    """Loss and speed since the last report."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.loss = self.likelihood = 0.0
        self.tokens = self.steps = 0
        self.begin = time.perf_counter()

    def add(self, loss: float, likelihood: float, tokens: int) -> None:
        self.loss += loss * tokens
        self.likelihood += likelihood * tokens
        self.tokens += tokens
        self.steps += 1

    def seconds_per_step(self) -> float:
        return (time.perf_counter() - self.begin) / max(1, self.steps)

    def summary(self) -> tuple[float, float, float]:
        """Loss and negative log-likelihood per token, target tokens per second."""
        seconds = max(time.perf_counter() - self.begin, 1e-9)
        tokens = max(1, self.tokens)
        return self.loss / tokens, self.likelihood / tokens, self.tokens / seconds

"""Training loop: single-process or distributed, with bit-exact resume and graceful shutdown."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from translate_trt.runtime.errors import CheckpointError, InputError, TranslateTrtError
from translate_trt.runtime.io.atomic_files import clear_leftovers_in
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import (
    AVERAGED,
    BEST,
    PREFIX,
    load_weights,
    numbered_checkpoints,
    selected_scores,
    step_of,
)
from translate_trt.train.config import guided_head
from translate_trt.train.cuda_graphs import keep_gradients
from translate_trt.train.data.batches import Batch, FingerprintCheck, ParallelData
from translate_trt.train.evaluation.scoring import bleu, chrf, tree_f1
from translate_trt.train.evaluation.validation import (
    perplexity,
    reference_trees,
    translate_reference,
    validation_loss,
)
from translate_trt.train.model import Transformer
from translate_trt.train.optimizer import AVERAGE, make_optimizers, state_keys, update_average
from translate_trt.train.packing import reason_for_padding
from translate_trt.train.schedule import cooldown, learning_rate
from translate_trt.train.selection import METRICS, Selection, is_better
from translate_trt.train.shutdown import StopRequest
from translate_trt.train.trainer.checkpoints import (
    CheckpointWriter,
    average_weights,
    remove_checkpoint,
    remove_old_checkpoints,
)
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.job import Job
from translate_trt.train.trainer.metrics import Meter, Metrics
from translate_trt.train.trainer.micro_batches import with_micro_batches
from translate_trt.train.trainer.objective import Losses, Objective
from translate_trt.train.trainer.precision import loss_scaler, resolve_precision
from translate_trt.train.trainer.steps import Step, StepLoader
from translate_trt.train.training_state import TrainingState

log = logging.getLogger("translate_trt")

# Abort after this many consecutive non-finite steps: such a run does not recover.
MOST_SKIPPED_IN_A_ROW = 10
# Steps between two checks for a signal in a group of GPUs: each check is an all-reduce.
STEPS_BETWEEN_AGREEMENTS = 10


class Trainer:
    """Trains one model.

    Raises:
        CheckpointError: On resume, no checkpoint can be read.
        InputError: On resume, the checkpoint was trained on other data.
    """

    def __init__(self, job: Job, group: Group, resume: bool = False) -> None:
        self.dtype = resolve_precision(job.settings.train, group.device)
        job = with_micro_batches(job, group, self.dtype)
        self.job, self.config, self.group = job, job.settings.train, group
        torch.manual_seed(self.config.seed)
        self.model = Transformer(job.settings.model, self.config.initialization).to(group.device)
        self.scaler = loss_scaler(group.device, self.dtype)
        self.optimizers = make_optimizers(self.model, self.config)
        #: Moving average of the weights by name, on their device; empty without `ema_decay`.
        self.average: dict[str, Tensor] = {}
        self.guided = guided_head(job.settings.model, self.config)
        self.step = self.epoch = self.epoch_step = 0
        self.selection = Selection()
        # Checkpoint to delete once there is a later one: a signal's, which is not among those that
        # are spaced evenly and averaged.
        self._surplus: Path | None = None
        self._writer = CheckpointWriter()
        # Kept on the device to avoid a synchronization per step. Sums of smoothed loss, negative
        # log-likelihood and the loss of alignments; skipped steps in the current streak, in the
        # longest streak, and in total.
        self._sums = torch.zeros(3, dtype=torch.float64, device=group.device)
        self._skipped = torch.zeros(3, dtype=torch.int64, device=group.device)
        # Since the last report: sum of gradient norms, steps in the sum, steps that were clipped.
        self._norms = torch.zeros(3, dtype=torch.float64, device=group.device)
        if resume or job.settings.origin is not None:
            self._resume()
        if self.config.ema_decay and not self.average:
            self.average = {name: one.clone() for name, one in self.model.state_dict().items()}
        fuse = self.config.compile == "on" or (
            self.config.compile == "auto" and group.device.type == "cuda"
        )
        self.packs = self._can_pack()
        self.graphs = self._can_graph()
        objective = Objective(
            self.model, self.config.label_smoothing, self.dtype, fuse,
            self.config.cudnn_attention == "on", self.guided, self.config.guided_alignment,
            self._can_fuse_norms(), self.graphs,
        )  # fmt: skip
        if self.graphs:
            keep_gradients(self.model)
        self.objective: nn.Module = objective
        if group.size > 1:
            # The only buffer, the sinusoids, has the same values in all processes, but grows in
            # each with its longest sentence, so it cannot be broadcast.
            self.objective = DistributedDataParallel(
                objective, broadcast_buffers=False, gradient_as_bucket_view=True
            )

    def _can_pack(self) -> bool:
        """Return whether batches have no padding; log why those of a GPU have."""
        if self.config.packing == "off" or self.group.device.type != "cuda":
            return False
        reason = reason_for_padding(
            self.job.settings.model, self.group.device, self.dtype, self.guided is not None
        )
        if reason and self.group.leads:
            log.info("batches have padding: %s", reason)
        return not reason

    def _can_graph(self) -> bool:
        """Return whether the model runs as CUDA graphs; log what prevents it on a GPU."""
        if self.config.cuda_graphs == "off" or self.group.device.type != "cuda":
            return False
        prevented = self.packs or self.guided is not None
        if prevented and self.group.leads:
            log.info("no CUDA graphs: packing and guided alignment have other shapes in each batch")
        return not prevented

    def _can_fuse_norms(self) -> bool:
        """Return whether a kernel computes the end of each block; log if Triton is missing."""
        if self.config.fused_norm == "off" or self.group.device.type != "cuda":
            return False
        found = importlib.util.find_spec("triton") is not None
        if not found and self.group.leads:
            log.info("LayerNorm is PyTorch's: Triton is not installed")
        return found

    @property
    def training_data(self) -> ParallelData:
        """Training pairs, with batches in the format of the model and its loss."""
        data = self.job.data.train.for_model(self.model)
        links = None if self.guided is None else data.links
        tokens = min(self.config.micro_batch_tokens, self.config.batch_tokens) * self.graphs
        return dataclasses.replace(data, links=links, packs=self.packs, graph_tokens=tokens)

    # ---- one step ----

    def _optimizer_step(self, step: Step) -> None:
        """Accumulate the gradients of the step's batches over all processes, and update."""
        _seed(self.config.seed, self.step, self.group.rank)
        batches: list[Batch | None] = [batch.to(self.group.device) for batch in step.batches]
        batches = batches or [None]  # fewer sentences than processes: contribute zero gradients
        for index, batch in enumerate(batches):
            with self._exchange(index + 1 == len(batches)):
                losses: Losses = self.objective(batch)
                # DistributedDataParallel averages over processes; the factor makes it a sum.
                loss: Any = losses.loss * (self.group.size / step.target_tokens)
                self.scaler.scale(loss).backward()
            self._sums += torch.stack((losses.smoothed, losses.likelihood, losses.alignment))
        self.step += 1
        self.epoch, self.epoch_step = step.next_position
        self._update()

    def _exchange(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Restrict the gradient exchange to the backward pass of a step's last batch."""
        if last or not isinstance(self.objective, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.objective.no_sync()

    def _update(self) -> None:
        """Update the weights unless a gradient is non-finite, without a host synchronization."""
        rate = learning_rate(
            self.step,
            self.job.settings.model.d_model,
            self.config.warmup_steps,
            self.config.learning_rate_scale,
            self.config.learning_rate,
            self.config.learning_rate_decay != "none",
        ) * cooldown(
            self.step, self.config.steps, self.config.cooldown_steps, self.config.cooldown_shape
        )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            self.scaler.unscale_(optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # The gradients are those of the whole step: summed over its micro-batches and exchanged
        # between processes, so the norm is the same in all of them.
        norm = nn.utils.get_total_norm(gradients)
        bad = ~torch.isfinite(norm)
        if self.config.clip_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        clipped = (norm > self.config.clip_norm) * bool(self.config.clip_norm)
        counts = torch.stack((norm.double(), torch.ones_like(norm).double(), clipped.double()))
        self._norms += torch.where(bad, 0.0, counts)
        for optimizer in self.optimizers:
            # A fused optimizer skips its update if found_inf is 1; GradScaler.step would set it by
            # the gradients of this optimizer alone. Muon is not fused: the host waits for `bad`.
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            if isinstance(optimizer, torch.optim.Adam) or not bad:
                optimizer.step()
        self.scaler.update()
        if self.graphs:
            keep_gradients(self.model)
        else:
            self.model.zero_grad(set_to_none=True)
        if self.average:
            update_average(self.average, self.model, self.config.ema_decay, self.step)
        streak, longest, total = self._skipped
        streak = (streak + 1) * bad
        self._skipped = torch.stack((streak, torch.maximum(streak, longest), total + bad))

    def _check_skipped(self, known: int) -> int:
        """Return the number of steps skipped so far; warn if it exceeds `known`.

        Raises:
            TranslateTrtError: Too many consecutive steps were skipped.
        """
        _, longest, total = self._skipped.tolist()
        if longest >= MOST_SKIPPED_IN_A_ROW:
            raise TranslateTrtError(
                f"the gradients were not finite in {longest} steps in a row up to step "
                f"{self.step}; such steps are skipped. Lower --learning-rate-scale or raise "
                "--warmup-steps, and check the data; earlier checkpoints are kept."
            )
        if total > known:
            log.warning(
                "up to step %d, %d steps were skipped because of non-finite gradients",
                self.step, total,
            )  # fmt: skip
        return int(total)

    # ---- the run ----

    def run(self) -> Path | None:
        """Train to the last step, then average the last checkpoints.

        Returns:
            The averaged checkpoint; None if SIGTERM or SIGHUP ended the run, after a checkpoint was
            saved.

        Raises:
            KeyboardInterrupt: Ctrl-C ended the run, after a checkpoint was saved.
            OutputError: The last checkpoint could not be written.
            InputError: The prepared data is damaged.
        """
        start = (self.epoch, self.epoch_step)
        on_gpu = self.group.device.type == "cuda"
        loader = StepLoader(
            self.training_data, self.config, self.group.rank, self.group.size, start, pin=on_gpu
        )
        metrics = None
        if self.group.leads:
            metrics = Metrics(self.job.out, self.step, self.config.steps, self.finished)
        check = FingerprintCheck(self.job.data.train) if self.group.leads else None
        self.model.train()
        try:
            with StopRequest() as stop:
                number = self._loop(loader, metrics, stop, check)
            if number:
                log.warning("stopped at step %d; continue with --resume", self.step)
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                return None
            if check is not None:
                check.poll(wait=True)
            return self._finish(metrics)
        finally:
            loader.close()
            if check is not None:
                check.close()
            self._writer.finish()
            if metrics is not None:
                metrics.close()

    def _loop(
        self,
        loader: StepLoader,
        metrics: Metrics | None,
        stop: StopRequest,
        check: FingerprintCheck | None,
    ) -> int:
        """Train until the last step or a signal; return the signal's number, or 0."""
        if self._validation_is_due():  # the baseline of fine-tuning, or a signal came before
            self._validate_and_select(metrics)
            if self.step:
                self.save()
        config, meter, steps = self.config, Meter(), iter(loader)
        skipped = int(self._skipped[2])
        while not self.finished:
            step = next(steps)
            if check is not None:
                check.poll()
            self._optimizer_step(step)
            meter.add(step.target_tokens)
            if metrics is not None:
                metrics.advance()
            last = self.step == config.steps
            if last or self.step % config.log_every == 0:
                skipped = self._check_skipped(skipped)
                self._report(meter, metrics)
            # Read once per step: a later signal takes effect after the next step.
            number = self._agreed(stop)
            if not number and self._validation_is_due():
                before = time.perf_counter()
                self._validate_and_select(metrics)
                meter.skip(time.perf_counter() - before)
                last = last or self.stops_early
            # After the validation, whose result is part of the state.
            if last or number or self.step % config.checkpoint_every == 0:
                skipped = self._check_skipped(skipped)
                self.save(required=bool(last or number))
            if number:
                return number
        return 0

    def _agreed(self, stop: StopRequest) -> int:
        """Return the signal that any process of the group has received, or 0, in all of them.

        On CPUs after each step: torchrun kills its processes 30 seconds after SIGTERM, and a step
        may take seconds, beside which the all-reduce is nothing.
        """
        often = self.group.size == 1 or self.group.device.type == "cpu"
        if not often and self.step % STEPS_BETWEEN_AGREEMENTS:
            return 0
        return self.group.largest(stop.signal)

    def _report(self, meter: Meter, metrics: Metrics | None) -> None:
        """Record the mean loss and the speed since the last report."""
        sums = self.group.sum(self._sums) / max(1, meter.tokens)
        loss, likelihood, alignment = sums.tolist()
        self._sums.zero_()
        norms, steps, clipped = self._norms.tolist()
        self._norms.zero_()
        speed = meter.tokens / meter.seconds
        left = (self.config.steps - self.step) * meter.seconds / max(1, meter.steps)
        meter.restart()
        if metrics is None:
            return
        entry = {
            "step": self.step,
            "epoch": self.epoch + 1,
            "loss": loss,
            "log_likelihood": -likelihood,
            **({} if self.guided is None else {"alignment_loss": alignment}),
            "target_tokens_per_second": speed,
            "learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "gradient_norm": norms / max(1.0, steps),
            **({"clipped_share": clipped / max(1.0, steps)} if self.config.clip_norm else {}),
            "skipped_steps": int(self._skipped[2]),
        }
        metrics.progress(entry, perplexity(likelihood), left)

    # ---- validation ----

    def _validation_is_due(self) -> bool:
        """Whether the weights of this step are to be validated, and have not been."""
        if self.step <= self.selection.validated:
            return False
        if self.step == 0:
            return self.job.settings.origin is not None
        every = self.config.validate_every
        return every > 0 and (self.step % every == 0 or self.step == self.config.steps)

    @property
    def finished(self) -> bool:
        """Whether no step is left."""
        return self.step >= self.config.steps or self.stops_early

    @property
    def stops_early(self) -> bool:
        """Whether as many validations as `patience` have brought no improvement."""
        return 0 < self.config.patience <= self.selection.since

    def _validate_and_select(self, metrics: Metrics | None) -> None:
        """Validate the weights of this step, and save them if they are the best so far."""
        scores = self.validate("validation", metrics)
        if not self.config.validate_every:  # only the baseline of fine-tuning
            return
        if scores is not None:
            before = self.selection
            self.selection = before.after(self.step, scores, self.config.best_metric)
            if self.selection.improved and not self._save_best():
                # The best is the one on disk, and later ones that are better replace it.
                self.selection = dataclasses.replace(before, since=0, validated=self.step)
        since = self.group.largest(self.selection.since if self.group.leads else 0)
        if metrics is None:  # other processes know no scores, but stop with the leading one
            self.selection = Selection(since=since, validated=self.step)
            return
        best = {"step": self.selection.step, **self.selection.scores, "validations_since": since}
        stops = self.stops_early and self.step < self.config.steps
        metrics.write({"step": self.step, "best": best, **({"stopped_early": 1} if stops else {})})
        if stops:
            log.info(
                "stopping early at step %d: no better %s in %d validations since step %d",
                self.step, METRICS[self.config.best_metric], since, self.selection.step,
            )  # fmt: skip

    def _save_best(self) -> bool:
        """Save the weights as the best checkpoint, apart from the numbered ones, if possible."""
        weights, path = _copy(self.model.state_dict()), self.job.out / BEST
        selected = {"step": self.step, "metric": self.config.best_metric, **self.selection.scores}
        self._writer.start(path, lambda: self.job.save_checkpoint(path, weights, selected=selected))
        return self._writer.finish()

    def validate(self, name: str, metrics: Metrics | None) -> dict[str, float] | None:
        """Record loss and scores of greedy search on the validation set, in the leading process.

        Returns:
            The scores by metric; None in other processes.
        """
        scores = None
        if metrics is not None:
            self.model.eval()
            tokenizer = Tokenizer(*self.job.data.tokenizers)
            decoding, validation = self.job.settings.decoding, self.job.data.validation
            # The shapes change in every decoding step and would recompile the compiled layers.
            with torch.compiler.set_stance("force_eager"):
                loss = validation_loss(self.model, validation.data)
                if self.job.data.has_trees:
                    trees, texts = reference_trees(
                        self.model, tokenizer, validation.source, decoding.greedy,
                        self.guided or decoding.alignment_heads,
                    )  # fmt: skip
                else:
                    trees = []
                    texts, _ = translate_reference(
                        self.model, tokenizer, validation.source, decoding.greedy, decoding.prompt
                    )
            found = {
                "bleu": bleu(texts, validation.reference),
                "chrf": chrf(texts, validation.reference),
            }
            if self.job.data.has_trees:
                found["f1"] = tree_f1(trees, validation.source, validation.reference)
            self.model.train()
            log.info(
                "%s at step %d: loss %.3f, perplexity %.2f, greedy %s",
                name, self.step, loss, perplexity(loss),
                ", ".join(
                    f"{METRICS[key]} {one.score:.2f} ({one.signature})"
                    for key, one in found.items()
                ),
            )  # fmt: skip
            scores = {"loss": loss, **{key: score.score for key, score in found.items()}}
            metrics.write({"step": self.step, name: scores})
        self.group.wait()
        return scores

    # ---- checkpoints ----

    def save(self, required: bool = True) -> Path:
        """Save a checkpoint of this step, then delete old ones.

        The weights are copied first, and written while training continues.

        Args:
            required: Wait for the write, and raise if it fails.

        Raises:
            OutputError: A required checkpoint could not be written.
        """
        path = self.job.out / f"{PREFIX}{self.step:08d}"
        if self.group.leads:
            weights = _copy(self.model.state_dict())
            state = TrainingState(
                self.step, self.epoch, self.epoch_step, self.job.fingerprint,
                int(self._skipped[2]), self.scaler.state_dict(),
                _copy(self._optimizer_tensors()), self.selection,
            )  # fmt: skip

            def write() -> None:
                self.job.save_checkpoint(path, weights, state)
                if self._surplus is not None and self._surplus != path:
                    remove_checkpoint(self._surplus)
                    self._surplus = None
                remove_old_checkpoints(self.job.out, keep=self.config.average_checkpoints)

            self._writer.start(path, write)
            if required:
                self._writer.finish(required=True)
        return path

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the state of the optimizers and the moving average, by `NAME.KEY`."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for optimizer in self.optimizers:
            states.update(optimizer.state)
        found = {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in states.get(parameter, {}).items()
        }
        return found | {f"{name}.{AVERAGE}": tensor for name, tensor in self.average.items()}

    def _resume(self) -> None:
        """Load the last readable checkpoint, the same one in all processes."""
        found = numbered_checkpoints(self.job.out)
        if self.group.leads:
            clear_leftovers_in(self.job.out)
            while found and (damage := self._try_to_load(found[-1])):
                if len(found) == 1:
                    raise damage
                log.warning("%s Using the checkpoint before it.", damage)
                found.pop()
        index = self.group.largest(len(found) if self.group.leads else 0)
        if index == 0:
            if self.job.settings.origin is not None:
                raise CheckpointError(
                    f"{self.job.out} has lost its checkpoints, including the model to fine-tune; "
                    "start over with --from and --force."
                )
            return
        if not self.group.leads:
            self._load(found[index - 1])
        if self.step:
            log.info("continuing from %s", found[index - 1])
        if self.step % self.config.checkpoint_every:
            self._surplus = found[index - 1]

    def _try_to_load(self, path: Path) -> CheckpointError | None:
        try:
            self._load(path)
        except CheckpointError as error:
            return error
        return None

    def _load(self, path: Path) -> None:
        state = TrainingState.load(path / "training")
        if state.fingerprint != self.job.fingerprint:
            raise InputError(
                f"{path} was trained on other data; give --resume the same training text, or "
                "choose another --output directory."
            )
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        # A fine-tuning run's checkpoint of step 0 has no optimizer state.
        states = {
            f"{names[parameter]}.{key}": (optimizer.state[parameter], key)
            for optimizer in self.optimizers
            if state.step
            for group in optimizer.param_groups
            for parameter in group["params"]
            for key in state_keys(optimizer)
        }
        averages = {f"{name}.{AVERAGE}": name for name in self.model.state_dict()}
        averages = averages if state.step and self.config.ema_decay else {}
        missing = {*states, *averages} - set(state.optimizer)
        if missing:
            raise CheckpointError(f"{path}/training lacks {min(missing)}; it is damaged.")
        load_weights(self.model, path)
        for name, (values, key) in states.items():
            values[key] = state.optimizer[name].to(self.group.device)
        for name, own in averages.items():
            self.average[own] = state.optimizer[name].to(self.group.device)
        self.step, self.epoch, self.epoch_step = state.step, state.epoch, state.epoch_step
        self._skipped[2] = state.skipped
        self.selection = state.selection
        if state.step and state.scaler:  # empty if the run had another precision elsewhere
            self.scaler.load_state_dict(state.scaler)

    def _finish(self, metrics: Metrics | None) -> Path:
        """Save and validate the moving average, or that of the last checkpoints (section 6.1)."""
        path = self.job.out / AVERAGED
        if self.group.leads:
            # A run that was killed after its last checkpoint may have left old ones.
            remove_old_checkpoints(self.job.out, keep=self.config.average_checkpoints)
            trained = [path for path in numbered_checkpoints(self.job.out) if step_of(path)]
            weights = _copy(self.average) or average_weights(
                trained[-self.config.average_checkpoints :]
            )
            self.model.load_state_dict(weights)
            self.job.save_checkpoint(path, weights)
        scores = self.validate("averaged", metrics)
        self._writer.finish()
        if scores is not None:
            self._compare(scores)
        return path

    def _compare(self, averaged: dict[str, float]) -> None:
        """Report the best checkpoint beside the averaged one."""
        best = selected_scores(self.job.out)
        if best is None:
            return
        metric, scored = self.config.best_metric, best.keys() - {"loss"}
        better = is_better(metric, best[metric], averaged[metric])
        log.info(
            "best at step %d: loss %.3f, greedy %s; by %s %s than averaged. Of a "
            "run, other commands take %s; for the best, name %s",
            best["step"], best["loss"],
            ", ".join(f"{METRICS[key]} {best[key]:.2f}" for key in METRICS if key in scored),
            METRICS[metric],
            "better" if better else "not better", AVERAGED, self.job.out / BEST,
        )  # fmt: skip


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to host memory, where the next step does not change them."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _seed(seed: int, step: int, rank: int) -> None:
    """Seed dropout from the seed, the step and the process alone, for exact resume."""
    numbers = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(numbers[0] >> np.uint64(1)))

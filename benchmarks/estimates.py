"""Estimates from data sheets and assumptions: a corpus on many GPUs, and the paper's training.

    python benchmarks/estimates.py corpus [--gpus 1000] [--sentences 1e10] [--other-input VALUE]
    python benchmarks/estimates.py training [--matmul-share 0.5] [--other-input VALUE]

Nothing here is measured, and every input is an option; docs/thousand-gpus.md and docs/train.md have
the defaults and their sources. With other inputs, figures are printed, and written only to --out.

Of a corpus, `sentences_per_second` is an assumption, several times below the bounds that are
computed from execution plans, and below what `torch-fp16` reaches with full batches, until real
text has been measured on a GPU. Of training, work is counted from the shapes: operations of matmuls
(`training_flops`), bytes of activations (train/trainer/micro_batches.py), of logits and of
the optimizer, and the operators that the host launches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from harness import Option, Report, benchmark, main, option

from translate_trt.train.config import PRESETS, ModelConfig

Inputs = TypeVar("Inputs")


def matmul_weights(config: ModelConfig) -> tuple[int, int, int]:
    """Count weights: of the encoder, of cross-attention keys and values, of the decoder."""
    width, keys = config.d_model, config.heads * config.d_k
    attention = 2 * width * keys + 2 * width * width
    mixer = 2 * width * width if config.is_recurrent else attention
    encoder = config.encoder_layers * (attention + 2 * width * config.d_ff)
    cross = config.distinct_decoder_layers * (width * keys + width * width)
    per_layer = mixer + width * keys + width * width + 2 * width * config.decoder_inner
    return encoder, cross, config.decoder_layers * per_layer + width * config.vocabulary_size


def forward_flops(config: ModelConfig, source_lengths: list[int], target_lengths: list[int]) -> int:
    """Count the operations of the matmuls of one forward pass; a multiply-add is two operations.

    Other operators (softmax, norms, dropout, embedding) are left out, as is usual for model-FLOPs
    utilization. A backward pass takes twice as many operations.

    Args:
        config: Configuration of the model.
        source_lengths: Tokens of each source sentence.
        target_lengths: Tokens of each target sentence.
    """
    encoder, cross, decoder = matmul_weights(config)
    pairs = list(zip(source_lengths, target_lengths, strict=True))
    weights = (encoder + cross) * sum(source_lengths) + decoder * sum(target_lengths)
    scores = config.encoder_layers * sum(s * s for s in source_lengths)
    own_scores = 0 if config.is_recurrent else sum(t * t for t in target_lengths)
    scores += config.decoder_layers * (own_scores + sum(s * t for s, t in pairs))
    return 2 * weights + 2 * config.heads * (config.d_k + config.d_v) * scores


def training_flops(
    config: ModelConfig, source_lengths: list[int], target_lengths: list[int]
) -> int:
    """Count the operations of the matmuls of a forward and backward pass."""
    return 3 * forward_flops(config, source_lengths, target_lengths)


def _input(default: float, source: str) -> Any:
    """Declare an input and where its value is from."""
    return dataclasses.field(default=default, metadata={"source": source})


def _options(kind: Any) -> Iterator[Option]:
    """Iterate over the options of the inputs."""
    for field in dataclasses.fields(kind):
        name = f"--{field.name.replace('_', '-')}"
        yield option(name, type=type(field.default), default=field.default)


def _read(kind: type[Inputs], given: Namespace) -> Inputs:
    fields: Any = kind
    return kind(**{field.name: getattr(given, field.name) for field in dataclasses.fields(fields)})


def _report(inputs: Any, results: dict[str, Any], given: Namespace) -> Report | None:
    """Return a report of the defaults, or of any inputs if a file is named."""
    if given.out is None and inputs != type(inputs)():
        return None
    described = {
        field.name: [getattr(inputs, field.name), field.metadata["source"]]
        for field in dataclasses.fields(inputs)
    }
    return Report(results, {"inputs": described})


# ---- a corpus ----


@dataclass(frozen=True)
class CorpusInputs:
    """Inputs of a corpus on many GPUs."""

    gpus: int = _input(1000, "chosen")
    gpus_per_machine: int = _input(8, "chosen")
    sentences: float = _input(1e10, "chosen")
    sentences_per_second: float = _input(500.0, "assumed, of each GPU; not measured on text yet")
    source_bytes: float = _input(130.0, "assumed, UTF-8, of a sentence")
    target_bytes: float = _input(145.0, "assumed, UTF-8, of its translation")
    shard_lines: int = _input(50_000, "chosen")
    shard_spread: float = _input(0.05, "assumed: standard deviation of a shard's time / mean")
    slow_share: float = _input(0.01, "assumed: share of GPUs that are slow")
    slow_factor: float = _input(2.0, "assumed: how many times as long those take")
    machine_mtbf_hours: float = _input(2000.0, "assumed, of a machine, whatever fails in it")
    repair_hours: float = _input(1.0, "assumed, until a machine is back or replaced")
    start_seconds: float = _input(120.0, "assumed: machine, Ray, and loading of a bundle")
    bundle_gigabytes: float = _input(0.3, "assumed, of one target of a `big` model in FP16")
    record_bytes: float = _input(4096.0, "a block of the file system for each small file")
    dollars_per_gpu_hour: float = _input(2.5, "assumed; put in your own")


def corpus_figures(given: CorpusInputs) -> dict[str, list[str]]:
    """Return arithmetic and figure by quantity."""
    machines = math.ceil(given.gpus / given.gpus_per_machine)
    shards = math.ceil(given.sentences / given.shard_lines)
    shard = given.shard_lines / given.sentences_per_second  # seconds on a GPU of normal speed
    availability = given.machine_mtbf_hours / (given.machine_mtbf_hours + given.repair_hours)
    pace = 1 - given.slow_share + given.slow_share / given.slow_factor
    rate = given.gpus * given.sentences_per_second * pace * availability
    # The largest of n normally distributed times is expected at most sqrt(2 ln n) standard
    # deviations above the mean. A slow GPU is among n with probability 1 - (1 - share)^n.
    normal = 1 + given.shard_spread * math.sqrt(2 * math.log(given.gpus))
    slow = 1 - (1 - given.slow_share) ** given.gpus
    slowest = 1.0 if given.gpus == 1 else normal + slow * (given.slow_factor - 1)
    tail = slowest * shard
    # With speculation, shards slower than 1.5 times the mean also run on idle GPUs.
    speculative = min(tail, (1.5 + normal) * shard)
    hours_of_failures = given.sentences / rate / 3600 / given.machine_mtbf_hours
    failures = given.gpus / given.gpus_per_machine * hours_of_failures
    lost = failures * given.gpus_per_machine * (shard / 2 + given.start_seconds)  # GPU seconds
    whole = given.start_seconds + given.sentences / rate + lost / given.gpus + tail
    dollars = given.gpus * whole / 3600 * given.dollars_per_gpu_hour
    terabytes = given.sentences * (given.source_bytes + 2 * given.target_bytes) / 1e12
    both = rate * (given.source_bytes + given.target_bytes) / 1e6
    between = given.machine_mtbf_hours / machines
    joined = rate * 3 * given.target_bytes / 1e6
    start = machines * given.bundle_gigabytes / given.start_seconds
    records = shards * 2 * given.record_bytes / 1e9
    million = dollars / given.sentences * 1e6
    rows = (
        ("machines", "GPUs / GPUs of a machine", f"{machines:,}"),
        ("sentences per second", "GPUs x speed x pace x availability", f"{rate:,.0f}"),
        ("shards", "sentences / lines of a shard", f"{shards:,}"),
        ("a shard takes", "lines of a shard / speed", f"{shard:,.0f} s"),
        ("shards finished per second", "what the driver does", f"{rate / given.shard_lines:,.1f}"),
        ("reading and writing", "rate x bytes of both sides", f"{both:,.0f} MB/s"),
        ("joining, beside that", "rate x 3 x bytes of a translation: read, written, hashed",
         f"{joined:,.0f} MB/s"),
        ("bundles at the start", "machines x size of a target / start; their GPUs share one copy",
         f"{start:,.2f} GB/s"),
        ("storage", "sentences x (source + 2 x translation): parts and joined",
         f"{terabytes:,.2f} TB"),
        ("records of shards", "shards x 2 small files, until joined", f"{records:,.1f} GB"),
        ("a machine fails every", "MTBF / machines", f"{between:,.1f} hours"),
        ("machines that fail", "machines x hours / MTBF", f"{failures:,.2f}"),
        ("lost by failures", "each: half a shard and a start, of its GPUs",
         f"{lost / 3600:,.2f} GPU hours"),
        ("the slowest of one shard each", "1 + spread x sqrt(2 ln GPUs), and a slow GPU",
         f"{slowest:.2f} mean times"),
        ("the tail", "slowest x a shard's time", f"{tail:,.0f} s"),
        ("the tail, with speculation", "at most (1.5 + slowest that is not slow) x a shard's time",
         f"{speculative:,.0f} s"),
        ("GPUs idle in the tail", "tail / the whole run, at most", f"{100 * tail / whole:.1f} %"),
        ("the whole run", "start + sentences / rate + losses + tail", f"{whole / 3600:,.2f} hours"),
        ("cost", "GPUs x hours x price", f"${dollars:,.0f}"),
        ("cost of a million sentences", "cost / millions of sentences", f"${million:,.3f}"),
    )  # fmt: skip
    return {name: [arithmetic, figure] for name, arithmetic, figure in rows}


@benchmark("corpus-estimate", *_options(CorpusInputs), timed=False)
def corpus(given: Namespace) -> Report | None:
    """Estimate machines, hours, storage, failures and money of a corpus on many GPUs."""
    inputs = _read(CorpusInputs, given)
    found = corpus_figures(inputs)
    for name, (arithmetic, figure) in found.items():
        print(f"{name:32} {figure:>16}   {arithmetic}")
    return _report(inputs, found, given)


# ---- training ----

_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, SXM"
#: Accesses of a saved activation: written, read backward, and the same of its gradient.
_ACCESSES = 4
#: Bytes per logit of the compiled loss in bf16: written by a matmul; read for maximum and sum; read
#: and overwritten by the gradient; read by two matmuls.
_LOGIT_BYTES = 2 * 6
#: Bytes per parameter of a step: weight, gradient and two moments read, all but the gradient
#: written, and the gradient read for its norm.
_OPTIMIZER_BYTES = 4 * (4 + 3 + 1)


@dataclass(frozen=True)
class TrainingInputs:
    """Inputs of a training step; the metadata of each field names its source."""

    peak_tflops: float = _input(989.5, f"{_SHEET}: bf16, half of 1,979 with sparsity")
    terabytes_per_second: float = _input(3.35, f"{_SHEET}: memory")
    link_terabytes_per_second: float = _input(
        0.45, f"{_SHEET}: NVLink, half of 900 GB/s, one direction"
    )
    memory_gib: float = _input(78.0, "assumed: free memory of 80 GB")
    matmul_share: float = _input(0.5, "assumed: speed of matmuls / peak")
    memory_share: float = _input(0.8, "assumed: speed of other operators / memory's")
    launch_microseconds: float = _input(10.0, "assumed: host time of an operator")
    launch_share: float = _input(1.21, "measured on an H200: a step's launches / model's operators")
    sentence_tokens: int = _input(28, "assumed: mean length of both sides")
    vocabulary_size: int = _input(37_000, "the paper's, English-German")


@dataclass(frozen=True)
class TrainingStep:
    """Seconds of the parts of an optimizer step, each on one of the GPUs.

    `launches` is host time, which passes while the GPU works; nothing else overlaps.
    """

    micro_batch_tokens: int
    matmuls: float
    activations: float
    loss: float
    optimizer: float
    exchange: float
    launches: float

    @property
    def step(self) -> float:
        """Seconds of a step: the GPU's or the host's, whichever is longer."""
        gpu = self.matmuls + self.activations + self.loss + self.optimizer + self.exchange
        return max(gpu, self.launches)


@functools.cache
def operators(name: str) -> tuple[int, int]:
    """Count the operators of a preset's forward and backward pass, uncompiled, and of its Muon."""
    import torch  # other estimates do without
    from torch.utils._python_dispatch import TorchDispatchMode

    from translate_trt.train.data.batches import Batch
    from translate_trt.train.model import Transformer
    from translate_trt.train.optimizer import make_optimizers

    count = 0

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal count
            count += not function.is_view  # views launch nothing
            return function(*args, **(kwargs or {}))

    with torch.device("meta"):
        model = Transformer(PRESETS[name].model)
        tokens = torch.zeros(4, 8, dtype=torch.int64)
        rows = torch.zeros(32, dtype=torch.int64)
        batch = Batch(tokens, rows[:4], torch.zeros(4, 1, 1, 8), tokens, rows, rows)
        with Counter():
            hidden = model.train()(batch.source, batch.source_bias, batch.previous)
            hidden.flatten(0, 1)[batch.target_index].sum().backward()
            passes = count
            for muon in make_optimizers(model, PRESETS[name].train)[1:]:
                muon.step()
    return passes, count - passes


def _loss_bytes(config: ModelConfig, tokens: float) -> float:
    """Return the bytes that the compiled loss moves, without its inputs."""
    from translate_trt.train.loss import BYTES_AT_ONCE_ACCELERATOR

    rows = BYTES_AT_ONCE_ACCELERATOR // (2 * config.vocabulary_size)
    weights = config.vocabulary_size * config.d_model
    # Each chunk's weight gradient is written and read in bf16, and added to the sum in float32.
    chunks = math.ceil(tokens / rows) * (2 + 2 + 4 + 4) * weights
    return _LOGIT_BYTES * tokens * config.vocabulary_size + chunks


def training_step(name: str, gpus: int, given: TrainingInputs) -> TrainingStep:
    """Estimate a step of a preset, with as many tokens on both sides as it may have, unpadded."""
    import torch

    from translate_trt.train.model import Transformer
    from translate_trt.train.trainer.micro_batches import activation_bytes, divide, memory_limit

    recipe = PRESETS[name].train
    config = dataclasses.replace(PRESETS[name].model, vocabulary_size=given.vocabulary_size)
    limit = memory_limit(config, torch.bfloat16, int(given.memory_gib * 2**30))
    size = divide(recipe.batch_tokens, gpus, limit)
    tokens = recipe.batch_tokens / gpus
    lengths = [given.sentence_tokens] * round(tokens / given.sentence_tokens)
    moved = given.memory_share * given.terabytes_per_second * 1e12
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    speed = given.matmul_share * given.peak_tflops * 1e12
    passes, of_muon = operators(name)
    launched = round(tokens / size) * given.launch_share * passes
    return TrainingStep(
        micro_batch_tokens=size,
        matmuls=training_flops(config, lengths, lengths) / speed,
        activations=_ACCESSES * tokens * activation_bytes(config, torch.bfloat16) / moved,
        loss=_loss_bytes(config, tokens) / moved,
        # Muon's launches follow a wait for the gradients, so they take longer than its matmuls.
        optimizer=_OPTIMIZER_BYTES * parameters / moved + of_muon * given.launch_microseconds / 1e6,
        # A ring sends and receives each gradient twice, but for a share of 1 / GPUs.
        exchange=2 * (gpus - 1) / gpus * 4 * parameters / (given.link_terabytes_per_second * 1e12),
        launches=launched * given.launch_microseconds / 1e6,
    )


@benchmark("training-estimate", *_options(TrainingInputs), timed=False)
def training(given: Namespace) -> Report | None:
    """Estimate the step time and the hours of the paper's recipes on H100 GPUs."""
    inputs = _read(TrainingInputs, given)
    results: dict[str, Any] = {}
    for name in ("base", "big", "speedrun"):
        for gpus in (1, 8):
            found, steps = training_step(name, gpus, inputs), PRESETS[name].train.steps
            one = {**dataclasses.asdict(found), "step": found.step, "steps": steps}
            results.setdefault(name, {})[str(gpus)] = one
            hours = steps * found.step / 3600
            print(f"{name:5} {gpus} GPUs {1e3 * found.step:6.1f} ms a step {hours:6.2f} hours")
    return _report(inputs, results, given)


if __name__ == "__main__":
    main(__doc__)

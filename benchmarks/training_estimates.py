"""Estimate the step time and the hours of the paper's recipes on H100 GPUs.

    python benchmarks/training_estimates.py [--matmul-share 0.5] [--other-input VALUE]

Nothing here is measured. Work is counted from the shapes: operations of matmuls
(train/trainer/flops.py), bytes of activations (train/trainer/micro_batches.py), of logits and of
the optimizer, and the operators that the host launches. Speeds are those of NVIDIA's data sheet
times an assumed share. docs/train.md has the table for the default inputs, and measured steps of
an H200 beside their estimates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from tables import read_inputs, table
from torch.utils._python_dispatch import TorchDispatchMode

from translate_trt.train.config import PRESETS, ModelConfig
from translate_trt.train.data.batches import Batch
from translate_trt.train.loss import BYTES_AT_ONCE_ACCELERATOR
from translate_trt.train.model import Transformer
from translate_trt.train.trainer.flops import training_flops
from translate_trt.train.trainer.micro_batches import activation_bytes, divide, memory_limit

_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, SXM"


@dataclass(frozen=True)
class Inputs:
    """Inputs of the estimate; the metadata of each field names its source."""

    peak_tflops: float = dataclasses.field(
        default=989.5, metadata={"source": f"{_SHEET}: bf16, half of 1,979 with sparsity"}
    )
    terabytes_per_second: float = dataclasses.field(
        default=3.35, metadata={"source": f"{_SHEET}: memory"}
    )
    link_terabytes_per_second: float = dataclasses.field(
        default=0.45, metadata={"source": f"{_SHEET}: NVLink, half of 900 GB/s, one direction"}
    )
    memory_gib: float = dataclasses.field(
        default=78.0, metadata={"source": "assumed: free memory of 80 GB"}
    )
    matmul_share: float = dataclasses.field(
        default=0.5, metadata={"source": "assumed: speed of matmuls / peak"}
    )
    memory_share: float = dataclasses.field(
        default=0.8, metadata={"source": "assumed: speed of other operators / memory's"}
    )
    launch_microseconds: float = dataclasses.field(
        default=10.0, metadata={"source": "assumed: host time of an operator"}
    )
    fused_share: float = dataclasses.field(
        default=0.6, metadata={"source": "assumed: operators left by torch.compile"}
    )
    sentence_tokens: int = dataclasses.field(
        default=28, metadata={"source": "assumed: mean length of both sides"}
    )
    vocabulary_size: int = dataclasses.field(
        default=37_000, metadata={"source": "the paper's, English-German"}
    )


#: Accesses of a saved activation: written, read backward, and the same of its gradient.
_ACCESSES = 4
#: Bytes per logit of the compiled loss in bf16: written by a matmul; read for maximum and sum; read
#: and overwritten by the gradient; read by two matmuls.
_LOGIT_BYTES = 2 * 6
#: Bytes per parameter of a step: weight, gradient and two moments read, all but the gradient
#: written, and the gradient read for its norm.
_OPTIMIZER_BYTES = 4 * (4 + 3 + 1)


class _Counter(TorchDispatchMode):
    """Counts operators that compute; views launch nothing."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


@functools.cache
def operators(name: str) -> int:
    """Count the operators of a forward and backward pass of a preset's model, uncompiled."""
    with torch.device("meta"):
        model = Transformer(PRESETS[name].model)
        tokens = torch.zeros(4, 8, dtype=torch.int64)
        rows = torch.zeros(32, dtype=torch.int64)
        batch = Batch(tokens, rows[:4], torch.zeros(4, 1, 1, 8), tokens, rows, rows)
        with _Counter() as counter:
            hidden = model.train()(batch.source, batch.source_bias, batch.previous)
            hidden.flatten(0, 1)[batch.target_index].sum().backward()
    return counter.count


def _loss_bytes(config: ModelConfig, tokens: float) -> float:
    """Bytes that the compiled loss moves, without its inputs."""
    rows = BYTES_AT_ONCE_ACCELERATOR // (2 * config.vocabulary_size)
    weights = config.vocabulary_size * config.d_model
    # Each chunk's weight gradient is written and read in bf16, and added to the sum in float32.
    chunks = math.ceil(tokens / rows) * (2 + 2 + 4 + 4) * weights
    return _LOGIT_BYTES * tokens * config.vocabulary_size + chunks


@dataclass(frozen=True)
class Estimate:
    """Seconds of the parts of an optimizer step, each on one of the GPUs.

    `launches` is host time, which passes while the GPU works.
    """

    micro_batch_tokens: int
    matmuls: float
    activations: float
    loss: float
    optimizer: float
    exchange: float
    launches: float

    @property
    def gpu(self) -> float:
        """Seconds of the GPU; nothing overlaps."""
        return self.matmuls + self.activations + self.loss + self.optimizer + self.exchange

    @property
    def step(self) -> float:
        """Seconds of a step: the GPU's or the host's, whichever is longer."""
        return max(self.gpu, self.launches)


def estimate(name: str, gpus: int, given: Inputs) -> Estimate:
    """Estimate a step of a preset, with as many tokens on both sides as it may have, unpadded."""
    config, recipe = PRESETS[name].model, PRESETS[name].train
    config = dataclasses.replace(config, vocabulary_size=given.vocabulary_size)
    dtype = torch.bfloat16
    limit = memory_limit(config, dtype, int(given.memory_gib * 2**30))
    size = divide(recipe.batch_tokens, gpus, limit)
    tokens = recipe.batch_tokens / gpus
    lengths = [given.sentence_tokens] * round(tokens / given.sentence_tokens)
    moved = given.memory_share * given.terabytes_per_second * 1e12
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return Estimate(
        micro_batch_tokens=size,
        matmuls=training_flops(config, lengths, lengths)
        / (given.matmul_share * given.peak_tflops * 1e12),
        activations=_ACCESSES * tokens * activation_bytes(config, dtype) / moved,
        loss=_loss_bytes(config, tokens) / moved,
        optimizer=_OPTIMIZER_BYTES * parameters / moved,
        # A ring sends and receives each gradient twice, but for a share of 1 / GPUs.
        exchange=2 * (gpus - 1) / gpus * 4 * parameters / (given.link_terabytes_per_second * 1e12),
        launches=round(tokens / size)
        * given.fused_share
        * operators(name)
        * given.launch_microseconds
        / 1e6,
    )


def text(given: Inputs) -> str:
    """Format the inputs and the estimates."""
    inputs = [
        [field.name.replace("_", " "), f"{getattr(given, field.name):,}",
         field.metadata["source"]]
        for field in dataclasses.fields(given)
    ]  # fmt: skip
    rows = []
    for name in ("base", "big"):
        for gpus in (1, 8):
            found, steps = estimate(name, gpus, given), PRESETS[name].train.steps
            parts = (found.matmuls, found.activations, found.loss, found.optimizer, found.exchange)
            rows.append(
                [f"`{name}`", f"{gpus}", f"{found.micro_batch_tokens:,}"]
                + [f"{1e3 * part:.1f}" for part in (*parts, found.launches)]
                + [f"{1e3 * found.step:.0f}", f"{steps:,}", f"{steps * found.step / 3600:.2g}"]
            )
    header = ["preset", "GPUs", "tokens of a micro-batch", "matmuls, ms", "activations, ms"]
    header += ["loss, ms", "optimizer, ms", "exchange, ms", "host, ms"]
    header += ["step, ms", "steps", "hours"]
    return f"{table(header, rows)}\n{table(['input', 'value', 'where it is from'], inputs)}"


def main() -> None:
    """Print the estimates for the given inputs."""
    print(text(read_inputs(Inputs, __doc__)))


if __name__ == "__main__":
    main()

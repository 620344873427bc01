"""Roofline: the least time that a search could take, from its work and the machine's peaks.

Work is counted from the lengths that were translated: K rows of the decoder for each target token
and the end symbol, and each sentence's encoder once. Peaks are measured with large matmuls in ONNX
Runtime, in int8 and fp32, and by reading an array of the size of the 8-bit weights, which a large
cache may hold; for AMX also with tile instructions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from estimates import matmul_weights
from harness import seconds_of
from kernels import PROGRAM, build, runs
from onnx import numpy_helper, parser

from translate_trt.runtime import kernels
from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.train.config import ModelConfig

SIZE = 2048  # of the matrices


@dataclass(frozen=True)
class Peaks:
    """Peaks of all cores together, per second.

    A multiplication and an addition are two operations. `tiles`: of tile instructions alone, or 0
    without AMX. `read`: bytes.
    """

    int8: float
    fp32: float
    read: float
    tiles: float


@dataclass(frozen=True)
class Work:
    """Work of a search: operations of matmuls with weights, of attention, and bytes moved."""

    matmuls: float
    attention: float
    bytes: float

    def computing(self, precision: str, peaks: Peaks) -> float:
        """Return the least seconds of the operations; attention is in fp32 in every precision."""
        return self.matmuls / getattr(peaks, precision) + self.attention / peaks.fp32

    def seconds(self, precision: str, peaks: Peaks) -> float:
        """Return the least seconds."""
        return max(self.computing(precision, peaks), self.bytes / peaks.read)


def measure_peaks(cores: int, config: ModelConfig, repeats: int = 20) -> Peaks:
    """Measure the peaks: the best of several attempts."""
    operations, random = 2 * SIZE**3, np.random.default_rng(0)
    size = sum(matmul_weights(config))
    real = random.standard_normal((SIZE, SIZE), dtype=np.float32)
    whole = random.integers(0, 256, (SIZE, SIZE), dtype=np.uint8)
    signed = random.integers(-127, 128, (SIZE, SIZE), dtype=np.int8)
    integer = _matmul("uint8[M, K] x", "int32[M, N] y", "MatMulInteger", whole, signed, cores)
    floating = _matmul("float[M, K] x", "float[M, N] y", "MatMul", real, real, cores)
    timers = [seconds_of(run) for run in (integer, floating, _reading(cores, size))]
    found = [min([timed() for _ in range(repeats + 1)][1:]) for timed in timers]
    tiles = 0.0
    if kernels.describe().startswith("amx_int8"):
        build()
        tiles = 1e9 * cores * runs(PROGRAM, "tile_limit")()[0]["giga_operations_per_second"]
    return Peaks(operations / found[0], operations / found[1], size / found[2], tiles)


def _matmul(
    given: str, result: str, operator: str, x: np.ndarray, weight: np.ndarray, cores: int
) -> Callable[[], object]:
    """Return a matmul of ONNX Runtime."""
    graph = f"matmul ({given}) => ({result}) {{y = {operator}(x, w)}}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}')
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = cores
    content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    session: Any = ort.InferenceSession(content, settings, providers=providers)
    return lambda: session.run(None, {"x": x})


def _reading(cores: int, size: int) -> Callable[[], object]:
    """Return a pass over `size` bytes by all cores, a part each (numpy releases the lock)."""
    # All pages exist: those of zeros would all be the same one.
    parts, pool = np.array_split(np.ones(size, dtype=np.uint8), cores), ThreadPoolExecutor(cores)
    return lambda: list(pool.map(np.max, parts))


def work(
    config: ModelConfig, precision: str, sources: Sequence[int], targets: Sequence[int],
    beams: int, batch_tokens: int,
) -> Work:  # fmt: skip
    """Count the work of translating sentences of these lengths.

    Args:
        config: Shape of the model.
        precision: "int8" (weights of one byte) or "fp32".
        sources: Tokens per sentence, without the end symbol.
        targets: Tokens of its translation, without the end symbol.
        beams: K.
        batch_tokens: Size of a batch, which decides how often weights are read.
    """
    matmuls = attention = moved = 0.0
    weight_bytes = {"int8": 1, "fp32": 4}[precision]
    encoder, cross, decoder = matmul_weights(config)
    columns = config.heads * (config.d_k + config.d_v)
    for batch in length_sorted_batches([length + 1 for length in sources], batch_tokens):
        moved += weight_bytes * (encoder + cross)
        moved += weight_bytes * decoder * (1 + max(targets[row] for row in batch))
        for row in batch:
            source, steps = sources[row] + 1, targets[row] + 1
            matmuls += 2 * source * (encoder + cross) + 2 * beams * steps * decoder
            own = 0 if config.is_recurrent else steps * (steps + 1) / 2
            looked_at = own + steps * source  # positions, by one beam
            attention += 2 * columns * config.encoder_layers * source**2
            attention += 2 * columns * config.decoder_layers * beams * looked_at
            # Caches: of the beams' own tokens, and once per sentence of the source's.
            moved += 4 * columns * config.decoder_layers * (beams * own + steps * source)
    return Work(matmuls, attention, moved)

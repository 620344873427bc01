"""Roofline: the least time that a search could take, from its work and the machine's peaks.

Work is counted from the lengths that were translated: K rows of the decoder for each target token
and the end symbol, and each sentence's encoder once. Peaks are measured with large matmuls in ONNX
Runtime, in int8 and fp32, and with a large copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from translate_trt.runtime.batching import length_sorted_batches
from translate_trt.train.config import ModelConfig

SIZE = 2048  # of the matrices
COPIED = 2**28  # bytes


@dataclass(frozen=True)
class Peaks:
    """Peaks of all cores together: operations and bytes per second.

    `int8` and `fp32` count a multiplication and an addition as two. `copy` counts bytes read and
    bytes written.
    """

    int8: float
    fp32: float
    copy: float


@dataclass(frozen=True)
class Work:
    """Work of a search: operations of matmuls with weights, of attention, and bytes moved."""

    matmuls: float
    attention: float
    bytes: float

    def seconds(self, precision: str, peaks: Peaks) -> float:
        """Return the least seconds; attention is in fp32 in every precision."""
        computing = self.matmuls / getattr(peaks, precision) + self.attention / peaks.fp32
        return max(computing, self.bytes / peaks.copy)


def measure_peaks(cores: int, repeats: int = 5) -> Peaks:
    """Measure the peaks: the best of several attempts."""

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(repeats + 1):
            begin = perf_counter()
            run()
            times.append(perf_counter() - begin)
        return min(times[1:])

    operations = 2 * SIZE**3
    random = np.random.default_rng(0)
    real = random.standard_normal((SIZE, SIZE), dtype=np.float32)
    whole = random.integers(0, 256, (SIZE, SIZE), dtype=np.uint8)
    fp32, int8 = (
        _matmul("MatMul", real, cores),
        _matmul("MatMulInteger", random.integers(-127, 128, (SIZE, SIZE), dtype=np.int8), cores),
    )
    return Peaks(
        operations / best(lambda: int8.run(None, {"x": whole})),
        operations / best(lambda: fp32.run(None, {"x": real})),
        2 * COPIED / best(_copy(cores)),
    )


def _matmul(operator: str, weight: np.ndarray, cores: int) -> Any:
    """Load a graph of one matmul."""
    whole = operator == "MatMulInteger"
    given = TensorProto.UINT8 if whole else TensorProto.FLOAT
    result = TensorProto.INT32 if whole else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        operator,
        [helper.make_tensor_value_info("x", given, ["M", SIZE])],
        [helper.make_tensor_value_info("y", result, ["M", SIZE])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = cores
    content = model.SerializeToString()
    return ort.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def _copy(cores: int) -> Callable[[], object]:
    """Return a copy by all cores, a part each (numpy releases the interpreter lock)."""
    source = np.zeros(COPIED, dtype=np.uint8)
    begins = np.arange(0, COPIED, 2**20)
    parts = np.array_split(begins, min(cores, len(begins)))
    target = np.empty_like(source)

    def copy(part: np.ndarray) -> None:
        begin, end = int(part[0]), int(part[-1]) + 2**20
        target[begin:end] = source[begin:end]

    copy(np.array([0, COPIED - 2**20]))  # touch all pages first
    pool = ThreadPoolExecutor(cores)
    return lambda: list(pool.map(copy, parts))


def work(
    config: ModelConfig,
    precision: str,
    sources: Sequence[int],
    targets: Sequence[int],
    beams: int,
    batch_tokens: int,
) -> Work:
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
    encoder, cross, decoder = _parameters(config)
    for batch in length_sorted_batches([length + 1 for length in sources], batch_tokens):
        moved += weight_bytes * (encoder + cross)
        moved += weight_bytes * decoder * (1 + max(targets[row] for row in batch))
        for row in batch:
            source, steps = sources[row] + 1, targets[row] + 1
            matmuls += 2 * source * (encoder + cross) + 2 * beams * steps * decoder
            columns = config.heads * (config.d_k + config.d_v)
            own = 0 if config.is_recurrent else steps * (steps + 1) / 2
            looked_at = own + steps * source  # positions, by one beam
            attention += 2 * columns * config.encoder_layers * source**2
            attention += 2 * columns * config.decoder_layers * beams * looked_at
            # Caches: of the beams' own tokens, and once per sentence of the source's.
            seen = beams * own + steps * source
            moved += 4 * columns * config.decoder_layers * seen
    return Work(matmuls, attention, moved)


def _parameters(config: ModelConfig) -> tuple[int, int, int]:
    """Count weights: of the encoder, of cross-attention keys and values, of the decoder."""
    width, keys = config.d_model, config.heads * config.d_k
    attention = 2 * width * keys + 2 * width * width
    feed_forward = 2 * width * config.d_ff
    decoder_feed_forward = 2 * width * config.decoder_inner
    mixer = 2 * width * width if config.is_recurrent else attention
    encoder = config.encoder_layers * (attention + feed_forward)
    cross = config.decoder_layers * (width * keys + width * width)
    per_layer = mixer + width * keys + width * width + decoder_feed_forward
    decoder = config.decoder_layers * per_layer + width * config.vocabulary_size
    return encoder, cross, decoder

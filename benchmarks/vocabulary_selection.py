"""Coverage and cost of neural vocabulary selection beside the lexical shortlist.

    python benchmarks/vocabulary_selection.py --checkpoint RUN --shortlist TABLE \
        --train train.en train.de --test test.en test.de [--epochs 4] [--vocabulary 32000]

Domhan et al. (2022, "The Devil is in the Details: On the Pitfalls of Vocabulary Selection in Neural
Machine Translation") predict the target tokens of a sentence from the encoder's states: a linear
layer [d_model, V], a maximum over the source positions, a threshold. This script trains that layer
on a frozen encoder and compares, at several thresholds and sizes of the lexical table, the share of
reference tokens in the list with the mean size of the list. It then times the layer's 8-bit matmul
over the source positions of the test set, for a vocabulary of --vocabulary tokens, beside the
matmuls of lists: the selection computes a logit of every token at every source position, as many as
a translation without any list.

Times are CPU times of ONNX Runtime's MatMulInteger for both, in batches of 16 sentences.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from harness import cpu_seconds_of, parser, spread, write
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.runtime.io.lines import read_parallel
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END
from translate_trt.train.model import Transformer, pad, source_padding_bias
from translate_trt.train.shortlist.learning import Coverage, measure_coverage
from translate_trt.train.shortlist.table import Shortlist

BATCH = 64
# Domhan et al. weight the tokens of the reference, which are few beside the others.
POSITIVE_WEIGHT = 100.0
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SIZES = ((20, 10), (50, 20), (50, 50), (100, 50), (100, 100))

Pairs = list[tuple[list[int], list[int]]]


def encoded(files: Sequence[Path], tokenizer: Tokenizer) -> Pairs:
    """Tokenize the pairs of two files, without empty sides."""
    pairs = ((tokenizer.encode_source(s), tokenizer.encode_target(t))
             for s, t in read_parallel(*files))  # fmt: skip
    return [pair for pair in pairs if all(pair)]


def batches(pairs: Pairs, seed: int | None = None) -> Iterator[Pairs]:
    """Yield batches of similar source length; in random order with a seed."""
    ordered = sorted(pairs, key=lambda pair: len(pair[0]))
    starts = np.arange(0, len(ordered), BATCH)
    if seed is not None:
        np.random.default_rng(seed).shuffle(starts)
    for start in starts:
        yield ordered[start : start + BATCH]


class Selector(nn.Module):
    """Logits [N, V] of the tokens of a translation, from the encoder's states (section 4)."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.layer = nn.Linear(model.config.d_model, model.config.vocabulary_size)
        nn.init.constant_(self.layer.bias, -5.0)  # most tokens are absent

    def forward(self, sources: Sequence[list[int]]) -> Tensor:
        ids, lengths = pad([[*source, END] for source in sources])
        with torch.no_grad():
            states = self.model.encode(ids, source_padding_bias(ids, lengths))
        hidden = torch.arange(ids.shape[1]) >= lengths[:, None]  # [N, S]
        logits = self.layer(states).masked_fill(hidden[..., None], -torch.inf)
        found: Tensor = logits.amax(1)
        return found


def train(selector: Selector, pairs: Pairs, epochs: int) -> None:
    """Train the layer with binary cross-entropy on the bags of reference tokens."""
    optimizer = torch.optim.Adam(selector.layer.parameters(), lr=4e-3)
    weight = torch.tensor(POSITIVE_WEIGHT)
    for epoch in range(epochs):
        total = 0.0
        for batch in batches(pairs, seed=epoch):
            logits = selector([source for source, _ in batch])
            wanted = torch.zeros_like(logits)
            for row, (_, target) in zip(wanted, batch, strict=True):
                row[target] = 1.0
            loss = F.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total:.3f}")


@torch.inference_mode()
def probabilities(selector: Selector, pairs: Pairs) -> list[tuple[Pairs, Tensor]]:
    """Compute the probabilities [N, V] of the tokens of each batch; that of the end symbol is 1."""
    found = []
    for batch in batches(pairs):
        values = selector([source for source, _ in batch]).sigmoid()
        values[:, END] = 1.0
        found.append((batch, values))
    return found


def selected(found: list[tuple[Pairs, Tensor]], threshold: float) -> Coverage:
    """Measure the coverage of the lists at a threshold."""
    tokens = inside = whole = list_tokens = 0
    for batch, values in found:
        chosen = values > threshold
        for row, (_, target) in zip(chosen, batch, strict=True):
            covered = int(row[target].sum())
            tokens += len(target)
            inside += covered
            whole += covered == len(target)
            list_tokens += int(row.sum())
    sentences = sum(len(batch) for batch, _ in found)
    return Coverage(tokens, inside, sentences, whole, list_tokens)


def figures(found: Coverage) -> dict[str, float]:
    """Convert a coverage to shares and a mean size."""
    return {
        "inside": found.inside / found.tokens,
        "whole": found.whole / found.sentences,
        "list": found.list_tokens / found.sentences,
    }


def matmul(rows: int, width: int, columns: int, threads: int) -> ort.InferenceSession:
    """Session of an 8-bit matmul [rows, width] x [width, columns]."""
    weights = np.random.default_rng(0).integers(-127, 128, (width, columns)).astype(np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, width])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [rows, columns])],
        [helper.make_tensor("w", TensorProto.INT8, weights.shape, weights.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model.SerializeToString(), options)


def milliseconds(rows: int, width: int, columns: int, given: argparse.Namespace) -> list[float]:
    """Measure a matmul: median, least and most CPU time in ms."""
    session = matmul(rows, width, columns, given.threads)
    x: NDArray[Any] = np.random.default_rng(1).integers(0, 256, (rows, width)).astype(np.uint8)
    timed = cpu_seconds_of(lambda: session.run(None, {"x": x}))
    return spread(1e3 * timed() for _ in range(max(3, given.rounds)))


def main() -> None:
    """Train the selector, compare coverage, time the matmuls, and write the report."""
    options = parser(__doc__)
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--shortlist", type=Path, required=True, help="lexical table")
    options.add_argument("--train", type=Path, nargs=2, required=True)
    options.add_argument("--test", type=Path, nargs=2, required=True)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--vocabulary", type=int, default=32_000, help="of the timed matmuls")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    checkpoint = open_checkpoint(given.checkpoint)
    tokenizer = Tokenizer(*checkpoint.tokenizers)
    test = encoded(given.test, tokenizer)
    selector = Selector(checkpoint.load_model().eval())
    train(selector, encoded(given.train, tokenizer), given.epochs)
    computed = probabilities(selector, test)
    results: dict[str, Any] = {
        f"neural, threshold {threshold}": figures(selected(computed, threshold))
        for threshold in THRESHOLDS
    }
    table = Shortlist.load(given.shortlist)
    for frequent, best in SIZES:
        smaller = table.truncated(frequent, best)
        found = measure_coverage(smaller, read_parallel(*given.test), tokenizer)
        results[f"lexical, {frequent} + {best}"] = figures(found)
    width = checkpoint.model.d_model
    lengths = [len(source) + 1 for source, _ in test]
    source, target = 16 * round(np.mean(lengths)), round(np.mean([len(t) + 1 for _, t in test]))
    for name, value in results.items():
        print(f"{name:26} {value['inside']:8.2%} {value['whole']:8.2%} {value['list']:8.0f}")
    listed = round(results[f"lexical, {SIZES[-1][0]} + {SIZES[-1][1]}"]["list"])
    times = {
        f"selection, {source} positions": milliseconds(source, width, given.vocabulary, given),
        f"whole vocabulary, {target} steps": [
            target * value for value in milliseconds(16, width, given.vocabulary, given)
        ],
        f"lists of {listed}, {target} steps": [
            16 * target * value for value in milliseconds(1, width, listed, given)
        ],
    }
    for name, spread_ in times.items():
        print(f"{name:34} {spread_[0]:8.2f} ms [{spread_[1]:.2f}, {spread_[2]:.2f}]")
    settings = {"d_model": width, "vocabulary": given.vocabulary, "epochs": given.epochs}
    report = {"coverage": results, "milliseconds_of_16_sentences": times}
    print(write("vocabulary-selection", settings, report, given, {}))


if __name__ == "__main__":
    main()

"""What models of other toolkits cost beside one of the paper's: `base` with what they have besides.

    python benchmarks/imported_shapes.py [--rounds 9]

Both graphs, with random weights, 58,101 pieces (as OPUS-MT's English-German), 4 beams, 15 tokens so
far, 30 source tokens; ONNX Runtime on the CPU, for 1 and 32 sentences, all shapes in turn. One
thread, and the time that the processor spends on it: what else runs on the machine counts little.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import torch
from graph_choices import BEAMS, SOURCE, TOKENS, feeds, session, typed
from report import alternate, parser, write

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import model_contract
from translate_trt.export.importers.vocabulary import BANNED_BIAS
from translate_trt.export.passes.pipeline import passes_for
from translate_trt.export.precision import precision_pass
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import PAD, START, preset
from translate_trt.train.model import Transformer

VOCABULARY = 58_101
SIZES = (1, 32)
PRECISIONS = ("int8", "fp32")
PARTS = ("step", "encoder")

#: By what models have that is not the paper's: fields of ModelConfig.
PAPER = "the paper's"
SHAPES: dict[str, dict[str, Any]] = {
    PAPER: {},
    "bias of the logits (Marian with ReLU)": {"output_bias": True, "sinusoid": "concatenated"},
    "bias, swish (OPUS-MT)": {
        "output_bias": True, "sinusoid": "concatenated", "activation": "swish",
    },
    "bias, GELU (BART's layers)": {"output_bias": True, "activation": "gelu"},
    "bias, pre-norm (OpenNMT-py)": {"output_bias": True, "norm": "pre"},
}  # fmt: skip


def random_model(changes: dict[str, Any]) -> Transformer:
    """`base` with those fields; some tokens never come where logits have a bias."""
    torch.manual_seed(0)
    config = dataclasses.replace(preset("base").model, vocabulary_size=VOCABULARY, **changes)
    model = Transformer(config).eval()
    if model.output_bias is not None:
        with torch.no_grad():
            model.output_bias.normal_()
            model.output_bias[[PAD, START]] = BANNED_BIAS
    return model


def sessions(changes: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Both graphs of such a model, loaded, by precision and part."""
    model = random_model(changes)
    traced = trace_graphs(model, Limits(256, 306), model_contract(model.config), DYNAMIC_OPSET)
    found = {}
    for precision in PRECISIONS:
        passes = passes_for("onnxruntime", precision_pass(precision, {}))
        for part in PARTS:
            found[precision, part] = session(traced[part], passes, (), 1, True)
    return found


def inputs(part: str, sentences: int) -> dict[str, np.ndarray]:
    """Of a graph."""
    if part == "step":
        return feeds(model_contract(preset("base").model), sentences)
    tokens = np.random.default_rng(0).integers(4, VOCABULARY, (sentences, SOURCE))
    return {"source_ids": tokens, "source_lengths": np.full(sentences, SOURCE)}


def processor_seconds(graph: Any, values: dict[str, np.ndarray]) -> Callable[[], float]:
    """Of a run."""

    def timed() -> float:
        begin = process_time()
        graph.run(None, values)
        return process_time() - begin

    return timed


def main() -> None:
    """Measure and write."""
    args = parser(__doc__).parse_args()
    loaded = {name: sessions(changes) for name, changes in SHAPES.items()}
    samples: dict[str, Any] = {}
    for precision, part, sentences in itertools.product(PRECISIONS, PARTS, SIZES):
        given = inputs(part, sentences)
        systems = {}
        for name, graphs in loaded.items():
            graph = graphs[precision, part]
            systems[name] = processor_seconds(graph, typed(graph, given))
        found = alternate(systems, args.rounds, warmup=2)
        name = f"{precision}, {part}, {sentences} sentence{'s' if sentences > 1 else ''}"
        samples[name] = found
        medians = (f"{1e3 * statistics.median(times):.2f}" for times in found.values())
        print(f"{name}, ms: {', '.join(medians)}", flush=True)
    settings = {"threads": 1, "vocabulary": VOCABULARY, "beams": BEAMS, "tokens": TOKENS,
                "source": SOURCE, "shapes": SHAPES}  # fmt: skip
    print(write("imported-shapes", settings, samples, args.out))


if __name__ == "__main__":
    main()

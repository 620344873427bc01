#!/usr/bin/env python3
"""Check on a GPU that TopK orders equal values by index, which rule 8 of docs/beam-search.md needs.

    python scripts/topk_ties.py [--package tensorrt_rtx]

TensorRT does not document the order. The script builds an engine of the kinds of TopK in the step
graph (over the vocabulary, and over candidates), and runs it on logits rounded as in FP16,
many of which are equal. The exit code is 1 if an index differs from that of a stable sort.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper

from translate_trt.export.engines.builder import build_engine
from translate_trt.export.engines.network import Graph, load_builder
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends.device import Launch
from translate_trt.runtime.backends.engines import Profile, load_engine
from translate_trt.runtime.backends.tensorrt import Engine, EngineContexts
from translate_trt.runtime.bundle.contract import TensorSpec

#: Rows, columns and count of the TopK operators of base with beam 4: over the logits of one and of
#: 64 sentences, for which TensorRT-RTX builds different kernels, and over candidates.
SHAPES = {
    "logits_1": (4, 37_000, 9),
    "logits_64": (256, 37_000, 9),
    "candidates": (64, 40, 8),
}


def graph() -> Graph:
    """Return the graph of the TopK operators."""
    inputs = [TensorSpec(name, "float32", shape[:2]) for name, shape in SHAPES.items()]
    outputs = [
        TensorSpec(f"{kind}_{name}", dtype, (rows, count))
        for name, (rows, _, count) in SHAPES.items()
        for kind, dtype in (("values", "float32"), ("indices", "int64"))
    ]
    nodes = [
        helper.make_node(
            "TopK", [name, f"k_{name}"], [f"values_{name}", f"indices_{name}"], name=name
        )
        for name in SHAPES
    ]
    types = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}

    def declared(spec: TensorSpec) -> Any:
        return helper.make_tensor_value_info(spec.name, types[spec.dtype], list(spec.axes))

    made = helper.make_graph(
        nodes, "topk", [declared(spec) for spec in inputs], [declared(spec) for spec in outputs],
        [
            helper.make_tensor(f"k_{name}", TensorProto.INT64, [1], [shape[2]])
            for name, shape in SHAPES.items()
        ],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return Graph("topk", model.SerializeToString(), inputs, outputs)


def values(name: str) -> np.ndarray:
    """Return values with many ties: rounded to 1/128 as FP16 logits of 8 to 16, and equal rows."""
    rows, columns, _ = SHAPES[name]
    random = np.random.default_rng(rows)
    found = np.round(128 * random.normal(0.0, 3.0, (rows, columns))) / 128
    found[0] = 0.0
    found[1, -3:] = 100.0
    return found.astype(np.float32)


def expected(name: str, found: np.ndarray) -> np.ndarray:
    """Return the indices of the largest values, equal ones by ascending index."""
    return np.argsort(-found, axis=1, kind="stable")[:, : SHAPES[name][2]]


def indices(engine: Engine, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the engine on the current GPU and return the indices by name of the input."""
    tensors = {name: torch.from_numpy(array).cuda() for name, array in given.items()}
    for name, (rows, _, count) in SHAPES.items():
        tensors[f"values_{name}"] = torch.empty(rows, count, device="cuda")
        tensors[f"indices_{name}"] = torch.empty(rows, count, dtype=torch.int64, device="cuda")
    scratch = torch.empty(engine.scratch_bytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    contexts = EngineContexts({"step": engine}, stream.cuda_stream, scratch.data_ptr())
    shapes = {name: array.shape for name, array in given.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    contexts.launch(Launch("step", 0, shapes, addresses))
    stream.synchronize()
    return {name: tensors[f"indices_{name}"].cpu().numpy() for name in given}


def report(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> list[str]:
    """Return a line for each input whose indices are not those of a stable sort."""
    lines = []
    for name, array in given.items():
        wrong = (found[name] != expected(name, array)).any(axis=1)
        chosen = np.take_along_axis(array, found[name], axis=1)
        best = np.take_along_axis(array, expected(name, array), axis=1)
        if wrong.any():
            row = int(np.argmax(wrong))
            kind = "order of equal values" if (chosen == best).all() else "values"
            lines.append(
                f"TopK over {name}: wrong {kind} in {wrong.sum()} of {len(array)} rows; row {row}: "
                f"{found[name][row].tolist()}, not {expected(name, array)[row].tolist()}"
            )
    return lines


def main() -> int:
    """Build and run the engine, print the result and return the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--package", default="tensorrt_rtx", help="tensorrt or tensorrt_rtx")
    package = options.parse_args().package
    built = graph()
    engine = build_engine(load_builder(package), built, (Profile(1, 1),), EngineOptions(cache=None))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "topk.engine")
        path.write_bytes(engine.plan)
        loaded = Engine(
            load_engine(path, engine.record), engine.record, built.inputs, built.outputs
        )
        given = {name: values(name) for name in SHAPES}
        lines = report(given, indices(loaded, given))
    print("\n".join(lines) or "equal values are ordered by index")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())

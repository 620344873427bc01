"""Measure how long it takes to trace both graphs of a model, with our translation and with torch's.

    python benchmarks/tracing.py [--rounds 3]

Processor seconds of `trace`, which records the operators of the encoder and of the step
(`torch.export`) and translates them into ONNX (export/aten_to_onnx.py), and of `torch.onnx.export`,
which records them in the same way. Presets `base` and `student-tiny` with random weights and 1,000
tokens: what is recorded depends neither on the weights nor on their sizes.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch
from harness import alternate, compared, cpu_seconds_of, parser, write
from torch import nn

from translate_trt.export.contract import model_contract
from translate_trt.export.graphs import EncoderGraph, StepGraph
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.export.trace import record, trace
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.train.config import preset
from translate_trt.train.model import Transformer

VOCABULARY, POSITIONS = 1_000, 128


def with_torch(modules: dict[str, nn.Module], contract: Contract) -> None:
    """Trace both graphs with `torch.onnx.export`."""
    for role, (inputs, outputs) in contract.graphs.items():
        torch.onnx.export(
            record(modules[role], inputs), (), dynamo=True, optimize=False, verbose=False,
            input_names=[spec.name for spec in inputs],
            output_names=[spec.name for spec in outputs],
            opset_version=DYNAMIC_OPSET,
        )  # fmt: skip


def with_ours(modules: dict[str, nn.Module], contract: Contract) -> None:
    """Trace both graphs as `translate-trt export` does."""
    for role, (inputs, outputs) in contract.graphs.items():
        trace(modules[role], inputs, outputs, role)


def main() -> None:
    """Measure, and write the report."""
    args = parser(__doc__).parse_args()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    samples: dict[str, Any] = {}
    for name in ("base", "student-tiny"):
        config = dataclasses.replace(preset(name).model, vocabulary_size=VOCABULARY)
        contract, model = model_contract(config), Transformer(config).eval()
        modules = {
            "encoder": EncoderGraph(model, POSITIONS),
            "step": StepGraph(model, POSITIONS, contract),
        }
        systems = {
            "translate-trt": cpu_seconds_of(lambda: with_ours(modules, contract)),  # noqa: B023
            "torch.onnx.export": cpu_seconds_of(lambda: with_torch(modules, contract)),  # noqa: B023
        }
        samples[name] = alternate(systems, args.rounds)
        print(name, compared(samples[name], "torch.onnx.export"), flush=True)
    settings = {"vocabulary": VOCABULARY, "positions": POSITIONS}
    found = {name: compared(one, "torch.onnx.export") for name, one in samples.items()}
    print(write("tracing", settings, found, args, samples))


if __name__ == "__main__":
    main()

"""Compare beam search by engines, with and without CUDA graphs, with torch.compile on a GPU.

    python benchmarks/gpu.py [--package tensorrt_rtx] [--precision fp16] [--batches 1,8,64]
        [--preset base] [--vocabulary 32000] [--steps 48]

Every system runs the same step (export/graphs.py) with the same random weights, and no sentence
ends before the last step. Figures are microseconds per step of the whole batch (for engines, from
the difference of a long and a short call), and tokens per second from sources to the last step.
PyTorch's step is compiled by torch.compile and captured as a CUDA graph; its caches are static and
written in place.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import alternate, parser, spread, write
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.graphs import EncoderGraph, StaticCaches, StepGraph
from translate_trt.runtime import native
from translate_trt.runtime.backends import Settings, load_engines
from translate_trt.runtime.backends.engines import Profile, check_engines
from translate_trt.runtime.bundle.contract import NEXT, Contract, request_values
from translate_trt.runtime.bundle.manifest import Limits, read_manifest
from translate_trt.runtime.native.core import Core
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import DecodingDefaults, open_checkpoint, save_checkpoint
from translate_trt.train.config import END, PAD, START, UNKNOWN, TrainConfig, preset
from translate_trt.train.model import Transformer

SOURCE_LENGTH = 32
NO_GPU = 3  # exit code


class InPlace(StaticCaches):
    """Static caches that PyTorch writes in place."""

    def write(self, past: Tensor, new: Tensor) -> Tensor:
        slots = self.positions[:, None] * self.beams + torch.arange(self.beams)
        index = slots[:, None, :, None].expand(new.shape)
        return past.scatter_(2, index, new.to(past.dtype))


class TorchStep(StepGraph):
    """Step graph with PyTorch's caches."""

    def _caches(self, named: dict[str, Tensor]) -> InPlace:
        assert self.contract.beams is not None
        return InPlace(named["positions"], self.contract.beams)


class TorchSearch:
    """Search in PyTorch with a compiled and captured step."""

    def __init__(
        self, model: Transformer, contract: Contract, limits: Limits, dtype: torch.dtype,
        device: str = "cuda",
    ) -> None:  # fmt: skip
        self.device, self.dtype, self.contract = torch.device(device), dtype, contract
        with self.device:
            self.encoder = EncoderGraph(model, limits.max_source_length).to(device).eval()
            self.step = TorchStep(model, limits.max_target_length, contract).to(device).eval()
        if device == "cuda":
            self.call: Callable[..., Any] = torch.compile(
                self.step, mode="max-autotune-no-cudagraphs"
            )
        else:
            self.call = self.step
        self.inputs: dict[str, Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None
        self.rows = 0

    def start(self, sources: list[list[int]], options: SearchOptions, steps: int) -> None:
        """Encode sources of equal length into the buffers that the captured step reads."""
        ids = torch.tensor([[*row, END] for row in sources], device=self.device)
        lengths = torch.full((len(ids),), ids.shape[1], device=self.device)
        with torch.no_grad(), self.device, self._autocast():
            encoded = self.encoder(ids, lengths)
        contract, rows = self.contract, len(sources)
        names = [spec.name for spec in contract.encoder_outputs]
        values = dict(zip(names, encoded, strict=True))
        most = np.full(rows, steps, dtype=np.int64)
        host = request_values([options] * rows, most)
        host |= contract.initial_state(rows, options.beam_size, START)
        values |= {name: torch.from_numpy(value).to(self.device) for name, value in host.items()}
        types = {spec.name: getattr(torch, spec.dtype) for spec in contract.step_inputs}
        values = {
            spec.name: values[spec.name].to(types[spec.name]) for spec in contract.step_inputs
        }
        if rows != self.rows:
            self.inputs, self.rows, self.graph = values, rows, None
        for name, value in values.items():
            self.inputs[name].copy_(value)

    def advance(self) -> None:
        """Run a step, by replay if possible."""
        if self.device.type != "cuda":
            self._eager()
            return
        if self.graph is None:
            saved = {name: value.clone() for name, value in self.inputs.items()}
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._eager()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._eager()
            for name, value in saved.items():
                self.inputs[name].copy_(value)
        self.graph.replay()

    def _eager(self) -> None:
        with torch.no_grad(), self.device, self._autocast():
            outputs = self.call(*self.inputs.values())
        written = {spec.name for spec in self.contract.caches}
        for spec, output in zip(self.contract.step_outputs, outputs, strict=True):
            name = spec.name.removeprefix(NEXT)
            if name in self.inputs and name not in written:
                self.inputs[name].copy_(output)

    def _autocast(self) -> torch.autocast:
        half = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if half else None, enabled=half)

    def run(self, sources: list[list[int]], options: SearchOptions, steps: int) -> dict[str, float]:
        begin = time.perf_counter()
        self.start(sources, options, steps)
        self._wait()
        middle = time.perf_counter()
        for number in range(steps):
            self.advance()
            if number % 4 == 3:
                self.inputs["done"].all().item()  # as often as the other systems check it
        self._wait()
        return _sample(begin, middle, time.perf_counter(), len(sources), steps)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class EngineSearch:
    """Search of libtranslate_trt on a bundle's engines."""

    def __init__(self, bundle: Path, target: str, count: int, cuda_graphs: bool) -> None:
        library = native.library()
        if library is None:
            raise SystemExit(f"{native.status()}; engines run on libtranslate_trt")
        manifest = read_manifest(bundle)
        entry = manifest.target(target)
        files = {role: file.locate(bundle) for role, file in entry.files.items()}
        settings = Settings(cuda_graphs=cuda_graphs)
        engines = load_engines(files, entry.contract, settings, check_engines(entry, bundle))
        self.core = Core(
            library, bundle, target, threads=1, workers=1, batch_tokens=count * SOURCE_LENGTH,
            engines=engines,
        )  # fmt: skip

    def run(self, sources: list[list[int]], steps: int) -> dict[str, float]:
        """Time two calls whose difference consists of steps alone."""
        few, begin = steps // 4, time.perf_counter()
        self._translate(sources, few)
        middle = time.perf_counter()
        self._translate(sources, steps)
        end = time.perf_counter()
        seconds = (end - middle) - (middle - begin)
        return {
            "microseconds_per_step": 1e6 * seconds / (steps - few),
            "tokens_per_second": len(sources) * steps / (end - middle),
        }

    def _translate(self, sources: list[list[int]], steps: int) -> None:
        options = SearchOptions(min_length=steps, max_length=steps)
        self.core.submit_ids(sources, options).result()


def _sample(begin: float, middle: float, end: float, rows: int, steps: int) -> dict[str, float]:
    return {
        "microseconds_per_step": 1e6 * (end - middle) / steps,
        "tokens_per_second": rows * steps / (end - begin),
    }


def _tokenizer(path: Path, size: int) -> Path:
    """Write a SentencePiece model of that many pieces, which never sees text."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = model.SentencePiece
    specials = (("<pad>", kinds.CONTROL), ("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL),
                ("</s>", kinds.CONTROL))  # fmt: skip
    for piece, kind in specials:
        model.pieces.add(piece=piece, score=0.0, type=kind)
    for number in range(len(specials), size):
        model.pieces.add(piece=f"<{number}>", score=-float(number), type=kinds.NORMAL)
    spec = model.trainer_spec
    spec.vocab_size, spec.pad_id, spec.unk_id = size, PAD, UNKNOWN
    spec.bos_id, spec.eos_id = START, END
    path.write_bytes(model.SerializeToString())
    return path


def build(given: argparse.Namespace, model: Transformer, directory: Path) -> tuple[Path, str]:
    """Build a bundle with both engines and return its path and target."""
    target = f"{given.package.replace('_', '-')}-{given.precision}"
    tokenizer = _tokenizer(directory / "tokenizer.model", given.vocabulary)
    save_checkpoint(
        directory / "checkpoint", model.state_dict(), model.config, TrainConfig(),
        (tokenizer, tokenizer), DecodingDefaults("en", "de"),
    )  # fmt: skip
    profiles = tuple(Profile(count, SOURCE_LENGTH) for count in given.batches)
    options = BuildOptions(
        (target,), SOURCE_LENGTH, SOURCE_LENGTH + 50,
        engines=EngineOptions(profiles=profiles, cache=None),
    )  # fmt: skip
    compile_bundle(open_checkpoint(directory / "checkpoint"), directory / "bundle", options)
    return directory / "bundle", target


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure every system at every batch size."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    config = dataclasses.replace(preset(given.preset).model, vocabulary_size=given.vocabulary)
    model = Transformer(config).eval()
    limits = Limits(SOURCE_LENGTH, SOURCE_LENGTH + 50)
    options = SearchOptions(min_length=given.steps, max_length=given.steps)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[given.precision]
    samples: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        bundle, target = build(given, model, Path(name))
        contract = read_manifest(bundle).target(target).contract
        torch_search = TorchSearch(model, contract, limits, dtype)
        for count in given.batches:
            sources = _sources(count, given.vocabulary)
            run_torch = partial(torch_search.run, sources, options, given.steps)
            systems: dict[str, Callable[[], Any]] = {"torch.compile": run_torch}
            for label, graphs in (("engines", True), ("engines without CUDA graphs", False)):
                search = EngineSearch(bundle, target, count, graphs)
                systems[label] = partial(search.run, sources, given.steps)
            found = alternate(systems, given.rounds, warmup=2)
            samples[f"batch {count}"] = {
                label: {unit: [one[unit] for one in rounds] for unit in rounds[0]}
                for label, rounds in found.items()
            }
            for label, figures in samples[f"batch {count}"].items():
                best = min(figures["microseconds_per_step"])
                speed = max(figures["tokens_per_second"])
                print(f"batch {count:4} {label:28} {best:10.1f} us/step {speed:12.0f} tokens/s")
    return samples


def _sources(count: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, vocabulary, (count, SOURCE_LENGTH - 1), generator=generator)
    rows: list[list[int]] = tokens.tolist()
    return rows


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--package", default="tensorrt_rtx", help="tensorrt or tensorrt_rtx")
    options.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"))
    options.add_argument("--preset", default="base")
    options.add_argument("--vocabulary", type=int, default=32_000)
    options.add_argument("--steps", type=int, default=48, help="steps of each search")
    options.add_argument("--batches", default="1,8,64", help="batch sizes")
    given = options.parse_args()
    given.batches = sorted({int(count) for count in given.batches.split(",")})
    return given


def main() -> None:
    given = arguments()
    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False", file=sys.stderr)
        raise SystemExit(NO_GPU)
    settings = {
        name: getattr(given, name)
        for name in ("package", "precision", "preset", "vocabulary", "steps", "batches")
    }
    samples = measure(given)
    results = {
        name: {
            label: {unit: spread(values) for unit, values in figures.items()}
            for label, figures in found.items()
        }
        for name, found in samples.items()
    }
    settings["gpu"] = torch.cuda.get_device_name()
    print(write(f"gpu-{given.preset}-{given.precision}", settings, results, given, samples))


if __name__ == "__main__":
    main()

"""benchmarks/gpu.py as far as it goes without a GPU."""

from __future__ import annotations

import argparse

import pytest
import torch
from support.compiled import compile_once
from support.shared import SharedFiles

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime import native
from translate_trt.runtime.backends import Settings
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def options(*given: str) -> argparse.Namespace:
    from gpu import complete, gpu
    from harness import parse

    return complete(parse(gpu, given))


def samples(*microseconds: float) -> dict[str, list[float]]:
    return {
        "microseconds_per_step": list(microseconds),
        "tokens_per_second": [1e6 / one for one in microseconds],
    }


def test_the_search_in_pytorch_runs_on_the_cpu(checkpoint: Checkpoint) -> None:
    from gpu import TorchSearch

    from translate_trt.export.compile import Compiler

    limits, target, steps = Limits(16, 66), "tensorrt-rtx-fp32", 8
    model = checkpoint.model
    compiler = Compiler(checkpoint.load_model(), limits, BuildOptions((target,), beam_size=2))
    search = TorchSearch(
        checkpoint.load_model(), compiler.contract(target), limits, torch.float32, device="cpu"
    )
    sources = torch.randint(4, model.vocabulary_size, (3, 15)).tolist()
    found = search.run(
        sources, SearchOptions(beam_size=2, min_length=steps, max_length=steps), steps
    )
    assert found.keys() == samples(1.0).keys()
    assert search.inputs["done"].all()
    assert search.inputs["positions"].tolist() == [steps - 1] * 3  # the last step ends the search
    assert search.inputs["ancestry"].shape[2] in (2 * 32, 2 * 66)
    written = search.inputs["self_key_0"].abs().sum((0, 1, 3)) > 0
    assert written.tolist() == [slot < 2 * steps for slot in range(2 * 66)]


@pytest.mark.parametrize("captures", [True, False])
def test_the_search_of_the_library_runs_on_the_cpu(
    captures: bool, shared: SharedFiles, checkpoint: Checkpoint
) -> None:
    from gpu import EngineSearch

    if native.library() is None:
        pytest.skip(native.status())
    build = BuildOptions(("torch-fp32",), engines=EngineOptions(profiles=(Profile(3, 48),)))
    bundle = compile_once(shared, checkpoint, build)
    settings = Settings(device="cpu", cuda_graphs=captures)
    search = EngineSearch(bundle, "torch-fp32", 3 * 48, settings)
    sources = torch.randint(4, checkpoint.model.vocabulary_size, (3, 15)).tolist()
    found = search.run(sources, SearchOptions(min_length=8, max_length=8), 8)
    assert found.keys() == samples(1.0).keys()

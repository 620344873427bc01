"""benchmarks/gpu.py as far as it goes without a GPU."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

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


def test_a_case_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu import CaseError, measure_all

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")

    def case(name: str, limit: float) -> dict[str, list[float]]:
        if name in ("build engines with attention operator", "64 torch.compile"):
            raise CaseError("failed: exit code 1")
        return samples(1.0)

    *_, report = measure_all(options("--work", str(tmp_path)), case, time.monotonic)
    found = report.results["batch 64"]
    assert found["torch.compile"] == {"failed": "failed: exit code 1"}
    for batch in ("batch 64", "batch 1"):
        engines = report.results[batch]
        assert engines["engines with attention operator"] == {"failed": "not run: the build failed"}
        assert "microseconds_per_step" in engines["engines without CUDA graphs"]
    assert "microseconds_per_step" in report.results["batch 1"]["torch.compile"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('a log line'); print('{\"seconds\": [1.5]}')", None),
        ("raise SystemExit(4)", r"failed.*code 4"),
        ("pass", r"failed.*code 0"),
        ("import time; time.sleep(60)", r"finished.*after 1"),
    ],
    ids=["passes", "fails", "says nothing", "hangs"],
)
def test_a_case_runs_in_a_process_with_a_time_limit(
    program: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu

    script = tmp_path / "case.py"
    script.write_text(program)
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--rounds", "2"])
    if message is None:
        assert gpu.in_process("1 engines", 60) == {"seconds": [1.5]}
    else:
        with pytest.raises(gpu.CaseError, match=message):
            gpu.in_process("1 engines", 1 if "after 1" in message else 60)


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

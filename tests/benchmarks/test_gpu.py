"""benchmarks/gpu.py as far as it goes without a GPU."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def options(*given: str) -> argparse.Namespace:
    from gpu import arguments

    return arguments(given)


def samples(*microseconds: float) -> dict[str, list[float]]:
    return {
        "microseconds_per_step": list(microseconds),
        "tokens_per_second": [1e6 / one for one in microseconds],
    }


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run the schedule with a function that replaces processes, and return the report."""
    from gpu import Schedule, report

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")

    def run(
        case: Callable[[str, float], dict[str, list[float]]],
        *given: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[str, Any]:
        out = tmp_path / "report.json"
        parsed = options("--work", str(tmp_path), "--out", str(out), *given)
        schedule = Schedule(parsed, case, report(parsed), clock)
        try:
            missing = schedule.measure()
        except KeyboardInterrupt:
            missing = ["interrupted"]
        content: dict[str, Any] = json.loads(out.read_text())
        return {**content, "missing": missing}

    return run


def test_every_case_is_in_the_report(saved: Callable[..., dict[str, Any]]) -> None:
    from gpu import SYSTEMS

    calls = []

    def case(name: str, limit: float) -> dict[str, list[float]]:
        calls.append(name)
        return {"seconds": [9.0]} if name.startswith("build") else samples(3.0, 1.0, 2.0)

    report = saved(case, "--batches", "64,1")
    assert not report["missing"]
    assert calls == [
        "build engines", "build engines with attention operator",
        *(f"{batch} {system}" for batch in (64, 1) for system in SYSTEMS),
    ]  # fmt: skip
    assert report["settings"]["gpu"] == "Some GPU"
    assert report["settings"]["source_length"] == 256
    assert list(report["results"]["batch 1"]) == list(SYSTEMS)
    assert report["results"]["batch 64"]["engines"]["microseconds_per_step"] == [2.0, 1.0, 3.0]
    assert report["results"]["build"]["engines"]["seconds"] == [9.0, 9.0, 9.0]


def test_a_case_that_fails_stops_no_other(saved: Callable[..., dict[str, Any]]) -> None:
    from gpu import CaseError

    def case(name: str, limit: float) -> dict[str, list[float]]:
        if name in ("build engines with attention operator", "64 torch.compile"):
            raise CaseError("failed: exit code 1")
        return samples(1.0)

    report = saved(case)
    found = report["results"]["batch 64"]
    assert report["missing"] == [
        "build engines with attention operator (failed: exit code 1)",
        "batch 64 engines with attention operator (not run: the build failed)",
        "batch 64 torch.compile (failed: exit code 1)",
        "batch 1 engines with attention operator (not run: the build failed)",
    ]
    assert found["torch.compile"] == {"failed": "failed: exit code 1"}
    assert found["engines with attention operator"] == {"failed": "not run: the build failed"}
    assert "microseconds_per_step" in found["engines without CUDA graphs"]
    assert "microseconds_per_step" in report["results"]["batch 1"]["torch.compile"]


def test_an_interrupted_run_keeps_what_it_has(saved: Callable[..., dict[str, Any]]) -> None:
    def case(name: str, limit: float) -> dict[str, list[float]]:
        if name == "64 torch.compile":
            raise KeyboardInterrupt
        return samples(1.0)

    report = saved(case)
    assert report["missing"] == ["interrupted"]
    assert list(report["results"]["batch 64"]) == ["engines", "engines with attention operator"]


def test_the_time_of_all_cases_is_limited(saved: Callable[..., dict[str, Any]]) -> None:
    clock = [0.0]
    limits = {}

    def case(name: str, limit: float) -> dict[str, list[float]]:
        limits[name] = limit
        clock[0] += 100.0
        return samples(1.0)

    report = saved(case, "--seconds", "350", clock=lambda: clock[0])
    assert limits == {
        "build engines": 350.0, "build engines with attention operator": 250.0,
        "64 engines": 150.0, "64 engines with attention operator": 50.0,
    }  # fmt: skip
    assert report["results"]["batch 64"]["torch.compile"] == {"failed": "not run: the time is up"}
    assert "batch 64 torch.compile (not run: the time is up)" in report["missing"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('a log line'); print('{\"seconds\": [1.5]}')", None),
        ("raise SystemExit(4)", "failed: exit code 4"),
        ("pass", "failed: exit code 0"),
        ("import time; time.sleep(60)", "failed: not finished after 1 s"),
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


def test_a_case_does_not_print_what_torch_compile_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu

    script = tmp_path / "case.py"
    script.write_text(
        "import json, logging\n"
        "from torch._inductor import config\n"
        "level = logging.getLogger('torch._inductor').getEffectiveLevel()\n"
        "shown = config.autotune_num_choices_displayed, config.max_autotune_report_choices_stats\n"
        "print(json.dumps([level, *shown]))\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    for name in gpu.QUIET:
        monkeypatch.delenv(name, raising=False)
    assert gpu.in_process("64 torch.compile", 60) == [logging.ERROR, 0, False]
    monkeypatch.setenv("TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED", "3")  # as the caller says
    assert gpu.in_process("64 torch.compile", 60) == [logging.ERROR, 3, False]


def test_a_profile_is_of_one_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert options("--profile", "--case", "1 graphs").profile
    with pytest.raises(SystemExit):
        options("--profile")
    assert "--profile is of one case; name it with --case." in capsys.readouterr().err


def test_unknown_systems_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--systems", "engines,other")
    assert "no system other; choose from engines" in capsys.readouterr().err


def test_the_search_in_pytorch_runs_on_the_cpu(checkpoint: Checkpoint) -> None:
    from gpu import TorchSearch

    from translate_trt.export.build_options import BuildOptions
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


@pytest.mark.slow
def test_the_bundles_of_all_systems_are_built(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    from gpu import SYSTEMS, bundle_of, run_case, target_of

    from translate_trt.runtime.bundle.manifest import read_manifest

    given = options(
        "--work", str(tmp_path), "--preset", "tiny", "--vocabulary", "40", "--source-length", "16",
        "--batches", "2,1", "--precision", "fp32",
    )  # fmt: skip
    for system in SYSTEMS:
        assert run_case(given, "build", system)["seconds"][0] > 0
    bundles = {bundle_of(given, system) for system in SYSTEMS}
    assert len(bundles) == 2
    for bundle in bundles:
        manifest = read_manifest(bundle)
        assert manifest.limits == Limits(16, 66)
        assert target_of(given) in manifest.targets

"""Speed of a bundle's targets (`translate-trt bench`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime import benchmark
from translate_trt.runtime.benchmark import BenchOptions
from translate_trt.runtime.cli.bench import _table
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.options import SearchOptions

LINES = ["the cat runs.", "the dog", "the cat runs over the tree"]


@pytest.mark.parametrize(("given", "used"), [(None, 512), (99, 99)])
def test_a_target(compiled_bundle: Path, given: int | None, used: int) -> None:
    options = BenchOptions(rounds=2, latency_lines=2, cores=2, batch_tokens=given)
    # In this process; `bench` starts one for each target.
    found = benchmark._bench_target(
        compiled_bundle, LINES, "onnx-fp32", SearchOptions(max_length=4), options
    )
    assert (found.target, found.workers, found.batch_tokens) == ("onnx-fp32", 2, used)
    assert len(found.lines_per_second) == len(found.tokens_per_second) == 2
    assert min(found.lines_per_second) > 0
    assert list(found.latency_ms) == [50, 95, 99]
    table = _table([found])
    assert "batch tokens" in table[0]
    assert f" {used} " in next(line for line in table if line.startswith("onnx-fp32"))


def test_peak_memory_is_not_that_of_the_process_that_started_this_one() -> None:
    block = b"\1" * (256 * 2**20)
    script = "from translate_trt.runtime.benchmark import peak_memory; print(peak_memory())"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert 2**20 < int(run.stdout) < len(block)


def test_engines_have_the_workers_of_a_gpu(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class StopError(Exception):
        """Ends the measurement."""

    def translator(*_: object, **given: object) -> None:
        made.append(given)
        raise StopError

    monkeypatch.setattr(benchmark, "Translator", translator)
    manifest = benchmark.read_manifest(compiled_bundle)
    manifest.targets["onnx-fp32"].__dict__["engine"] = {}
    monkeypatch.setattr(benchmark, "read_manifest", lambda _: manifest)
    for target, workers in (("onnx-fp32", None), ("onnx-int8", 2)):
        with pytest.raises(StopError):
            benchmark._bench_target(
                compiled_bundle, LINES, target, SearchOptions(), BenchOptions(cores=2)
            )
        assert made[-1]["workers"] == workers


def test_single_lines_are_evenly_spaced() -> None:
    seen: list[str] = []

    class Recorder:
        def translate(self, lines: list[str], search: SearchOptions) -> None:
            seen.extend(lines)

    recorder: Any = Recorder()
    benchmark._latency(recorder, [str(number) for number in range(150)], SearchOptions(), 100)
    assert seen[1:] == [str(i * 150 // 100) for i in range(100)]


def test_a_process_that_is_killed(compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "_send_result", os._exit)
    with pytest.raises(BackendError, match="onnx-fp32"):
        benchmark.bench(compiled_bundle, LINES, ["onnx-fp32"], SearchOptions(), BenchOptions())

"""Tables of measurements on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

MACHINE = {"cores": 16, "cpu": "a processor", "instructions": ["avx2"]}


def report_of(settings: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Return a report of one machine."""
    return {
        "date": "2026-01-01",
        "machine": MACHINE,
        "versions": {"torch": "2.11.0"},
        "settings": settings,
        "results": results,
    }


def search(batches: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return a report of benchmarks/gpu.py."""
    settings = {
        "package": "torch", "precision": "fp16", "preset": "base", "vocabulary": 37_000,
        "source_length": 256, "steps": 48, "batches": sorted(batches), "gpu": "Some GPU",
    }  # fmt: skip
    return report_of(settings, {f"batch {batch}": found for batch, found in batches.items()})


def samples(microseconds: float) -> dict[str, Any]:
    return {
        "microseconds_per_step": [microseconds, microseconds - 1, microseconds + 1],
        "tokens_per_second": [1e6 / microseconds] * 3,
    }


def test_searches_are_compared_within_their_own_run() -> None:
    from gpu_tables import render_search

    first = search({
        1: {"graphs": samples(100), "torch.compile": {"failed": "not finished after 47 s"}},
        64: {"graphs": samples(200), "torch.compile": samples(500)},
    })  # fmt: skip
    later = search({
        1: {"graphs": samples(50), "torch.compile": {"failed": "exit code 1"},
            "graphs without CUDA graphs": samples(400)},
        64: {"graphs": samples(250), "torch.compile": {"failed": "exit code 1"},
             "graphs without CUDA graphs": samples(1000)},
    })  # fmt: skip
    text = render_search([first, later])
    assert [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()] == [
        "| 64 | graphs | 200 [199, 201] | 5000 [5000, 5000] | 1.00 |",
        "| 64 | torch.compile | 500 [499, 501] | 2000 [2000, 2000] | 2.50 |",
        "| 64 | graphs without CUDA graphs | 1000 [999, 1001] | 1000 [1000, 1000] | 4.00 |",
        "| 1 | graphs | 100 [99, 101] | 10000 [10000, 10000] | 1.00 |",
        "| 1 | graphs without CUDA graphs | 400 [399, 401] | 2500 [2500, 2500] | 8.00 |",
        "| 1 | torch.compile | not finished after 47 s |  |  |",
    ]
    assert (
        "with graphs of the same run. The rows of graphs without CUDA graphs are of another" in text
    )
    assert "run, in which those of graphs were 250 and 50 us." in text
    assert "another run" not in render_search([first])
    assert "Some GPU; 2026-01-01, 16 cores of a processor" in text


def profile(**kernels: tuple[int, float]) -> dict[str, Any]:
    """Return a profile with those kernels, and ten more that it does not list, of 1 ms in all."""
    longest = [
        {"name": name, "launches": launches, "milliseconds": time}
        for name, (launches, time) in kernels.items()
    ]
    return {
        "launches": 10 + sum(launches for launches, _ in kernels.values()),
        "milliseconds": 1 + sum(time for _, time in kernels.values()),
        "longest": longest,
    }


def test_kernels_are_summed_by_kind() -> None:
    from gpu_tables import render_search_kernels

    settings = search({64: {}})["settings"]
    settings |= {"system": "graphs", "searches": [12, 48]}
    many = profile(
        fmha_forward=(2, 1.0), nvjet_a=(4, 2.0), nvjet_b=(4, 4.0), _elementwise_kernel=(1, 2.0)
    )
    few = profile(fmha_forward=(2, 3.0))
    text = render_search_kernels(
        [report_of({**settings, "batch": 64}, many), report_of({**settings, "batch": 1}, few)]
    )
    rows = text[text.index("| --- |") :].splitlines()[1:]
    assert rows[:3] == [
        "| GEMMs | 8 | 750.0 | 60.0 % | 0 |  | 0.0 % |",
        "| other element-wise kernels | 1 | 2000.0 | 20.0 % | 0 |  | 0.0 % |",
        "| attention | 2 | 500.0 | 10.0 % | 2 | 1500.0 | 75.0 % |",
    ]
    assert rows[-1] == "| shorter kernels | 10 | 100.0 | 10.0 % | 10 | 100.0 | 25.0 % |"
    assert "searches of 12 and 48 steps" in text
    assert "Batch 64: 21 kernels and copies in 10.0 ms, 476.2 us each." in text


def test_a_kernel_without_a_kind_is_refused() -> None:
    from gpu_tables import SEARCH_KINDS, sums_of_kinds

    with pytest.raises(ValueError, match="no kind of kernels has mystery"):
        sums_of_kinds(profile(mystery=(1, 1.0)), SEARCH_KINDS)


def training(preset: str, step: float, **results: Any) -> dict[str, Any]:
    """Return a report of training steps of that many milliseconds."""
    from translate_trt.train.config import PRESETS

    steps = PRESETS[preset].train.steps
    figures = {
        "target tokens per second": 1000.0,
        "source and target tokens per second": 2000.0,
        "padding of a whole epoch, %": 8.0,
        "model-FLOPs utilization, %": 20.0,
        "hours for the schedule": step * steps / 3.6e6,
        "FLOPs for the schedule": 6e12 * steps,
    }
    given = {
        "figures": figures, "peak_flops": 7.5e14, "peak_is": "a large matmul", "pairs": 29_000,
        "device": "Some GPU", "precision": "bfloat16", "micro_batch_tokens": 25_000,
        "vocabulary_size": 37_000,
    }  # fmt: skip
    return report_of({"preset": preset, "set": None, "note": ""}, {**given, **results})


def test_training_steps_stand_beside_their_estimates() -> None:
    import training_estimates as estimates
    from gpu_tables import render_training

    eager = training("base", 60.0)
    eager["settings"]["set"] = [["compile", "off"]]
    text = render_training([training("base", 50.0), eager])
    expected = 1e3 * estimates.estimate("base", 1, estimates.Inputs()).step
    speeds = "1,000 | 2,000"
    assert (
        f"| `base` | yes | {speeds} | 50.0 | {expected:.1f} | {50 / expected:.2f} | 20.0 % | 1.39 |"
    ) in text
    assert f"| `base` | no | {speeds} | 60.0 |  |  | 20.0 % | 1.67 |" in text
    assert "29,000 pairs, a vocabulary of 37,000" in text
    assert "data sheet" not in text
    assert "4.8 terabytes per second of the NVIDIA H200's data sheet" in render_training(
        [training("base", 50.0, device="NVIDIA H200")]
    )


def test_the_parts_of_a_training_step_add_up() -> None:
    import training_estimates as estimates
    from gpu_tables import render_training_kernels

    kernels = profile(pytorch_flash=(6, 4.0), fmha_b=(12, 3.0), nvjet_a=(100, 12.0))
    text = render_training_kernels([training("base", 25.0, **{"kernels of a step": kernels})])
    found = estimates.estimate("base", 1, estimates.Inputs())
    rest = found.activations + found.loss + found.optimizer
    parts = text[text.index("| part |") :].splitlines()[2:]
    assert parts[:5] == [
        f"| matmuls; their GEMMs | {1e3 * found.matmuls:.1f} | 12.0 |",
        "| attention (its few operations are among the matmuls) |  | 7.0 |",
        f"| activations, loss, optimizer; all other kernels | {1e3 * rest:.1f} | 1.0 |",
        "| GPU idle |  | 5.0 |",
        f"| step | {1e3 * found.step:.1f} | 25.0 |",
    ]
    assert "are 500 TFLOP/s, 51 % of the data sheet's peak; the estimate assumes 50 %" in text


def test_a_profile_is_printed_as_text() -> None:
    from harness import kernel_times

    lines = kernel_times(profile(fmha=(2, 3.0))).splitlines()
    assert lines == [
        "     4.000 ms 100.0%      12 all kernels and copies",
        "     3.000 ms  75.0%       2 fmha",
    ]

"""Tables of docs/gpu.md and docs/train.md: what was measured on a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import training_estimates
from results_tables import Report, note_of, ratio
from tables import table, where

from translate_trt.train.config import PRESETS

#: Systems of benchmarks/gpu.py that each report compares its others with.
BASELINES = ("engines", "graphs")

#: Inputs of an estimate on a GPU, where its data sheet differs from the H100's.
DATA_SHEETS = {"NVIDIA H200": {"terabytes_per_second": 4.8}}

#: Kinds of kernels of a search in PyTorch, by patterns of their names; the first that matches.
SEARCH_KINDS = {
    "attention": "fmha|flash",
    "GEMMs": "nvjet|gemm|splitK",
    "cache writes (`scatter_`)": "scatter_gather_internal_kernel<t",
    "softmax, sorts and gathers of the selection": "SoftMax|radixSort|reduce_kernel|scatter_gather",
    "layer norm": "layer_norm",
    "copies and conversions": "[Mm]emcpy|Memset|copy_kernel",
    "other element-wise kernels": "elementwise",
}
#: The same of a training step.
TRAINING_KINDS = {
    "attention, flash": "flash",
    "attention, memory-efficient": "fmha",
    "GEMMs": "nvjet|gemm|splitK",
    "softmax of the loss": "softmax|exp_log",
    "layer norm with dropout and additions, compiled": "triton.*layer_norm",
    "other compiled kernels": "triton",
    "optimizer": "multi_tensor",
    "copies, conversions and fills": "[Mm]emcpy|Memset|copy_kernel",
    "other sums and element-wise kernels": "reduce_kernel|elementwise",
}
REST = "shorter kernels"


# ---- searches ----


def render_search(reports: Sequence[Report]) -> str:
    """Render steps and throughput of systems; a later report adds what earlier ones lack."""
    first = reports[0]
    settings = first["settings"]
    batches = sorted(settings["batches"], reverse=True)
    rows = [row for batch in batches for row in _rows_of_batch(batch, reports)]
    header = ["batch", "system", "us per step", "tokens/s", "times as long a step"]
    return (
        f"`python benchmarks/gpu.py --package {settings['package']} --precision "
        f"{settings['precision']}`\n\n"
        f"{settings['gpu']}; {where(first)}{note_of(first)} The shape of `{settings['preset']}` "
        f"with random weights, {settings['vocabulary']:,} tokens, sources of "
        f"{settings['source_length']}, {settings['steps']} steps of 4 beams. Medians of the "
        "rounds, smallest and largest in brackets; the last column compares medians with "
        f"{_baseline(first)} of the same run.{_other_runs(reports)}\n\n{table(header, rows)}"
    )


def _baseline(report: Report) -> str:
    """Return the system that the others of a report are compared with."""
    systems = next(found for name, found in report["results"].items() if name.startswith("batch"))
    return next(name for name in BASELINES if name in systems)


def _other_runs(reports: Sequence[Report]) -> str:
    """Return sentences on the systems that only later reports have measured."""
    text = ""
    batches = [
        f"batch {batch}" for batch in sorted(reports[0]["settings"]["batches"], reverse=True)
    ]
    for number, report in enumerate(reports[1:], 1):
        earlier = {name for one in reports[:number] for name in one["results"][batches[0]]}
        added = [name for name in report["results"][batches[0]] if name not in earlier]
        baseline = _baseline(report)
        times = [
            f"{report['results'][batch][baseline]['microseconds_per_step'][0]:.0f}"
            for batch in batches
        ]
        text += (
            f" The rows of {', '.join(added)} are of another run, in which those of {baseline} "
            f"were {' and '.join(times)} us."
        )
    return text


def _rows_of_batch(batch: int, reports: Sequence[Report]) -> list[list[str]]:
    """Return the rows of a batch size: systems that a report measured, then those that none did."""
    found: dict[str, list[str]] = {}
    failed: dict[str, list[str]] = {}
    for report in reports:
        systems = report["results"][f"batch {batch}"]
        baseline = systems[_baseline(report)]
        for name, one in systems.items():
            if "failed" in one:
                failed.setdefault(name, [one["failed"], "", ""])
                continue
            times = one["microseconds_per_step"][0] / baseline["microseconds_per_step"][0]
            shown = [ratio(one["microseconds_per_step"], 0), ratio(one["tokens_per_second"], 0)]
            found.setdefault(name, [*shown, f"{times:.2f}"])
    missing = {name: cells for name, cells in failed.items() if name not in found}
    return [[f"{batch}", name, *cells] for name, cells in (found | missing).items()]


def render_search_kernels(reports: Sequence[Report]) -> str:
    """Render the kinds of kernels of searches side by side."""
    sentences = []
    for report in reports:
        settings, results = report["settings"], report["results"]
        each = 1e3 * results["milliseconds"] / results["launches"]
        sentences.append(
            f"Batch {settings['batch']}: {results['launches']:,} kernels and copies in "
            f"{results['milliseconds']:.1f} ms, {each:.1f} us each."
        )
    first = reports[0]["settings"]
    names = " and ".join(str(steps) for steps in first["searches"])
    header = ["kernels"]
    for report in reports:
        header += [f"batch {report['settings']['batch']}: launches", "us each", "time"]
    return (
        f"`python benchmarks/gpu.py --package {first['package']} --precision {first['precision']} "
        f'--work DIR --case "{first["batch"]} {first["system"]}" --profile`: {first["system"]} on '
        f"{first['gpu']}, searches of {names} steps with their encoders. {' '.join(sentences)}\n\n"
        f"{table(header, _kinds([report['results'] for report in reports], SEARCH_KINDS))}"
    )


def _kinds(profiles: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> list[list[str]]:
    """Return a row for each kind of kernels: launches, time of each, and share of all time."""
    sums = [sums_of_kinds(profile, kinds) for profile in profiles]
    names = [*kinds, REST]
    names.sort(key=lambda name: (name == REST, -sums[0].get(name, (0, 0.0))[1]))
    rows = []
    for name in names:
        row = [name]
        for profile, found in zip(profiles, sums, strict=True):
            launches, milliseconds = found.get(name, (0, 0.0))
            each = f"{1e3 * milliseconds / launches:.1f}" if launches else ""
            share = f"{100 * milliseconds / profile['milliseconds']:.1f} %"
            row += [f"{launches:,}", each, share]
        rows.append(row)
    return rows


def sums_of_kinds(
    profile: Mapping[str, Any], kinds: Mapping[str, str]
) -> dict[str, tuple[int, float]]:
    """Return launches and milliseconds by kind; kernels that are not listed are the rest.

    Raises:
        ValueError: A kernel of the profile is of no kind.
    """
    sums: dict[str, tuple[int, float]] = {}
    for kernel in profile["longest"]:
        kind = next((kind for kind, names in kinds.items() if re.search(names, kernel["name"])), "")
        if not kind:
            raise ValueError(f"no kind of kernels has {kernel['name']}; add its pattern to one.")
        launches, milliseconds = sums.get(kind, (0, 0.0))
        sums[kind] = (launches + kernel["launches"], milliseconds + kernel["milliseconds"])
    listed = [sum(one[part] for one in sums.values()) for part in (0, 1)]
    sums[REST] = (profile["launches"] - int(listed[0]), profile["milliseconds"] - listed[1])
    return sums


# ---- training ----


def step_milliseconds(report: Report) -> float:
    """Return the time of an optimizer step, from the hours of the schedule."""
    steps = PRESETS[report["settings"]["preset"]].train.steps
    return float(report["results"]["figures"]["hours for the schedule"] * 3.6e6 / steps)


def estimate_of(report: Report) -> training_estimates.Estimate:
    """Estimate a step of the recipe on the GPU of a report, with the vocabulary of its data."""
    results = report["results"]
    given = training_estimates.Inputs(
        vocabulary_size=results["vocabulary_size"], **DATA_SHEETS.get(results["device"], {})
    )
    return training_estimates.estimate(report["settings"]["preset"], 1, given)


def render_training(reports: Sequence[Report]) -> str:
    """Render training steps on a GPU beside their estimates."""
    first = reports[0]["results"]
    rows = []
    for report in reports:
        settings, figures = report["settings"], report["results"]["figures"]
        compiled = dict(settings["set"] or []).get("compile", "auto") != "off"
        measured, estimate = step_milliseconds(report), 1e3 * estimate_of(report).step
        rows.append(
            [
                f"`{settings['preset']}`",
                "yes" if compiled else "no",
                f"{figures['target tokens per second']:,.0f}",
                f"{figures['source and target tokens per second']:,.0f}",
                f"{measured:.1f}",
                # Estimates are of compiled steps.
                f"{estimate:.1f}" if compiled else "",
                f"{measured / estimate:.2f}" if compiled else "",
                f"{figures['model-FLOPs utilization, %']:.1f} %",
                f"{figures['hours for the schedule']:.2f}",
            ]
        )
    header = ["preset", "compiled", "target tokens/s", "source and target tokens/s", "step, ms",
              "estimate, ms", "measured / estimate", "MFU", "hours of the schedule"]  # fmt: skip
    peaks = [report["results"]["peak_flops"] / 1e12 for report in reports]
    padding = first["figures"]["padding of a whole epoch, %"]
    return (
        "`python benchmarks/training.py --data DIR --device cuda --preset base --warmup 8 "
        "--steps 10 --rounds 3`, and the same with `--set compile=off` and with `--preset big`\n\n"
        f"One {first['device']}, {first['precision']}; {where(reports[0])}{note_of(reports[0])} "
        f"{first['pairs']:,} pairs, a vocabulary of {first['vocabulary_size']:,}, one micro-batch "
        f"of {first['micro_batch_tokens']:,} tokens a step, {padding:.1f} % padding. Medians. MFU "
        f"(model-FLOPs utilization) is relative to {first['peak_is']}, {min(peaks):.0f} to "
        f"{max(peaks):.0f} TFLOP/s. Hours are those of the paper's number of steps at this speed. "
        f"Estimates are those below for this vocabulary{_of_sheet(first['device'])}.\n\n"
        f"{table(header, rows)}"
    )


def _of_sheet(device: str) -> str:
    """Return the inputs of estimates that are the device's own, as the end of a sentence."""
    sheet = DATA_SHEETS.get(device)
    if sheet is None:
        return ""
    shown = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in sheet.items())
    return f" and the {shown} of the {device}'s data sheet"


def render_training_kernels(reports: Sequence[Report]) -> str:
    """Render the kinds of kernels of a training step, and its parts beside their estimates."""
    report = reports[0]
    results, preset = report["results"], report["settings"]["preset"]
    profile = results["kernels of a step"]
    sums = sums_of_kinds(profile, TRAINING_KINDS)
    step, estimate = step_milliseconds(report), estimate_of(report)
    gemms = sums["GEMMs"][1]
    attention = sum(time for name, (_, time) in sums.items() if name.startswith("attention"))
    gap = step - profile["milliseconds"]
    flops = results["figures"]["FLOPs for the schedule"] / PRESETS[preset].train.steps
    given = training_estimates.Inputs()
    speed = flops / gemms / 1e9
    operators = given.fused_share * training_estimates.operators(preset)
    parts = [
        ["matmuls; their GEMMs", 1e3 * estimate.matmuls, gemms],
        ["attention (its few operations are among the matmuls)", None, attention],
        ["activations, loss, optimizer; all other kernels",
         1e3 * (estimate.activations + estimate.loss + estimate.optimizer),
         profile["milliseconds"] - gemms - attention],
        ["GPU idle", None, gap],
        ["step", 1e3 * estimate.step, step],
    ]  # fmt: skip
    rows = [[name, *("" if one is None else f"{one:.1f}" for one in times)]
            for name, *times in parts]  # fmt: skip
    return (
        f"A step of `{preset}` by its kernels (`--profile`): {profile['launches']:,} kernels and "
        f"copies in {profile['milliseconds']:.1f} ms.\n\n"
        f"{table(['kernels', 'launches', 'us each', 'time'], _kinds([profile], TRAINING_KINDS))}\n"
        f"{table(['part', 'estimate, ms', 'measured, ms'], rows)}\n"
        "The last row is the median of the run, and the idle time what it exceeds the kernels of "
        "the profiled step by. Operations of the model divided by the time of its GEMMs are "
        f"{speed:.0f} TFLOP/s, {100 * speed / given.peak_tflops:.0f} % of the data sheet's peak; "
        f"the estimate assumes {100 * given.matmul_share:.0f} %. It counts {operators:.0f} "
        "launches for forward and backward pass, without loss and optimizer.\n"
    )

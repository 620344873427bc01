"""Figures of tables and plots that are computed from reports: fits, errors, kinds of kernels."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import estimates

from translate_trt.train.config import PRESETS, TABLE3, TABLE3_MODELS, Preset, Table3Row, preset

Report = Mapping[str, Any]

# ---- comparisons with peers ----


def by_sentences(results: Mapping[str, Any]) -> dict[tuple[str, str], dict[int, list[float]]]:
    """Return ratios by precision and variant of the graph, then by number of sentences."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for name, one in results.items():
        precision, part, sentences = re.split(r", (?=\d+ sent|.*, \d+ sent)", name, maxsplit=2)
        sizes = found.setdefault((precision, part), {})
        sizes[int(sentences.split()[0])] = one["other / shipped"]
    return found


# ---- Table 3 ----

PLAIN = "plain"  # row of the preset itself


@dataclass
class TableRow:
    """Row of Table 3 as trained here, with figures by seed; older reports lack some."""

    name: str
    paper: Table3Row  # base for `plain`
    changes: str  # settings that differ from the preset
    loss: Sequence[float]  # logarithm of the perplexity per token
    bleu: Sequence[float]  # sacrebleu's
    tokenized: Sequence[float]
    untrained: int  # seeds whose loss is not below that of the frequencies of tokens
    parameters: int
    difference: float | None = None  # of mean tokenized BLEU from that of `plain`
    p_values: dict[str, float] = field(default_factory=dict)  # of loss and tokenized

    @property
    def papers_difference(self) -> float:
        """Difference of the paper's BLEU from that of base."""
        return round(self.paper.bleu - TABLE3_MODELS["base"].bleu, 1)

    @property
    def papers_loss(self) -> float:
        """Logarithm of the paper's perplexity."""
        return math.log(self.paper.perplexity)


def table3_rows(report: Report) -> list[TableRow]:
    """Return the rows of a report, whose first is `plain`, which trained rows are compared with."""
    name, rows = report["settings"]["preset"], []
    for row, found in report["results"].items():
        paper = TABLE3_MODELS["base"] if row == PLAIN else TABLE3[row]
        changes = "" if row == PLAIN else _changes(preset(name), preset(f"{name}-{row}"))
        runs = found["runs"]
        loss = [math.log(run["perplexity"]) for run in runs]
        bleu, tokenized = (
            [run[figure] for run in runs if figure in run] for figure in ("bleu", "tokenized_bleu")
        )
        untrained = sum(
            one >= run.get("unigram_loss", math.inf) for one, run in zip(loss, runs, strict=True)
        )
        parameters = runs[0]["parameters"]
        rows.append(TableRow(row, paper, changes, loss, bleu, tokenized, untrained, parameters))
    plain, *others = rows
    trained = [row for row in others if row.tokenized and not row.untrained + plain.untrained]
    for row in trained if plain.tokenized else ():
        row.difference = statistics.mean(row.tokenized) - statistics.mean(plain.tokenized)
    tested = [row for row in trained if min(len(row.tokenized), len(plain.tokenized)) > 1]
    for figure in ("loss", "tokenized"):
        p_values = [welch(getattr(row, figure), getattr(plain, figure)) for row in tested]
        for row, p in zip(tested, holm(p_values), strict=True):
            row.p_values[figure] = p
    return rows


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p-value of Welch's t-test for samples of two values or more."""
    samples = (one, other)
    errors = [statistics.variance(values) / len(values) for values in samples]
    apart = abs(statistics.mean(one) - statistics.mean(other))
    if not sum(errors):
        return float(not apart)
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, samples, strict=True)
    )
    # Tail of Student's distribution, with sqrt(freedom) tan(angle) in place of t.
    begin = math.atan(apart / math.sqrt(sum(errors) * freedom))
    width = (math.pi / 2 - begin) / 2_000
    area = sum(math.cos(begin + (index + 0.5) * width) ** (freedom - 1) for index in range(2_000))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return min(1.0, 2 * scale * area * width / math.sqrt(math.pi))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _changes(plain: Preset, varied: Preset) -> str:
    """Describe the settings in which a variation differs from its preset."""
    before, after = (
        {**dataclasses.asdict(one.model), **dataclasses.asdict(one.train)}
        for one in (plain, varied)
    )
    return ", ".join(f"{name} {after[name]}" for name in after if after[name] != before[name])


def has_table3(report: Report) -> bool:
    """Return whether every row was trained with several seeds and scored as in the paper."""
    rows = table3_rows(report)
    return len(rows) == 1 + len(TABLE3) and all(len(row.tokenized) > 1 for row in rows)


def of_seeds(values: Sequence[float]) -> str:
    """Format the mean of the seeds with their extremes."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.2f}, {max(values):.2f}]"


# ---- GPUs ----

#: Systems of benchmarks/gpu.py that each report compares its others with.
BASELINES = ("engines", "graphs")
#: Inputs of an estimate on a GPU, where its data sheet differs from the H100's.
DATA_SHEETS: dict[str, dict[str, Any]] = {"NVIDIA H200": {"terabytes_per_second": 4.8}}
REST = "shorter kernels"


def search_baseline(report: Report) -> str:
    """Return the system that the others of a report are compared with."""
    systems = next(found for name, found in report["results"].items() if name.startswith("batch"))
    return next(name for name in BASELINES if name in systems)


def other_runs(reports: Sequence[Report]) -> str:
    """Return sentences on the systems that only later reports have measured."""
    text, known = "", set(reports[0]["results"][_batches(reports)[0]])
    for report in reports[1:]:
        results, baseline = report["results"], search_baseline(report)
        systems = results[_batches(reports)[0]]
        times = [
            f"{results[batch][baseline]['microseconds_per_step'][0]:.0f}"
            for batch in _batches(reports)
        ]
        text += (
            f" The rows of {', '.join(name for name in systems if name not in known)} are of "
            f"another run, in which those of {baseline} were {' and '.join(times)} us."
        )
        known |= set(systems)
    return text


def _batches(reports: Sequence[Report]) -> list[str]:
    sizes = sorted(reports[0]["settings"]["batches"], reverse=True)
    return [f"batch {size}" for size in sizes]


def search_rows(reports: Sequence[Report]) -> Iterator[tuple[str, str, list[str]]]:
    """Iterate over batch, system and cells; a later report adds what earlier ones lack."""
    from harness import shown

    for batch in _batches(reports):
        found: dict[str, list[str]] = {}
        failed: dict[str, list[str]] = {}
        for report in reports:
            systems = report["results"][batch]
            base = systems[search_baseline(report)]["microseconds_per_step"][0]
            for name, one in systems.items():
                if "failed" in one:
                    failed.setdefault(name, [one["failed"], "", ""])
                    continue
                steps = one["microseconds_per_step"]
                cells = [shown(steps, 0), shown(one["tokens_per_second"], 0)]
                found.setdefault(name, [*cells, f"{steps[0] / base:.2f}"])
        missing = {name: cells for name, cells in failed.items() if name not in found}
        for name, cells in (found | missing).items():
            yield batch.removeprefix("batch "), name, cells


def kinds(
    profiles: Sequence[Mapping[str, Any]], patterns: Mapping[str, str]
) -> list[tuple[str, list[SimpleNamespace]]]:
    """Return launches, us of each and share of time of kinds, the longest first, by profile."""
    sums = [sums_of_kinds(profile, patterns) for profile in profiles]
    names = [*patterns, REST]
    names.sort(key=lambda name: (name == REST, -sums[0].get(name, (0, 0.0))[1]))
    rows = []
    for name in names:
        row = []
        for profile, found in zip(profiles, sums, strict=True):
            launches, milliseconds = found.get(name, (0, 0.0))
            each = f"{1e3 * milliseconds / launches:.1f}" if launches else ""
            share = 100 * milliseconds / profile["milliseconds"]
            row.append(SimpleNamespace(launches=launches, each=each, share=share))
        rows.append((name, row))
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


def step_milliseconds(report: Report) -> float:
    """Return the time of an optimizer step, from the hours of the schedule."""
    steps = PRESETS[report["settings"]["preset"]].train.steps
    return float(report["results"]["figures"]["hours for the schedule"] * 3.6e6 / steps)


def estimate_of(report: Report) -> estimates.TrainingStep:
    """Estimate a step of the recipe on the GPU of a report, with the vocabulary of its data."""
    results = report["results"]
    given = estimates.TrainingInputs(
        vocabulary_size=results["vocabulary_size"], **DATA_SHEETS.get(results["device"], {})
    )
    return estimates.training_step(report["settings"]["preset"], 1, given)


def step_parts(report: Report, patterns: Mapping[str, str]) -> SimpleNamespace:
    """Return the parts of a profiled training step beside their estimates, and its speed."""
    results, name = report["results"], report["settings"]["preset"]
    profile = results["kernels of a step"]
    sums = sums_of_kinds(profile, patterns)
    step, estimate, given = (
        step_milliseconds(report),
        estimate_of(report),
        estimates.TrainingInputs(),
    )
    gemms = sums["GEMMs"][1]
    attention = sum(time for kind, (_, time) in sums.items() if kind.startswith("attention"))
    others = 1e3 * (estimate.activations + estimate.loss + estimate.optimizer)
    flops = results["figures"]["FLOPs for the schedule"] / PRESETS[name].train.steps
    parts = (
        ("matmuls; their GEMMs", 1e3 * estimate.matmuls, gemms),
        ("attention (its few operations are among the matmuls)", None, attention),
        ("activations, loss, optimizer; all other kernels", others,
         profile["milliseconds"] - gemms - attention),
        ("GPU idle", None, step - profile["milliseconds"]),
        ("step", 1e3 * estimate.step, step),
    )  # fmt: skip
    return SimpleNamespace(
        parts=parts, speed=flops / gemms / 1e9, peak=given.peak_tflops, share=given.matmul_share
    )

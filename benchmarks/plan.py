"""Estimate a corpus on many GPUs: machines, hours, storage, failures, money.

    python benchmarks/plan.py [--gpus 1000] [--sentences 1e10] [--other-input VALUE]

Every input is an option; docs/thousand-gpus.md shows the defaults. No input was measured on a GPU:
`sentences_per_second` is an assumption, several times below the bounds that docs/gpu.md computes
from execution plans, and below what `torch-fp16` reaches there with full batches, until real text
has been measured on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tables import read_inputs, table


@dataclass(frozen=True)
class Inputs:
    """Inputs of the plan; the metadata of each field names its source."""

    gpus: int = dataclasses.field(default=1000, metadata={"source": "chosen"})
    gpus_per_machine: int = dataclasses.field(default=8, metadata={"source": "chosen"})
    sentences: float = dataclasses.field(default=1e10, metadata={"source": "chosen"})
    sentences_per_second: float = dataclasses.field(
        default=500.0, metadata={"source": "assumed, of each GPU; not measured on text yet"}
    )
    source_bytes: float = dataclasses.field(
        default=130.0, metadata={"source": "assumed, UTF-8, of a sentence"}
    )
    target_bytes: float = dataclasses.field(
        default=145.0, metadata={"source": "assumed, UTF-8, of its translation"}
    )
    shard_lines: int = dataclasses.field(default=50_000, metadata={"source": "chosen"})
    shard_spread: float = dataclasses.field(
        default=0.05, metadata={"source": "assumed: standard deviation of a shard's time / mean"}
    )
    slow_share: float = dataclasses.field(
        default=0.01, metadata={"source": "assumed: share of GPUs that are slow"}
    )
    slow_factor: float = dataclasses.field(
        default=2.0, metadata={"source": "assumed: how many times as long those take"}
    )
    machine_mtbf_hours: float = dataclasses.field(
        default=2000.0, metadata={"source": "assumed, of a machine, whatever fails in it"}
    )
    repair_hours: float = dataclasses.field(
        default=1.0, metadata={"source": "assumed, until a machine is back or replaced"}
    )
    start_seconds: float = dataclasses.field(
        default=120.0, metadata={"source": "assumed: machine, Ray, and loading of a bundle"}
    )
    bundle_gigabytes: float = dataclasses.field(
        default=0.3, metadata={"source": "assumed, of one target of a `big` model in FP16"}
    )
    record_bytes: float = dataclasses.field(
        default=4096.0, metadata={"source": "a block of the file system for each small file"}
    )
    dollars_per_gpu_hour: float = dataclasses.field(
        default=2.5, metadata={"source": "assumed; put in your own"}
    )


def shards(given: Inputs) -> int:
    """Return the number of shards."""
    return math.ceil(given.sentences / given.shard_lines)


def shard_seconds(given: Inputs) -> float:
    """Return the seconds of a shard on a GPU of normal speed."""
    return given.shard_lines / given.sentences_per_second


def throughput(given: Inputs) -> float:
    """Return sentences per second of all GPUs, with slow ones and without those in repair."""
    pace = 1 - given.slow_share + given.slow_share / given.slow_factor
    return given.gpus * given.sentences_per_second * pace * availability(given)


def availability(given: Inputs) -> float:
    """Return the share of time in which a machine works."""
    return given.machine_mtbf_hours / (given.machine_mtbf_hours + given.repair_hours)


def slowest(given: Inputs) -> float:
    """Return the expected time of the slowest of one shard per GPU, in multiples of the mean.

    The largest of n normally distributed times is expected at most sqrt(2 ln n) standard deviations
    above the mean. A slow GPU is among them with probability 1 - (1 - share)^n.
    """
    if given.gpus == 1:
        return 1.0
    normal = 1 + given.shard_spread * math.sqrt(2 * math.log(given.gpus))
    slow_is_there = 1 - (1 - given.slow_share) ** given.gpus
    return max(normal, 1 + slow_is_there * (given.slow_factor - 1) + normal - 1)


def tail_seconds(given: Inputs) -> float:
    """Return the seconds from the start of the last shard to its end, at worst."""
    return slowest(given) * shard_seconds(given)


def tail_seconds_speculative(given: Inputs) -> float:
    """Return the tail if shards slower than 1.5 times the mean also ran on idle GPUs."""
    normal = 1 + given.shard_spread * math.sqrt(2 * math.log(max(given.gpus, 2)))
    return min(tail_seconds(given), (1.5 + normal) * shard_seconds(given))


def seconds(given: Inputs) -> float:
    """Return the seconds of the run: start, sentences at full pace, losses by failures, tail."""
    busy = given.sentences / throughput(given)
    return given.start_seconds + busy + lost_gpu_seconds(given) / given.gpus + tail_seconds(given)


def failures(given: Inputs) -> float:
    """Return the number of machines that fail during the run."""
    machines = given.gpus / given.gpus_per_machine
    return machines * given.sentences / throughput(given) / 3600 / given.machine_mtbf_hours


def lost_gpu_seconds(given: Inputs) -> float:
    """Return GPU seconds lost by failures: half a shard per GPU of a machine, and its restart."""
    each = given.gpus_per_machine * (shard_seconds(given) / 2 + given.start_seconds)
    return failures(given) * each


def dollars(given: Inputs) -> float:
    """Return the cost of all GPUs for the whole run."""
    return given.gpus * seconds(given) / 3600 * given.dollars_per_gpu_hour


def results(given: Inputs) -> list[list[str]]:
    """Return rows of quantity, arithmetic and figure."""
    hours = seconds(given) / 3600
    machines = math.ceil(given.gpus / given.gpus_per_machine)
    rate = throughput(given)
    terabytes = given.sentences * (given.source_bytes + 2 * given.target_bytes) / 1e12
    bookkeeping = shards(given) * 2 * given.record_bytes / 1e9
    tail = tail_seconds(given)
    between = 3600 * given.machine_mtbf_hours / machines
    per_million = dollars(given) / given.sentences * 1e6
    return [
        ["machines", "GPUs / GPUs of a machine", f"{machines:,}"],
        ["sentences per second", "GPUs x speed x pace x availability", f"{rate:,.0f}"],
        ["shards", "sentences / lines of a shard", f"{shards(given):,}"],
        ["a shard takes", "lines of a shard / speed", f"{shard_seconds(given):,.0f} s"],
        ["shards finished per second", "what the driver does", f"{rate / given.shard_lines:,.1f}"],
        ["reading and writing", "rate x bytes of both sides",
         f"{rate * (given.source_bytes + given.target_bytes) / 1e6:,.0f} MB/s"],
        ["joining, beside that", "rate x 3 x bytes of a translation: read, written, hashed",
         f"{rate * 3 * given.target_bytes / 1e6:,.0f} MB/s"],
        ["bundles at the start", "machines x size of a target / start; their GPUs share one copy",
         f"{machines * given.bundle_gigabytes / given.start_seconds:,.2f} GB/s"],
        ["storage", "sentences x (source + 2 x translation): parts and joined",
         f"{terabytes:,.2f} TB"],
        ["records of shards", "shards x 2 small files, until joined", f"{bookkeeping:,.1f} GB"],
        ["a machine fails every", "MTBF / machines", f"{between / 3600:,.1f} hours"],
        ["machines that fail", "machines x hours / MTBF", f"{failures(given):,.2f}"],
        ["lost by failures", "each: half a shard and a start, of its GPUs",
         f"{lost_gpu_seconds(given) / 3600:,.2f} GPU hours"],
        ["the slowest of one shard each", "1 + spread x sqrt(2 ln GPUs), and a slow GPU",
         f"{slowest(given):.2f} mean times"],
        ["the tail", "slowest x a shard's time", f"{tail:,.0f} s"],
        ["the tail, with speculation", "at most (1.5 + slowest that is not slow) x a shard's time",
         f"{tail_seconds_speculative(given):,.0f} s"],
        ["GPUs idle in the tail", "tail / the whole run, at most",
         f"{100 * tail / seconds(given):.1f} %"],
        ["the whole run", "start + sentences / rate + losses + tail", f"{hours:,.2f} hours"],
        ["cost", "GPUs x hours x price", f"${dollars(given):,.0f}"],
        ["cost of a million sentences", "cost / millions of sentences", f"${per_million:,.3f}"],
    ]  # fmt: skip


def inputs(given: Inputs) -> list[list[str]]:
    """Return rows of option, value and source."""
    return [
        [f"`--{field.name.replace('_', '-')}`", f"{getattr(given, field.name):,}",
         field.metadata["source"]]
        for field in dataclasses.fields(given)
    ]  # fmt: skip


def text(given: Inputs) -> str:
    """Format both tables."""
    return (
        f"{table(['input', 'value', 'where it is from'], inputs(given))}\n"
        f"{table(['', 'arithmetic', 'figure'], results(given))}"
    )


def main() -> None:
    """Print the plan for the given inputs."""
    print(text(read_inputs(Inputs, __doc__)))


if __name__ == "__main__":
    main()

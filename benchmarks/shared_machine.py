"""Training on a CPU that others use too: how OpenMP waits, and how much memory oneDNN keeps.

    python benchmarks/shared_machine.py --waiting [--busy 2] [--threads 2] [--rounds 8]
    python benchmarks/shared_machine.py --memory [--steps 500]
    python benchmarks/shared_machine.py --reuse [--steps 20]

--waiting times optimizer steps of a preset (random text, fp32) under several ways in
which OpenMP's threads can wait for each other. Every way is a process of its own that lives as long
as the benchmark; they take one step each, in turn, so that all see the same neighbours. --busy
starts that many more processes which only compute. The load average is recorded beside the times.

--memory trains in bf16 and records the process's resident memory every 10 steps, with the given
capacities of oneDNN's and torch's caches of primitives ("default": what they come with). It needs a
processor with AVX-512: on others torch multiplies bf16 without oneDNN, and nothing is cached.

--reuse records the shapes of all matrix products of some steps, on any processor, and tells how
many of them a cache of each capacity would have held.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from report import parser, write

WAITING = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 100": {"GOMP_SPINCOUNT": "100"},
    "spin 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spin 100,000": {"GOMP_SPINCOUNT": "100000"},
    "translate-trt train": {},  # what the command itself sets
}
CAPACITIES = ("default", "16", "64", "256")
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
# Of the variables above: none may come from outside.
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", *CACHES)


def make_trainer(name: str, batch_tokens: int, precision: str, threads: int) -> tuple[Any, Any]:
    """A trainer of that preset, and its steps, on random text; it saves nothing."""
    import torch

    from translate_trt.train.checkpoint import DecodingDefaults
    from translate_trt.train.config import preset
    from translate_trt.train.data.batches import encode_parallel
    from translate_trt.train.trainer.distributed import Group
    from translate_trt.train.trainer.loop import Job, Trainer, Validation
    from translate_trt.train.trainer.steps import StepLoader

    torch.set_num_threads(threads)
    chosen = preset(name)
    sizes = {"batch_tokens": batch_tokens, "micro_batch_tokens": batch_tokens}
    recipe = dataclasses.replace(chosen.train, precision=precision, **sizes)
    random = np.random.default_rng(1)
    lengths = random.integers(4, 40, (8_000, 2))
    lines = [
        [
            random.integers(4, chosen.model.vocabulary_size, count).tolist()
            for count in lengths[:, i]
        ]
        for i in (0, 1)
    ]
    data = encode_parallel(lines[0], lines[1], None)
    job = Job(
        Path(), chosen.model, recipe, data, Validation(data, [], []), (Path(), Path()), 0,
        DecodingDefaults(), None,
    )  # fmt: skip
    trainer = Trainer(job, Group(torch.device("cpu")))
    trainer.model.train()
    return trainer, StepLoader(data, recipe, 0, 1, (0, 0))


def work(name: str, batch_tokens: int, precision: str, threads: int) -> None:
    """Take an optimizer step for each line on stdin; print its seconds, tokens, and memory."""
    trainer, loader = make_trainer(name, batch_tokens, precision, threads)
    steps = iter(loader)
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        step = next(steps)
        begin = time.perf_counter()
        trainer._optimizer_step(step)
        seconds = time.perf_counter() - begin
        print(json.dumps([seconds, step.target_tokens, resident_bytes()]), flush=True)
    loader.close()


def reuse(given: argparse.Namespace) -> dict[str, Any]:
    """Share of the products whose shapes are among the last ones, by the size of the cache."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[tuple[Any, ...]] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            name = str(function)
            if name.split(".")[1] in ("mm", "addmm", "bmm", "baddbmm"):
                tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
                calls.append((name, *((tuple(x.shape), x.stride()) for x in tensors)))
            return function(*arguments, **(keywords or {}))

    import torch

    trainer, loader = make_trainer(given.preset, given.batch_tokens, "fp32", given.threads)
    steps = iter(loader)
    with Recorder():
        for _ in range(given.steps):
            trainer._optimizer_step(next(steps))
    loader.close()
    distinct = len(set(calls))
    print(f"{len(calls) / given.steps:.0f} products a step, {distinct / given.steps:.0f} shapes")
    shares = {}
    for capacity in (8, 16, 32, 64, 128, 256, 1_024):
        kept: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        hits = 0
        for call in calls:
            hits += call in kept
            kept[call] = None
            kept.move_to_end(call)
            if len(kept) > capacity:
                kept.popitem(last=False)
        shares[str(capacity)] = hits / len(calls)
        print(f"capacity {capacity:5}: {100 * shares[str(capacity)]:5.1f} % found")
    return {"products": len(calls), "distinct": distinct, "found": shares}


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Worker:
    """A process that takes a step whenever it is asked to."""

    def __init__(self, environment: dict[str, str], options: list[str], own: bool = False) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        flags = ["--work", *options, *(["--own-settings"] if own else [])]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *flags], env={**inherited, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._read()

    def step(self) -> tuple[float, int, int]:
        """Seconds, target tokens and resident bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        seconds, tokens, memory = self._read()
        return seconds, tokens, memory

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended; its error stands above")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def worker_options(given: argparse.Namespace) -> list[str]:
    """The flags that workers share with the benchmark."""
    sizes = ["--batch-tokens", str(given.batch_tokens), "--threads", str(given.threads)]
    return ["--preset", given.preset, *sizes]


def waiting(given: argparse.Namespace) -> dict[str, Any]:
    """Target tokens per second of each way, step by step."""
    options = worker_options(given)
    names = [name for name in WAITING if not given.only or name in given.only]
    workers = {
        name: Worker(WAITING[name], options, own=name == "translate-trt train") for name in names
    }
    for worker in workers.values():
        worker.step()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
    speeds: dict[str, list[float]] = {name: [] for name in names}
    try:
        before = os.getloadavg()
        for turn in range(given.rounds):
            # Another order in each round: none always follows the same neighbour.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seconds, tokens, _ = workers[name].step()
                speeds[name].append(tokens / seconds)
                print(f"{name}: {tokens / seconds:.0f} tokens/s", file=sys.stderr, flush=True)
        after = os.getloadavg()
    finally:
        for process in busy:
            process.kill()
            process.wait()
        for worker in workers.values():
            worker.close()
    print(f"load average {before[0]:.1f} before, {after[0]:.1f} after; {given.busy} busy processes")
    for name, values in speeds.items():
        low, high = min(values), max(values)
        print(f"{name:22} {statistics.median(values):8.0f} tokens/s ({low:.0f} to {high:.0f})")
    return {"target_tokens_per_second": speeds, "load_average": [before[0], after[0]]}


def memory(given: argparse.Namespace) -> dict[str, Any]:
    """Resident megabytes every 10 steps, and the seconds of all steps, of each capacity."""
    options = [*worker_options(given), "--precision", "bf16"]
    names = [name for name in CAPACITIES if not given.only or name in given.only]
    names += [name for name in given.only if name.isdecimal() and name not in names]
    workers = {
        name: Worker({} if name == "default" else dict.fromkeys(CACHES, name), options)
        for name in names
    }
    samples: dict[str, Any] = {name: {"megabytes": [], "seconds": 0.0} for name in names}
    for step in range(given.steps):
        for name, worker in workers.items():
            seconds, _, resident = worker.step()
            samples[name]["seconds"] += seconds
            if step % 10 == 9:
                samples[name]["megabytes"].append(round(resident / 1e6, 1))
    for worker in workers.values():
        worker.close()
    print(f"resident MB after steps; {given.steps} steps")
    for name, found in samples.items():
        curve = found["megabytes"]
        shown = curve[:: max(1, len(curve) // 10)]
        print(f"{name:8} {found['seconds']:7.0f} s   {' '.join(f'{x:.0f}' for x in shown)}")
    return samples


def main() -> None:
    """Run one of the parts, or be a worker of them."""
    options = parser(__doc__)
    kind = options.add_mutually_exclusive_group(required=True)
    kind.add_argument("--waiting", action="store_true")
    kind.add_argument("--memory", action="store_true")
    kind.add_argument("--reuse", action="store_true")
    kind.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--own-settings", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--precision", default="fp32", help=argparse.SUPPRESS)
    options.add_argument("--busy", type=int, default=0, help="processes that only compute")
    options.add_argument("--steps", type=int, default=500, help="of --memory and --reuse")
    options.add_argument("--preset", default="small")
    options.add_argument("--batch-tokens", type=int, default=2_048)
    options.add_argument("--note", default="", help="under which conditions")
    options.add_argument("--only", nargs="*", default=[], help="only these ways or capacities")
    given = options.parse_args()
    if given.work:
        if given.own_settings:
            from translate_trt.train.cli.torch_settings import set_training_defaults

            set_training_defaults()
        work(given.preset, given.batch_tokens, given.precision, given.threads)
        return
    parts = {"waiting": waiting, "memory": memory, "reuse": reuse}
    (part,) = (name for name in parts if getattr(given, name))
    samples = parts[part](given)
    names = ("preset", "batch_tokens", "threads", "busy", "steps")
    settings = {name: getattr(given, name) for name in names}
    print(write(f"training-{part}", settings | {"note": given.note}, samples, given.out))


if __name__ == "__main__":
    main()

"""Compare the C++ library, alone and called from Python, with Python's reference loop.

    bash scripts/build_library.sh -D TRANSLATE_TRT_TESTS=ON
    python benchmarks/cpp_library.py --bundle DIR --source test.en [--target onnx-int8 ...]

All systems use the same bundle, ONNX Runtime and kernels, in turn. They translate text, including
tokenization: all lines in one call with a worker on each core, and the first lines in a call each
with one thread, like a service with a single request. Translations of the latter must be identical.
In the former, several workers form different batches in every call, and without kernels rounding
depends on the batch, so differing lines are counted. Loading is timed until the bundle is verified
and ready.

The library alone: all lines in one call, and the same lines submitted one at a time by each of 64
threads; and the workers' processor time per sentence, within the graphs and outside of them. Python
on the library: how long handing over a result holds the interpreter lock; and lines submitted to a
service one by one, all with one length penalty, and with 64 different ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import onnxruntime
from harness import alternate, compared, parser, spread, write

from translate_trt.runtime import TranslationService, Translator, kernels, native

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/native"
ONE_BY_ONE = 100  # lines
CLIENTS = 64  # threads


class Cpp:
    """C++ process with the library, which reads requests as lines of JSON and times its calls."""

    def __init__(self, bundle: Path, **options: Any) -> None:
        library = next(Path(onnxruntime.__file__).with_name("capi").glob("libonnxruntime.so.*"))
        environment = {
            **os.environ,
            "TRANSLATE_TRT_ONNXRUNTIME": str(library),
            "TRANSLATE_TRT_KERNELS": str(kernels.library() or "none"),
        }
        program = BUILD / "tests/translate_trt_probe"
        if not program.exists():
            raise SystemExit(f"there is no {program}; build it by the first command of --help.")
        self._process = subprocess.Popen(
            [program], env=environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._load = {"bundle": str(bundle), **options}
        self.load()

    def load(self) -> float:
        """Load the bundle again and return the seconds; libraries are loaded already."""
        begin = perf_counter()
        self._ask(load=self._load)
        return perf_counter() - begin

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        """Return seconds and translations."""
        answer = self._ask(lines=lines)
        return answer["seconds"], [line[0]["text"] for line in answer["found"]]

    def translate_by_threads(self, lines: Sequence[str], threads: int) -> tuple[float, list[str]]:
        """Return seconds and translations; each thread submits one line after another."""
        answer = self._ask(lines=lines, threads=threads)
        return answer["seconds"], [line[0]["text"] for line in answer["found"]]

    def statistics(self) -> dict[str, float]:
        """Return totals since the bundle was loaded."""
        found: dict[str, float] = self._ask(statistics=True)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise SystemExit(answer["error"][1])
        return answer


class Python:
    """Python's reference loop in this process."""

    library = "none"

    def __init__(self, bundle: Path, **options: Any) -> None:
        self._bundle, self._options = bundle, options
        self.load()

    def load(self) -> float:
        """Load the bundle again and return the seconds; libraries are loaded already."""
        os.environ[native.VARIABLE] = self.library
        begin = perf_counter()
        self._translator = Translator(self._bundle, **self._options)
        return perf_counter() - begin

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        """Return seconds and translations."""
        begin = perf_counter()
        found = self._translator.translate(lines)
        return perf_counter() - begin, [translation.text for translation in found]

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class PythonOnLibrary(Python):
    """Python on the library, in this process."""

    library = str(BUILD / "libtranslate_trt.so")


SYSTEMS: dict[str, Callable[..., Cpp | Python]] = {
    "Python": Python,
    "Python on the library": PythonOnLibrary,
    "C++": Cpp,
}


class Turns:
    """Systems with one bundle that make the same calls in turn.

    Attributes:
        differing: Largest number of lines in which an answer differed from the first one.
    """

    def __init__(self, bundle: Path, **options: Any) -> None:
        self._opened = {name: system(bundle, **options) for name, system in SYSTEMS.items()}
        self._first: list[str] = []
        self.differing = 0

    def translate(self, calls: list[list[str]], rounds: int) -> dict[str, list[float]]:
        """Return the seconds of each round of each system."""
        return alternate(
            {name: lambda n=name: self._ask(n, calls) for name in self._opened}, rounds
        )

    def load(self, rounds: int) -> dict[str, list[float]]:
        """Return seconds until the bundle is ready."""
        return alternate({name: system.load for name, system in self._opened.items()}, rounds)

    def close(self) -> None:
        """End all systems."""
        for system in self._opened.values():
            system.close()

    def _ask(self, name: str, calls: list[list[str]]) -> float:
        answers = [self._opened[name].translate(lines) for lines in calls]
        texts = [text for _, translations in answers for text in translations]
        self._first = self._first or texts
        differing = sum(a != b for a, b in zip(texts, self._first, strict=True))
        self.differing = max(self.differing, differing)
        return sum(seconds for seconds, _ in answers)


def compare(given: argparse.Namespace, target: str, lines: list[str]) -> dict[str, Any]:
    """Measure seconds of each part, and count differing lines."""
    together = Turns(given.bundle, target=target, threads=1, workers=given.threads)
    samples: dict[str, Any] = {"all lines": together.translate([lines], given.rounds)}
    together.close()
    alone = Turns(given.bundle, target=target, threads=1)
    one_by_one = [[line] for line in lines[:ONE_BY_ONE]]
    samples["line by line"] = alone.translate(one_by_one, given.rounds)
    samples["loading"] = alone.load(given.rounds)
    alone.close()
    if alone.differing:
        raise SystemExit(f"{alone.differing} lines of {target} differ, each translated alone.")
    return {"differing": together.differing, "seconds": samples}


def compare_clients(
    given: argparse.Namespace, target: str, lines: list[str]
) -> dict[str, list[float]]:
    """Measure one call with all lines, and many threads with a line each."""
    library = Cpp(given.bundle, target=target, threads=1, workers=given.threads)
    expected = library.translate(lines)[1]

    def clients() -> float:
        seconds, found = library.translate_by_threads(lines, CLIENTS)
        if found != expected and kernels.describe() not in ("", kernels.PORTABLE):
            raise SystemExit("translations depend on what shares their batches.")
        return seconds

    samples = alternate(
        {"one call": lambda: library.translate(lines)[0], "clients": clients}, given.rounds
    )
    library.close()
    return samples


def processor_time(
    given: argparse.Namespace, target: str, lines: list[str]
) -> dict[str, dict[str, float]]:
    """Measure the workers' processor time per sentence, in milliseconds."""
    library = Cpp(given.bundle, target=target, threads=1, workers=given.threads)
    ways: dict[str, Callable[[], object]] = {
        "one call": lambda: library.translate(lines),
        "clients": lambda: library.translate_by_threads(lines, CLIENTS),
        "line by line": lambda: [library.translate([line]) for line in lines[:ONE_BY_ONE]],
    }
    library.translate(lines)
    found = {}
    for name, translate in ways.items():
        before = library.statistics()
        for _ in range(given.rounds):
            translate()
        after = library.statistics()
        spent = {key: 1e3 * (after[key] - before[key]) for key in before}
        each = 1e-3 * spent["sentences"]
        found[name] = {
            "in graphs": spent["graph_seconds"] / each,
            "outside": (spent["worker_seconds"] - spent["graph_seconds"]) / each,
        }
    library.close()
    return found


def python_service(
    given: argparse.Namespace, target: str, lines: list[str]
) -> dict[str, list[float]]:
    """Measure seconds of a service, and microseconds that each sentence holds the lock."""
    os.environ[native.VARIABLE] = PythonOnLibrary.library
    translator = Translator(given.bundle, target, threads=1, workers=given.threads)
    assert translator.core is not None
    core, options = translator.core, translator.default_options

    def serve(penalties: int) -> float:
        begin = perf_counter()
        futures = [
            service.submit(line, replace(options, length_penalty=0.6 + number % penalties / 1000))
            for number, line in enumerate(lines)
        ]
        wait(futures)
        return perf_counter() - begin

    def hand_over() -> float:
        job = core.submit(lines, options)
        job.wait()
        begin = thread_time()
        job.result()
        return 1e6 * (thread_time() - begin) / len(lines)

    with TranslationService(translator) as service:
        serve(1)
        samples = alternate(
            {"one penalty": lambda: serve(1), "64 penalties": lambda: serve(64)}, given.rounds
        )
    return {**samples, "lock": [hand_over() for _ in range(given.rounds)]}


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the spread of each figure, and ratios to Python's loop, one call and one penalty."""
    found = {}
    for target, one in samples.items():
        service = dict(one["service"])
        lock = service.pop("lock")
        found[target] = {
            "differing": one["differing"],
            "seconds": {
                part: compared(seconds, "Python") for part, seconds in one["seconds"].items()
            },
            "clients": compared(one["clients"], "one call"),
            "service": {"seconds": compared(service, "one penalty"), "lock": spread(lock)},
            "processor time": one["processor time"],
        }
    return found


def main() -> None:
    """Measure, show, write."""
    options = parser(__doc__)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--source", type=Path, required=True, help="text to translate")
    options.add_argument("--target", action="append", help="target of the bundle; default: all")
    options.add_argument("--note", default="", help="conditions of the measurement")
    given = options.parse_args()
    lines = given.source.read_text(encoding="utf-8").splitlines()
    manifest = json.loads((given.bundle / "manifest.json").read_text())
    samples: dict[str, Any] = {}
    for target in given.target or manifest["targets"]:
        samples[target] = {
            **compare(given, target, lines),
            "clients": compare_clients(given, target, lines),
            "service": python_service(given, target, lines),
            "processor time": processor_time(given, target, lines),
        }
    settings = {
        "lines": len(lines),
        "line_by_line": min(ONE_BY_ONE, len(lines)),
        "workers": given.threads,
        "clients": CLIENTS,
        "model": manifest["model"],
        "note": given.note,
        "rounds": given.rounds,
    }
    results = summarize(samples)
    for target, found in results.items():
        print(f"{target}: {found['differing']} lines differed with several workers")
        for part, figures in found.items():
            print(f"  {part}: {figures}")
    print(write("cpp-library", settings, results, given, samples))


if __name__ == "__main__":
    main()

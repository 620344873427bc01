"""The C++ library beside Python's runtime: one bundle, the same ONNX Runtime and kernels, in turns.

    bash scripts/build_library.sh -D TRANSLATE_TRT_TESTS=ON
    python benchmarks/cpp_library.py --bundle DIR --source test.en [--target onnx-int8 ...]

Both translate text, tokenization and all: every line in one call with a worker on each core, and
the first lines in a call each, with one thread, as a service does that has one request. Their
translations must be the same, byte for byte. Loading is timed, too: until a bundle is checked,
hashes and all, and ready.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import onnxruntime
from report import alternate, parser, ratios, write

from translate_trt.runtime import Translator, kernels

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/library"
ONE_BY_ONE = 100  # lines


class Cpp:
    """A process of the library's, which is asked by lines of JSON and times its own calls."""

    def __init__(self, bundle: Path, **options: Any) -> None:
        library = next(Path(onnxruntime.__file__).with_name("capi").glob("libonnxruntime.so.*"))
        fetched = [str(path) for path in ROOT.glob(".cache/native/usr/lib/*") if path.is_dir()]
        environment = {
            **os.environ,
            "TRANSLATE_TRT_ONNXRUNTIME": str(library),
            "TRANSLATE_TRT_KERNELS": str(kernels.library() or "none"),
            "LD_LIBRARY_PATH": ":".join([*fetched, os.environ.get("LD_LIBRARY_PATH", "")]),
        }
        program = BUILD / "tests/translate_trt_probe"
        if not program.exists():
            raise SystemExit(f"there is no {program}; run the first command of --help.")
        self._process = subprocess.Popen(
            [program], env=environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._load = {"bundle": str(bundle), **options}
        self.load()

    def load(self) -> float:
        """Seconds until the bundle is ready, once more; libraries are there already."""
        begin = perf_counter()
        self._ask(load=self._load)
        return perf_counter() - begin

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        """Seconds, and the translations."""
        answer = self._ask(lines=lines)
        return answer["seconds"], [line[0]["text"] for line in answer["found"]]

    def close(self) -> None:
        """Let it end."""
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
    """The same in this process."""

    def __init__(self, bundle: Path, **options: Any) -> None:
        self._bundle, self._options = bundle, options
        self.load()

    def load(self) -> float:
        """Seconds until the bundle is ready, once more; libraries are there already."""
        begin = perf_counter()
        self._translator = Translator(self._bundle, **self._options)
        return perf_counter() - begin

    def translate(self, lines: Sequence[str]) -> tuple[float, list[str]]:
        """Seconds, and the translations."""
        begin = perf_counter()
        found = self._translator.translate(lines)
        return perf_counter() - begin, [translation.text for translation in found]

    def close(self) -> None:
        """Nothing to end."""


SYSTEMS: dict[str, Callable[..., Cpp | Python]] = {"Python": Python, "C++": Cpp}


def in_turns(
    bundle: Path, calls: list[list[str]], rounds: int, **options: Any
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each round of each system, which must find the same; and those of loading."""
    opened = {name: system(bundle, **options) for name, system in SYSTEMS.items()}
    found: dict[str, list[str]] = {}

    def run(name: str) -> float:
        answers = [opened[name].translate(lines) for lines in calls]
        texts = [text for _, translations in answers for text in translations]
        if texts != found.setdefault("first", texts):
            raise SystemExit(f"{name} found other translations.")
        return sum(seconds for seconds, _ in answers)

    samples = alternate({name: lambda n=name: run(n) for name in opened}, rounds)
    loading = alternate({name: system.load for name, system in opened.items()}, rounds)
    for system in opened.values():
        system.close()
    return samples, loading


def main() -> None:
    """Measure, show, write."""
    options = parser(__doc__)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--source", type=Path, required=True, help="text to translate")
    options.add_argument("--target", action="append", help="of the bundle; default: all it has")
    options.add_argument("--note", default="", help="what else the machine did")
    given = options.parse_args()
    lines = given.source.read_text(encoding="utf-8").splitlines()
    manifest = json.loads((given.bundle / "manifest.json").read_text())
    samples: dict[str, Any] = {}
    for target in given.target or manifest["targets"]:
        one_by_one = [[line] for line in lines[:ONE_BY_ONE]]
        workers = given.threads
        samples[target] = {}
        samples[target]["all lines"], _ = in_turns(
            given.bundle, [lines], given.rounds, target=target, threads=1, workers=workers
        )
        samples[target]["line by line"], samples[target]["loading"] = in_turns(
            given.bundle, one_by_one, given.rounds, target=target, threads=1
        )
        for name, seconds in samples[target].items():
            middle, low, high = ratios(seconds, "C++", "Python")
            medians = ", ".join(f"{n} {statistics.median(v):.3f} s" for n, v in seconds.items())
            print(f"{target:20} {name:13} {medians}; {middle:.2f} [{low:.2f}, {high:.2f}]")
    settings = {
        "lines": len(lines),
        "line_by_line": min(ONE_BY_ONE, len(lines)),
        "workers": given.threads,
        "model": manifest["model"],
        "note": given.note,
    }
    print(write("cpp-library", settings, samples, given.out))


if __name__ == "__main__":
    main()

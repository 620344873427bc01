"""Compare the speed of two versions of this project on the same bundle and lines, in turn.

    git worktree add ../before REVISION
    (cd ../before && source scripts/environment.sh && make_environment cpu && make_libraries "")
    python benchmarks/versions.py --before ../before/.venv/bin/python --bundle DIR --source test.en
        [--target onnx-int8 ...] [--lines 300] [--rounds 7] [--exact] [--bundle-before DIR]

Each version is a warm process of its own Python, with its own kernels. In turn they translate all
lines with a worker on each core, and the first 50 lines one by one with all cores. Figures are the
time of the version before over the time of this one, pair by pair, and differing translations are
counted. Then fresh processes of both versions start in turn and translate one line with one thread;
their time to the translation and their peak memory are compared.

With --exact nothing is timed: all lines are searched in several ways, in batches. Lines are counted
of which a text, score or log-probability of the n best differs in any bit, and lines whose texts
differ.

If the versions read different bundle formats, --bundle-before is the bundle that the version before
made of the same checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from harness import Report, alternate, benchmark, compared, main, option, read_text, shown

ONE_BY_ONE = 50  # lines

#: Searches of --exact: options, and whether a target prefix is forced.
SEARCHES: dict[str, tuple[dict[str, Any], bool]] = {
    "beam 1": ({"beam_size": 1}, False),
    "beam 4, all": ({"num_hypotheses": 4}, False),
    "beam 12, all": ({"beam_size": 12, "num_hypotheses": 12}, False),
    "beam 4, prefixes": ({"num_hypotheses": 2, "early_stopping": True}, True),
    "beam 4, length 1.5": ({"length_penalty": 1.5, "min_length": 5, "max_length": 30}, False),
}

# Runs in each version's Python, so it uses only names that both versions have.
CHILD = """
import hashlib, json, sys, time
from translate_trt.runtime import SearchOptions, Translator, kernels

given = json.loads(sys.argv[1])
several = Translator(given["bundle"], given["target"], threads=1, workers=given["cores"])
alone = Translator(given["bundle"], given["target"], threads=given["cores"])
print(json.dumps({"kernels": kernels.status()}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("options") is not None:
        found = several.translate(
            asked["lines"], SearchOptions(**asked["options"]), asked["prefixes"]
        )
        exact = [
            repr([(h.text, h.score, h.token_log_probs, h.truncated) for h in one.hypotheses])
            for one in found
        ]
        texts = [repr([(h.text, h.truncated) for h in one.hypotheses]) for one in found]
        hashes, of_texts = (
            [hashlib.sha256(text.encode()).hexdigest() for text in all_] for all_ in (exact, texts)
        )
        print(json.dumps({"hashes": hashes, "texts": of_texts}), flush=True)
        continue
    begin = time.perf_counter()
    if asked["together"]:
        found = several.translate(asked["lines"])
    else:
        found = [alone.translate([text])[0] for text in asked["lines"]]
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "texts": [one.text for one in found]}), flush=True)
"""

# In a process of its own: translates one line.
START = """
import json, resource, sys
from translate_trt.runtime import Translator

given = json.loads(sys.argv[1])
text = Translator(given["bundle"], given["target"], threads=1).translate([given["line"]])[0].text
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Version:
    """Process of one version, and the name of the kernels that it uses."""

    def __init__(self, python: Path | str, **given: Any) -> None:
        self._process = subprocess.Popen(
            [python, "-c", CHILD, json.dumps(given)],
            text=True, encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.kernels: str = self._answer()["kernels"]

    def ask(self, **request: Any) -> Any:
        """Return the answer of CHILD."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a version ended; see its message above.")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(
    versions: dict[str, Version], lines: Sequence[str], rounds: int, target: str
) -> dict[str, Any]:
    """Time both versions in batches and one by one; count translations that differ."""
    found: dict[str, Any] = {"kernels": {name: one.kernels for name, one in versions.items()}}
    for way, some in (("batches", lines), ("one by one", lines[:ONE_BY_ONE])):
        answers = alternate(
            {
                name: lambda one=one: one.ask(lines=some, together=way == "batches")  # noqa: B023
                for name, one in versions.items()
            },
            rounds,
        )
        seconds = {name: [one["seconds"] for one in all_] for name, all_ in answers.items()}
        texts = [all_[-1]["texts"] for all_ in answers.values()]
        differing = sum(a != b for a, b in zip(*texts, strict=True))
        found[way] = {"seconds": seconds, "lines": len(some), "differing": differing}
        ratio = shown(compared(seconds, "before")["before / this"], 3)
        print(
            f"{target:22} {way:12} before / this {ratio}  {differing} of {len(some)} lines differ"
        )
    return found


def start(python: Path | str, **given: Any) -> dict[str, float]:
    """Return seconds from the start of a process to its first translation, and its peak MiB."""
    begin = perf_counter()
    done = subprocess.run(
        [python, "-c", START, json.dumps(given)], text=True, stdout=subprocess.PIPE, check=True
    )
    return {"seconds": perf_counter() - begin, "peak_mib": int(done.stdout) / 1024}


def compare_starts(
    pythons: dict[str, Path | str], bundles: dict[str, Path], target: str, line: str, rounds: int
) -> dict[str, Any]:
    """Time starts of both versions, and measure their memory."""
    answers = alternate(
        {
            name: lambda name=name: start(  # type: ignore[misc]
                pythons[name], bundle=str(bundles[name]), target=target, line=line
            )
            for name in pythons
        },
        rounds,
    )
    found: dict[str, Any] = {}
    for what in ("seconds", "peak_mib"):
        found[what] = {name: [one[what] for one in all_] for name, all_ in answers.items()}
        ratio = shown(compared(found[what], "before")["before / this"], 3)
        print(f"{target:22} start, {what} before / this {ratio}")
    return found


def compare_exactly(
    versions: dict[str, Version], lines: Sequence[str], target: str
) -> dict[str, Any]:
    """Count lines for which the results of the two versions differ."""
    found: dict[str, Any] = {"kernels": {name: one.kernels for name, one in versions.items()}}
    begins = [" ".join(line.split()[:2]) for line in lines]
    for name, (options, has_prefixes) in SEARCHES.items():
        prefixes = begins if has_prefixes else None
        answers = [
            one.ask(lines=lines, options=options, prefixes=prefixes) for one in versions.values()
        ]
        differing, in_texts = (
            sum(a != b for a, b in zip(*(one[part] for one in answers), strict=True))
            for part in ("hashes", "texts")
        )
        found[name] = {"lines": len(lines), "differing": differing, "texts": in_texts}
        print(f"{target:22} {name:24} {differing} of {len(lines)} lines differ, {in_texts} in text")
    return found


def summarize(samples: Any) -> Any:
    """Replace each pair of lists by the spread of both versions and of their ratio."""
    if not isinstance(samples, dict):
        return samples
    if samples.keys() == {"this", "before"} and isinstance(samples["this"], list):
        return compared(samples, "before")
    return {name: summarize(one) for name, one in samples.items()}


@benchmark(
    "versions",
    option("--before", required=True, help="Python of the other version"),
    "bundle source targets",
    option("--bundle-before", type=Path, help="bundle of the other version, if formats differ"),
    option("--lines", type=int, default=300, help="number of lines"),
    option("--exact", action="store_true", help="compare results instead of times"),
)
def versions(given: Namespace) -> Report:
    """Compare two versions on the same bundle and lines."""
    lines = read_text(given.source)[: given.lines]
    pythons: dict[str, Path | str] = {"this": sys.executable, "before": given.before}
    bundles = {"this": given.bundle, "before": given.bundle_before or given.bundle}
    samples = {}
    for target in given.target:
        opened = {
            name: Version(python, bundle=str(bundles[name]), target=target, cores=given.threads)
            for name, python in pythons.items()
        }
        if given.exact:
            samples[target] = compare_exactly(opened, lines, target)
        else:
            samples[target] = compare(opened, lines, given.rounds, target)
        for one in opened.values():
            one.close()
        if not given.exact:
            samples[target]["start"] = compare_starts(
                pythons, bundles, target, lines[0], given.rounds
            )
    settings = {"lines": len(lines), "one by one": ONE_BY_ONE}
    return Report(summarize(samples), settings, samples)


if __name__ == "__main__":
    main(__doc__)

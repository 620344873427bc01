"""Compare the speed of two versions of this project: the same bundle and lines, in turns.

    git worktree add ../before REVISION
    (cd ../before && source scripts/environment.sh && make_environment cpu && make_kernels "")
    python benchmarks/versions.py --before ../before/.venv/bin/python --bundle DIR --source test.en
        [--target onnx-int8 ...] [--lines 300] [--rounds 7]

Each version is a warm process of its own Python, which has its own kernels. They translate all
lines with a worker on each core, and the first 50 lines one by one with all cores, in turns;
figures are of the time of the version before over that of this one, pair by pair. Translations
that differ are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import alternate, parser, ratios, write

ONE_BY_ONE = 50  # lines

# Run by each version's Python, so it names nothing that one of them may not have.
CHILD = """
import json, sys, time
from translate_trt.runtime import Translator, kernels

given = json.loads(sys.argv[1])
several = Translator(given["bundle"], given["target"], threads=1, workers=given["cores"])
alone = Translator(given["bundle"], given["target"], threads=given["cores"])
print(json.dumps({"kernels": kernels.status()}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    begin = time.perf_counter()
    if asked["together"]:
        found = several.translate(asked["lines"])
    else:
        found = [alone.translate([text])[0] for text in asked["lines"]]
    seconds = time.perf_counter() - begin
    print(json.dumps({"seconds": seconds, "texts": [one.text for one in found]}), flush=True)
"""


class Version:
    """A process of one version.

    Attributes:
        kernels: the name of those in use there.
    """

    def __init__(self, python: Path | str, **given: Any) -> None:
        self._process = subprocess.Popen(
            [python, "-c", CHILD, json.dumps(given)],
            text=True, encoding="utf-8", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.kernels: str = self._answer()["kernels"]

    def translate(self, lines: Sequence[str], together: bool) -> dict[str, Any]:
        """Translate the lines; return the seconds and the translations."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"lines": lines, "together": together}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a version ended; what it said stands above.")
        return json.loads(line)


def compare(
    pythons: dict[str, str], lines: Sequence[str], rounds: int, **given: Any
) -> dict[str, Any]:
    """Time both versions in batches and one by one; count translations that differ."""
    versions = {name: Version(python, **given) for name, python in pythons.items()}
    found: dict[str, Any] = {"kernels": {name: one.kernels for name, one in versions.items()}}
    for way, some in (("batches", lines), ("one by one", lines[:ONE_BY_ONE])):
        answers = alternate(
            {
                name: lambda one=one: one.translate(some, way == "batches")  # noqa: B023  # at once
                for name, one in versions.items()
            },
            rounds,
        )
        seconds = {name: [one["seconds"] for one in all_] for name, all_ in answers.items()}
        texts = [all_[-1]["texts"] for all_ in answers.values()]
        differing = sum(a != b for a, b in zip(*texts, strict=True))
        found[way] = {"seconds": seconds, "lines": len(some), "differing": differing}
        median, least, most = ratios(seconds, "this", "before")
        print(
            f"{given['target']:22} {way:12} before / this {median:.3f} "
            f"[{least:.3f}, {most:.3f}]  {differing} of {len(some)} lines differ"
        )
    for one in versions.values():
        one.close()
    return found


def arguments() -> argparse.Namespace:
    """From the command line."""
    options = parser(__doc__)
    options.add_argument("--before", required=True, help="Python of the other version")
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--source", type=Path, required=True)
    options.add_argument("--target", action="append", required=True)
    options.add_argument("--lines", type=int, default=300)
    return options.parse_args()


def main() -> None:
    """Measure and write."""
    args = arguments()
    lines = args.source.read_text(encoding="utf-8").splitlines()[: args.lines]
    pythons = {"this": sys.executable, "before": args.before}
    samples = {
        target: compare(
            pythons, lines, args.rounds,
            bundle=str(args.bundle), target=target, cores=args.threads,
        )
        for target in args.target
    }  # fmt: skip
    settings = {"lines": len(lines), "one by one": ONE_BY_ONE, "rounds": args.rounds}
    print(write("versions", settings, samples, args.out))


if __name__ == "__main__":
    main()

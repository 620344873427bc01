#!/usr/bin/env python3
"""Compare two files of translations with scores, line by line.

    python scripts/compare_translations.py EXPECTED FOUND [--precision fp32]

Files contain lines of `translate --scores` (score, tab, translation), or JSON objects with
"translation" and "score" if their names end in .jsonl. Lines with other translations but an equal
score, up to rounding, are ties: beam search may prefer either. The exit code is 1 if more lines
differ in another way than the limit of the precision allows, which is at least one line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

#: Scores that differ by at most this are equal up to rounding. In fp32, the tolerance is that of
#: `translate-trt verify`; 16 bits round each logit by up to 2^-11 (fp16) or 2^-8 (bf16) of it.
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}
#: Share of lines that may differ otherwise: a rounded score can exclude a hypothesis from the beam
#: early, and the final scores are then no longer comparable.
SHARES = {"fp32": 0.001, "fp16": 0.02, "bf16": 0.1}


@dataclass(frozen=True)
class Comparison:
    """Numbers of lines by kind, and the largest score difference of identical lines."""

    lines: int
    identical: int
    tied: int
    score_error: float

    @property
    def differing(self) -> int:
        """Number of lines that are neither identical nor tied."""
        return self.lines - self.identical - self.tied

    def passes(self, precision: str) -> bool:
        """Return whether the files agree within the limits of a precision."""
        allowed = max(1, int(SHARES[precision] * self.lines))
        return (
            self.lines > 0
            and self.differing <= allowed
            and self.score_error <= TOLERANCES[precision]
        )

    def __str__(self) -> str:
        return (
            f"{self.lines} lines: {self.identical} identical, {self.tied} tied, "
            f"{self.differing} differ; scores of identical lines differ by at most "
            f"{self.score_error:.1e}"
        )


def read(path: Path) -> list[tuple[float, str]]:
    """Read scores and translations.

    Raises:
        ValueError: A line has no score.
    """
    # Translations may contain other characters that end lines for splitlines().
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if path.suffix == ".jsonl":
        values = [json.loads(line) for line in lines]
        return [(float(value["score"]), str(value["translation"])) for value in values]
    pairs = [line.partition("\t")[::2] for line in lines]
    return [(float(score), text) for score, text in pairs]


def compare(
    expected: list[tuple[float, str]], found: list[tuple[float, str]], precision: str
) -> Comparison:
    """Compare translations line by line.

    Raises:
        ValueError: The numbers of lines differ.
    """
    identical = tied = 0
    error = 0.0
    for (score, text), (other_score, other) in zip(expected, found, strict=True):
        difference = abs(score - other_score) / max(1.0, abs(score))
        if text == other:
            identical += 1
            error = max(error, difference)
        elif difference <= TOLERANCES[precision]:
            tied += 1
    return Comparison(len(expected), identical, tied, error)


def main() -> int:
    """Print the comparison and return the exit code."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("expected", type=Path)
    options.add_argument("found", type=Path)
    options.add_argument("--precision", choices=TOLERANCES, default="fp32")
    given = options.parse_args()
    compared = compare(read(given.expected), read(given.found), given.precision)
    print(compared)
    return 0 if compared.passes(given.precision) else 1


if __name__ == "__main__":
    raise SystemExit(main())

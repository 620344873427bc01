"""Compute what `export --all-options` adds to a step, from execution plans.

    python benchmarks/engine_options.py [--batches 1,64]

As benchmarks/engine_plan.py, without a GPU: the step engine of `base` with random weights is built
by TensorRT-RTX for compute capability 8.9, for 64 source and 64 target tokens, and its plans are
read. A step with these inputs has the largest sizes that `export` compiles for, and these alone, so
that its bytes can be counted. docs/engines.md shows the table.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from engine_plan import (
    LIMITS,
    TARGET,
    VOCABULARY,
    computed_times,
    describe,
    plan_of,
    settings_of_plans,
    step_graph,
)
from harness import parser, write
from tables import table

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import change_sizes
from translate_trt.runtime.backends.engines import Profile
from translate_trt.train.config import preset
from translate_trt.train.model import Transformer

TOKENS = 64
BEAM_SIZES = (4, 1)
FORMS = ("without", "unused", "used")


@dataclass(frozen=True)
class FixedProfile(Profile):
    """Profile of a step for exactly the sizes in `changes`."""

    def ranges(self) -> dict[str, tuple[int, int, int]]:
        """See `Profile`."""
        return {axis: (most,) * 3 for axis, (_, _, most) in super().ranges().items()}


def measure(batches: list[int]) -> dict[str, Any]:
    """Return the figures of a step by case and form."""
    torch.manual_seed(0)
    config = dataclasses.replace(preset("base").model, vocabulary_size=VOCABULARY)
    model = Transformer(config).eval()
    results: dict[str, Any] = {}
    for beams in BEAM_SIZES:
        graphs = [
            step_graph(model, BuildOptions((TARGET,), beam_size=beams, all_options=is_given))
            for is_given in (False, True)
        ]
        for batch in batches:
            shape = (batch, TOKENS, beams * TOKENS)
            largest = change_sizes(LIMITS, beams, VOCABULARY)
            found = {
                "without": plan_of(graphs[0], Profile(*shape)),
                "unused": plan_of(graphs[1], Profile(*shape)),
                "used": plan_of(graphs[1], FixedProfile(*shape, largest)),
            }
            name = f"{beams} beams, batch {batch}" if beams > 1 else f"1 beam, batch {batch}"
            results[name] = {form: describe(one, TOKENS, beams) for form, one in found.items()}
            for figures in results[name].values():
                del figures["kernels"]
            print(name, {form: one.launches for form, one in found.items()}, flush=True)
    return results


def render(report: dict[str, Any]) -> str:
    """Render launches, bytes and computed time of a step in every form."""
    settings, results = report["settings"], report["results"]
    header = ["beams, batch", "launches", "other MB", "scratch MB"]
    header += [f"{gpu['name']} ms" for gpu in settings["gpus"]]
    rows = []
    for case, found in results.items():
        figures = [found[form] for form in FORMS]
        cells = [
            [f"{one['launches']}" for one in figures],
            [f"{one['other_bytes'] / 1e6:,.0f}" for one in figures],
            [f"{one['scratch_bytes'] / 1e6:,.0f}" for one in figures],
        ]
        for gpu in settings["gpus"]:
            cells.append([f"{one['milliseconds'][gpu['name']]:.2f}" for one in figures])
        rows.append([case, *(" / ".join(cell) for cell in cells)])
    return (
        f"`python benchmarks/engine_options.py`: a step of `base` in FP16, {TOKENS} source and "
        f"{TOKENS} target tokens, engines of TensorRT-RTX {settings['version']} for compute "
        f"capability {settings['capability']}. Each cell has three values: without the flag; with "
        "it, and no sentence has these options; and with the largest inputs. "
        f"{computed_times(settings)}\n\n{table(header, rows)}"
    )


def main() -> None:
    """Build all engines, and write the report."""
    options = parser(__doc__)
    options.add_argument("--batches", default="1,64", help="sentences of a batch")
    given: argparse.Namespace = options.parse_args()
    batches = [int(part) for part in given.batches.split(",")]
    settings = {"preset": "base", "batches": batches, **settings_of_plans()}
    print(write("engine-options", settings, measure(batches), given))


if __name__ == "__main__":
    main()

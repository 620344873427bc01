"""Record the table of a distillation: quality and speed of a teacher and its students.

    python benchmarks/front.py multi30k --distilled OUT/distilled --teacher OUT/bundle
        --command "bash scripts/distill_multi30k.sh DATA OUT" --test test_2016_flickr

All figures are read from table.json, which `translate-trt distill` has measured, and from the
files of the runs. render.py makes the table and the plot.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import write

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.train.trainer.settings import SETTINGS

TEACHER = "teacher"


def shape_of(model: dict[str, Any]) -> str:
    """Describe the size of a model in the words of the table.

    Args:
        model: Fields of `ModelConfig`.
    """
    layers = f"{model['encoder_layers']}+{model['decoder_layers']} layers"
    return f"{layers}, d_model {model['d_model']}, d_ff {model['d_ff']}"


def read_systems(distilled: Path, teacher: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return size, decoder and parameters of the teacher and each student, by name.

    Args:
        distilled: Output of `translate-trt distill`.
        teacher: Bundle of the teacher.
        names: Systems of the table; other students may be unfinished.
    """
    model = read_manifest(teacher).model
    fields = {
        "encoder_layers": model.encoder_layers, "decoder_layers": model.decoder_layers,
        "d_model": model.model_size, "d_ff": model.feed_forward_size,
    }  # fmt: skip
    found = {TEACHER: {"size": shape_of(fields), "decoder": "", "parameters": model.parameters}}
    for name in names:
        if name == TEACHER:
            continue
        home = distilled / "students" / name
        config = json.loads((home / "run" / SETTINGS).read_text())["model"]
        found[name] = {
            "size": shape_of(config),
            "decoder": config["decoder_mixer"],
            "parameters": read_manifest(home / "bundle").model.parameters,
        }
    return found


def main() -> None:
    """Read the distillation, write one JSON file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("name", help="such as multi30k")
    options.add_argument("--distilled", type=Path, required=True)
    options.add_argument("--teacher", type=Path, required=True, help="bundle of the teacher")
    options.add_argument("--command", required=True, help="command that made all")
    options.add_argument("--test", required=True, help="name of the test set")
    options.add_argument("--note", default="", help="conditions of the run")
    options.add_argument("--out", type=Path, help="JSON file; default: benchmarks/results/...")
    given = options.parse_args()
    settings = {"command": given.command, "test": given.test, "note": given.note}
    selection = given.distilled / "pairs" / "selection.json"
    rows = json.loads((given.distilled / "table.json").read_text())
    names = dict.fromkeys(row["system"] for row in rows)
    results = {
        "selection": json.loads(selection.read_text()),
        "systems": read_systems(given.distilled, given.teacher, names),
        "rows": rows,
    }
    print(write(f"front-{given.name}", settings, results, given))


if __name__ == "__main__":
    main()

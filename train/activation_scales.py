"""Recorded activation scales: the largest magnitude of each matmul's input, recorded on some text.

Int8 models of Bergamot's fork of Marian have them. An imported checkpoint may keep them in a file,
from which the export of int8 targets reads them (export/passes/int8.py). Training does not use or
write them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from translate_trt.runtime.errors import CheckpointError
from translate_trt.train.model import Transformer

FORMAT_VERSION = 1
#: Name of the output projection, whose matrix may be an embedding table; others are modules' names.
PROJECTION = "projection"
_IMPORT_AGAIN = "Import the model again."


def matmul_weights(model: Transformer) -> dict[str, Tensor]:
    """Return the matrices of a model's matmuls, by the names in a file of activation scales."""
    modules = model.named_modules()
    found: dict[str, Tensor] = {
        name: module.weight for name, module in modules if isinstance(module, nn.Linear)
    }
    return {**found, PROJECTION: model.projection_weight}


def write_activation_scales(path: Path, magnitudes: Mapping[str, float]) -> None:
    """Write the largest magnitudes of the inputs of matmuls, by the names of `matmul_weights`."""
    values = {"format_version": FORMAT_VERSION, "largest_magnitudes": dict(magnitudes)}
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def parse_activation_scales(
    path: Path, values: Mapping[str, Any], model: Transformer
) -> dict[str, float]:
    """Check the content of a file that `write_activation_scales` wrote.

    Args:
        path: Path of the file, for error messages.
        values: The JSON object in the file.
        model: The model, of which each matmul must have a magnitude.

    Returns:
        The largest magnitudes by the names of `matmul_weights`.

    Raises:
        CheckpointError: The file is of another format, a name is missing or unknown, or a magnitude
            is no positive, finite number.
    """
    version = values.get("format_version")
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version}; this version reads {FORMAT_VERSION}. Import "
            "the model again, or upgrade translate-trt."
        )
    magnitudes = values.get("largest_magnitudes")
    if not isinstance(magnitudes, dict):
        raise CheckpointError(
            f"{path} is damaged: its field 'largest_magnitudes' is not a JSON object. "
            f"{_IMPORT_AGAIN}"
        )
    expected = matmul_weights(model)
    for name in sorted(set(expected) ^ set(magnitudes)):
        problem = "lacks" if name in expected else "has the unknown matmul"
        raise CheckpointError(
            f"{path} does not fit the model's configuration: it {problem} {name!r}. {_IMPORT_AGAIN}"
        )
    for name, magnitude in magnitudes.items():
        is_number = isinstance(magnitude, int | float) and not isinstance(magnitude, bool)
        if not is_number or not (math.isfinite(magnitude) and magnitude > 0):
            raise CheckpointError(
                f"{path} is damaged: the magnitude of {name!r} is {magnitude!r}, not a positive, "
                f"finite number. {_IMPORT_AGAIN}"
            )
    return {name: float(magnitude) for name, magnitude in magnitudes.items()}

"""Recorded activation scales in int8 models of Bergamot's fork.

The fork quantizes the input x of a matrix W as round(x * multiplier), clipped to +-127
(src/tensors/cpu/intgemm_interface.h). scripts/alphas/extract_stats.py records 127 / (mean + 1.1
standard deviations of the largest magnitudes) on some text and adds it to the model as
`<name of W>_QuantMultA`. If a shortlist has selected columns of the output matrix, its name is
`none`; models have the multiplier under both names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translate_trt.export.importers.input_files import damaged
from translate_trt.export.importers.marian.binary import matrix_types
from translate_trt.runtime.errors import InputError

#: End of the name of a multiplier, after the name of the matrix.
MULTIPLIER = "_QuantMultA"
#: Name of the output matrix if a shortlist has selected its columns.
SHORTLISTED = "none"

# The largest integer.
_STEPS = 127
_TYPE = "intgemm8"
_LEAVE_OUT = "Leave out --recorded-activation-scales: int8 targets then compute a scale per row."


def check_has_recorded_scales(path: Path) -> None:
    """Check that a model is of a type that may have recorded activation scales.

    Raises:
        InputError: It is no binary model, or its matrices are not in the 8 bits of Bergamot's fork.
    """
    if path.suffix != ".bin":
        raise InputError(
            f"{path} is no int8 model; only those have recorded activation scales: .bin files that "
            f"marian-conv of Bergamot's fork wrote. {_LEAVE_OUT}"
        )
    types = matrix_types(path)
    if types != {_TYPE}:
        stored = " and ".join(sorted(types)) or "floating-point numbers"
        raise InputError(
            f"{path} stores its matrices as {stored}; only {_TYPE} models of Bergamot's fork have "
            f"recorded activation scales. {_LEAVE_OUT}"
        )


def read_magnitudes(
    path: Path, arrays: Mapping[str, NDArray[Any]], matrices: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return the largest magnitude of the input of each matmul, 127 / multiplier.

    Args:
        path: Path of the model, for error messages.
        arrays: Arrays of the model.
        matrices: By our name of a matmul: Marian's names of its matrix, of which the first that has
            a multiplier counts.

    Raises:
        InputError: A multiplier is missing, or no positive, finite number.
    """
    return {
        ours: float(_STEPS / np.float64(_multiplier(path, arrays, names)))
        for ours, names in matrices.items()
    }


def _multiplier(path: Path, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> float:
    found = next((name for name in names if f"{name}{MULTIPLIER}" in arrays), None)
    if found is None:
        raise InputError(
            f"{path} has no {names[0]}{MULTIPLIER}, the recorded activation scale of that matrix. "
            f"{_LEAVE_OUT}"
        )
    values = arrays[f"{found}{MULTIPLIER}"].reshape(-1)
    # The magnitude must be finite, too.
    if len(values) != 1 or not (math.isfinite(values[0]) and values[0] > np.finfo(np.float32).tiny):
        raise damaged(
            path, f"{found}{MULTIPLIER} is {values[:3].tolist()}, not a positive, finite number"
        )
    return float(values[0])

"""JSON and safetensors files of a run or checkpoint, checked against recorded SHA-256 hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.io.hashing import sha256_of_file

_USE_ANOTHER = "Use another checkpoint of the run."


def read_tensors(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        path: the file.
        sha256: what was written down as its hash; None: nothing, by an older version.

    Raises:
        CheckpointError: the file is missing or damaged, or a value in it is not finite.
    """
    check_hash(path, sha256)
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the checkpoint is incomplete.") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). {_USE_ANOTHER}") from error
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{path} is damaged: {name} holds a value that is not finite. {_USE_ANOTHER}"
            )
    return tensors


def file_hashes(*paths: Path) -> dict[str, str]:
    """SHA-256 by file name, as config.json, state.json and run.json keep them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    return {path.name: hash_file(path) for path in paths}


def check_hash(path: Path, sha256: str | None) -> None:
    """Compare a file with its recorded hash; None: older versions recorded none.

    Raises:
        CheckpointError: The hashes differ, or the file cannot be read.
    """
    if sha256 is not None and (found := hash_file(path)) != sha256:
        raise CheckpointError(
            f"{path} is damaged or was changed: its SHA-256 is {found}, and {sha256} was written "
            f"down when it was saved. {_USE_ANOTHER}"
        )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        return sha256_of_file(path)[0]
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the checkpoint is incomplete.") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}. {_USE_ANOTHER}") from error


def recorded_hashes(path: Path, values: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 by file name, as such a JSON file says; those of older versions name none."""
    hashes = values.get("sha256", {})
    if not isinstance(hashes, dict) or not all(isinstance(x, str) for x in hashes.values()):
        raise CheckpointError(f"{path} is damaged: its field 'sha256' is no object of strings.")
    return hashes


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run or checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; this is no checkpoint.") from error
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds no JSON object; it is damaged.")
    return values

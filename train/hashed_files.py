"""JSON and safetensors files, checked against recorded SHA-256 hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from translate_trt.runtime.errors import CheckpointError
from translate_trt.runtime.io.hashing import sha256_of_file

_USE_ANOTHER = "Use another checkpoint of the run."


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous tensors to a file with the permissions of any new file."""
    path.touch()
    mode = path.stat().st_mode  # safetensors' own is for the owner alone
    save_file(dict(tensors), path)
    path.chmod(mode)


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file.

    Args:
        path: Path of the file.
        sha256: Recorded hash.

    Raises:
        CheckpointError: The file is missing or damaged, or holds a non-finite value.
    """
    check_hash(path, sha256)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). {_USE_ANOTHER}") from error
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{path} is damaged: {name} has a non-finite value. {_USE_ANOTHER}"
            )
    return tensors


def file_hashes(*paths: Path) -> dict[str, str]:
    """Return SHA-256 hashes by file name, as config.json, state.json and run.json record them.

    Raises:
        CheckpointError: A file cannot be read.
    """
    return {path.name: hash_file(path) for path in paths}


def check_hash(path: Path, sha256: str) -> None:
    """Compare a file with its recorded hash.

    Raises:
        CheckpointError: The hashes differ, or the file cannot be read.
    """
    if (found := hash_file(path)) != sha256:
        raise CheckpointError(
            f"{path} is damaged or was changed: its SHA-256 is {found}, but was {sha256} when the "
            f"file was saved. {_USE_ANOTHER}"
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


def recorded_hashes(path: Path, values: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Return the hashes that a config.json, state.json or run.json records, by file name.

    Args:
        path: Path of the JSON file.
        values: Its content.
        names: Files that must have a hash.

    Raises:
        CheckpointError: The field is damaged, or lacks one of the files.
    """
    hashes = values.get("sha256")
    if not isinstance(hashes, dict) or not all(isinstance(x, str) for x in hashes.values()):
        raise CheckpointError(
            f"{path} is damaged: its field 'sha256' is not a JSON object of strings."
        )
    for name in names:
        if name not in hashes:
            raise CheckpointError(f"{path} is damaged: its field 'sha256' lacks {name}.")
    return hashes


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a run or checkpoint.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; this is not a checkpoint.") from error
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is damaged: it does not hold a JSON object.")
    return values

"""Checkpoints that torch pickled with more than tensors in them, read without running their code.

With `weights_only` torch makes tensors and plain containers alone. Objects of the classes
that an importer lists become a `Record`, which keeps their attributes and does nothing; one of any
other class is refused. Classes of a toolkit are never imported.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.importers.sizes import check_archive, check_tensors
from translate_trt.runtime.errors import InputError

# Scores of validations are such numbers; no importer reads them.
_NUMBERS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype")
# What torch says of a class that is not listed.
_DISALLOWED = re.compile(r"GLOBAL (\S+) was not an allowed")
# The cause, behind advice of torch's that is never repeated: to load the file without protection.
_CAUSE = re.compile(r"WeightsUnpickler error: (.+)")
_ADVICE = re.compile(r"weights[_ ]only|torch\.load", re.IGNORECASE)


class Record:
    """In place of an object of a toolkit's class.

    Attributes:
        fields: its attributes, by name.
    """

    fields: dict[str, Any]

    def __new__(cls, *arguments: Any) -> Record:
        """Whatever the object was made from is left out."""
        record = super().__new__(cls)
        record.fields = {}
        return record

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fields = state


def read_torch_file(path: Path, records: Sequence[str], toolkit: str) -> dict[str, Any]:
    """The dictionary that a checkpoint is.

    Args:
        path: of the file.
        records: full names of the classes whose objects become a `Record`.
        toolkit: the name of what wrote it, for messages.

    Raises:
        InputError: it is missing or damaged, or holds objects of other classes.
    """
    listed: list[Any] = [(Record, name) for name in (*records, *_NUMBERS)]
    try:
        with torch.serialization.safe_globals(listed):
            found = load_pickle(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a checkpoint of {toolkit}."
        ) from error
    except Exception as error:  # torch's, pickle's and zipfile's classes have no other base
        raise _unreadable(path, toolkit, error) from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}, no checkpoint of {toolkit}.")
    return found


def load_pickle(path: Path) -> Any:
    """Unpickle without running code, after a check of the sizes that the file declares.

    Raises:
        InputError: it declares more bytes than it can have.
        OSError: it cannot be read.
        Exception: whatever torch, pickle and zipfile raise for a damaged file; see `reason_of`.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
    return torch.load(path, map_location="cpu", weights_only=True)


def disallowed_class(error: Exception) -> str | None:
    """The class whose objects torch refused to make; None: the error is another."""
    found = _DISALLOWED.search(str(error))
    return None if found is None else found[1]


def reason_of(error: Exception) -> str:
    """The cause that torch gives, in one line, without its advice to load the file unprotected."""
    text = str(error)
    cause = _CAUSE.search(text)
    line = cause[1] if cause is not None else next(iter(text.splitlines()), "")
    if not line or _ADVICE.search(line):
        return f"torch cannot read it: {type(error).__name__}"
    return line


def _unreadable(path: Path, toolkit: str, error: Exception) -> InputError:
    unlisted = disallowed_class(error)
    if unlisted is None:
        return InputError(f"{path} is damaged, or no checkpoint of {toolkit} ({reason_of(error)}).")
    return InputError(
        f"{path} has an object of {unlisted} in it. To make one, code would have to be run, "
        "which could be anyone's. If you trust the file, save it again without that object where "
        f"{toolkit} is installed (docs/import.md, Checkpoints with objects)."
    )


def tensors_of(path: Path, values: Any, key: str) -> dict[str, Tensor]:
    """The tensors under a key of a checkpoint, in float32.

    Raises:
        InputError: there are none, or other things are among them.
    """
    if not isinstance(values, dict) or not values:
        raise InputError(f"{path} has no weights under {key!r}; it is another kind of file.")
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{path}: {name} under {key!r} is no tensor.")
    check_tensors(path, values.items())
    return {name: tensor.detach().float() for name, tensor in values.items()}

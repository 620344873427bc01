"""Reading of pickled torch checkpoints without running their code.

With `weights_only`, torch creates only tensors and plain containers. Objects of the classes that an
importer allows become a `Record` of their attributes; objects of other classes are refused. No
toolkit's classes are imported.
"""

from __future__ import annotations

import codecs
import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from translate_trt.export.importers.sizes import check_archive, check_tensors
from translate_trt.runtime.errors import InputError

# Validation scores, which no importer reads.
_NUMBERS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype")
# torch's message for a class that is not allowed.
_DISALLOWED = re.compile(r"GLOBAL (\S+) was not an allowed")
# The cause in torch's message. The advice before it, to load the file unprotected, is not repeated.
_CAUSE = re.compile(r"WeightsUnpickler error: (.+)")
_ADVICE = re.compile(r"weights[_ ]only|torch\.load", re.IGNORECASE)

# Functions that torch calls for a pickle. With them, a few bytes of a file become any number of
# bytes in memory: bytearray(n), and encode of a long string again and again.
_BYTEARRAY, _ENCODE = "builtins bytearray", "_codecs encode"
_MOST_ENCODED_BYTES = 2**28  # numpy writes its numbers as strings of a few bytes
_OLD_PICKLES = 5  # in a file that is no archive: magic number, protocol, system, object, storages


class Record:
    """Inert substitute for an object of a toolkit's class.

    Attributes:
        fields: Attributes of the object, by name.
    """

    fields: dict[str, Any]

    def __new__(cls, *arguments: Any) -> Record:
        """Ignore the arguments of the object's constructor."""
        record = super().__new__(cls)
        record.fields = {}
        return record

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fields = state


def read_torch_file(path: Path, records: Sequence[str], toolkit: str) -> dict[str, Any]:
    """Read a checkpoint, which must be a dictionary.

    Args:
        path: Path of the file.
        records: Full names of the classes whose objects become a `Record`.
        toolkit: Name of the toolkit that wrote the file, for error messages.

    Raises:
        InputError: The file is missing or damaged, or contains objects of other classes.
    """
    allowed: list[Any] = [(Record, name) for name in (*records, *_NUMBERS)]
    try:
        with torch.serialization.safe_globals(allowed):
            found = load_pickle(path)
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; pass a checkpoint of {toolkit}."
        ) from error
    except Exception as error:  # errors of torch, pickle and zipfile share no other base class
        raise _unreadable(path, toolkit, error) from error
    if not isinstance(found, dict):
        raise InputError(
            f"{path} contains a {type(found).__name__} and is not a checkpoint of {toolkit}."
        )
    return found


def load_pickle(path: Path) -> Any:
    """Unpickle a file without running code, after a check of the memory that it asks for.

    Raises:
        InputError: The file declares more bytes than it can have, or creates bytes that are not in
            the file.
        OSError: The file cannot be read.
        Exception: Errors of torch, pickle and zipfile for a damaged file; see `reason_of`.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
            for entry in archive.infolist():
                if entry.filename.endswith("data.pkl"):
                    with archive.open(entry) as file:
                        _check_pickles(path, file, 1)
    else:
        with path.open("rb") as file:
            _check_pickles(path, file, _OLD_PICKLES)
    return torch.load(path, map_location="cpu", weights_only=True)


def _check_pickles(path: Path, file: IO[bytes], count: int) -> None:
    """Raise an InputError if pickles create bytes that are not in the file."""
    functions: set[str] = set()
    longest = calls = 0
    for name, argument in _operations(file, count):
        if name == "GLOBAL":
            functions.add(str(argument).replace("__builtin__", "builtins"))
        elif name == "REDUCE":
            calls += 1
        elif isinstance(argument, str):
            longest = max(longest, len(argument))
            if _ENCODE in functions and _encodes_bytes(argument):
                raise _inflated(path, f"encodes bytes by {argument}")
    if _BYTEARRAY in functions:
        raise _inflated(path, "contains a bytearray")
    if _ENCODE in functions and longest * calls > _MOST_ENCODED_BYTES:
        raise _inflated(path, "encodes long strings again and again")


def _operations(file: IO[bytes], count: int) -> Iterator[tuple[str, object]]:
    """Iterate over the operations of consecutive pickles; torch reports damaged ones."""
    try:
        for _ in range(count):
            for operation, argument, _ in pickletools.genops(file):
                yield operation.name, argument
    except Exception:  # of any kind, for arbitrary bytes
        return


def _encodes_bytes(name: str) -> bool:
    """Return whether a string names a codec from bytes to bytes, such as hex."""
    try:
        return not codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        return False


def _inflated(path: Path, how: str) -> InputError:
    return InputError(
        f"{path} {how}, so it could fill the memory when it is read. No known toolkit does that; "
        "if you trust the file, save its weights again without that object."
    )


def disallowed_class(error: Exception) -> str | None:
    """Return the class whose objects torch refused to create; None for any other error."""
    found = _DISALLOWED.search(str(error))
    return None if found is None else found[1]


def reason_of(error: Exception) -> str:
    """Return the cause of torch's error in one line, without its advice to load unprotected."""
    text = str(error)
    cause = _CAUSE.search(text)
    line = cause[1] if cause is not None else next(iter(text.splitlines()), "")
    if not line or _ADVICE.search(line):
        return f"torch cannot read it: {type(error).__name__}"
    return line


def _unreadable(path: Path, toolkit: str, error: Exception) -> InputError:
    disallowed = disallowed_class(error)
    if disallowed is None:
        return InputError(
            f"{path} is damaged, or not a checkpoint of {toolkit} ({reason_of(error)})."
        )
    return InputError(
        f"{path} contains an object of {disallowed}. Loading the object would run code from the "
        "file. If you trust the file, save it again without the object where "
        f"{toolkit} is installed (docs/import.md, Checkpoints with objects)."
    )


def tensors_of(path: Path, values: Any, key: str) -> dict[str, Tensor]:
    """Return the tensors under a key of a checkpoint, in float32.

    Raises:
        InputError: The key is missing or empty, or a value is not a tensor.
    """
    if not isinstance(values, dict) or not values:
        raise InputError(f"{path} has no weights under {key!r}; it is another kind of file.")
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{path}: {name} under {key!r} is not a tensor.")
    check_tensors(path, values.items())
    return {name: tensor.detach().float() for name, tensor in values.items()}

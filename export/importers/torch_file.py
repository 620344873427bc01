"""Reading of pickled torch checkpoints without running their code.

With `weights_only`, torch creates only tensors and plain containers. Objects of the classes that an
importer allows become a `Record` of their attributes; objects of other classes are refused. No
toolkit's classes are imported.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

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
# bytes in memory: bytearray(n), a codec such as hex, and encode of a long string again and again.
# Python itself writes bytes as calls with a string in Latin-1.
_OF_BYTES = ("builtins bytearray", "_codecs encode")
_LATIN_1 = {"latin1", "latin-1"}
_MOST_ENCODED_BYTES = 2**28
_OLD_PICKLES = 5  # in a file that is no archive: magic number, protocol, system, object, storages


_MARK = object()  # on the stack of `_calls_of_one`


class _Function(NamedTuple):
    name: str


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
            found = _load_pickle(path)
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


def _load_pickle(path: Path) -> Any:
    """Unpickle a file without running code, after a check of the memory that it asks for."""
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
    """Raise an InputError if consecutive pickles create bytes that are not in the file."""
    encoded = 0
    for function, arguments in _calls(file, count):
        if function not in _OF_BYTES or arguments == ():
            continue
        text, *codec = arguments if isinstance(arguments, tuple) else (None,)
        if not isinstance(text, str) or not set(codec) <= _LATIN_1:
            raise _inflated(path, f"calls {function}, but not for a string in Latin-1")
        encoded += len(text)
    if encoded > _MOST_ENCODED_BYTES:
        raise _inflated(path, f"has strings of {encoded:,} bytes")


def _calls(file: IO[bytes], count: int) -> Iterator[tuple[str, object]]:
    """Iterate over the calls of functions in pickles: names and arguments, None where unknown.

    Pickles that break off end the iteration; torch reports them.
    """
    try:
        for _ in range(count):
            yield from _calls_of_one(file)
    except Exception:  # of any kind, for arbitrary bytes
        return


def _calls_of_one(file: IO[bytes]) -> Iterator[tuple[str, object]]:
    """Run a pickle on values that only tell functions, strings and tuples apart."""
    stack: list[object] = []
    memo: dict[object, object] = {}
    for operation, argument, _ in pickletools.genops(file):
        name, before = operation.name, operation.stack_before
        if name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
            continue
        taken: list[object] = []
        if pickletools.markobject in before:
            before = before[: before.index(pickletools.markobject)]
            while (item := stack.pop()) is not _MARK:
                taken.append(item)
        taken += [stack.pop() for _ in before]
        taken.reverse()
        value: object = argument if isinstance(argument, str) else None
        if name == "MARK":
            value = _MARK
        elif name == "GLOBAL":
            value = _Function(str(argument).replace("__builtin__", "builtins"))
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            value = memo.get(argument)
        elif name in ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            value = tuple(taken)
        elif name == "REDUCE" and isinstance(taken[0], _Function):
            function, arguments = taken[0].name, taken[1]
            yield function, arguments
            if function in _OF_BYTES and isinstance(arguments, tuple) and arguments:
                value = arguments[0]  # bytes have the length of their string in Latin-1
        stack += [value] * len(operation.stack_after)


def _inflated(path: Path, how: str) -> InputError:
    return InputError(
        f"{path} {how}, so it could fill the memory when it is read. No known toolkit does that; "
        "if you trust the file, save its weights again without that object."
    )


def _unreadable(path: Path, toolkit: str, error: Exception) -> InputError:
    text = str(error)
    if disallowed := _DISALLOWED.search(text):
        return InputError(
            f"{path} contains an object of {disallowed[1]}. Loading the object would run code from "
            "the file. If you trust the file, save it again without the object where "
            f"{toolkit} is installed (docs/import.md, Checkpoints with objects)."
        )
    # torch's cause in one line, without its advice to load the file unprotected.
    cause = _CAUSE.search(text)
    line = cause[1] if cause is not None else next(iter(text.splitlines()), "")
    if not line or _ADVICE.search(line):
        line = f"torch cannot read it: {type(error).__name__}"
    return InputError(f"{path} is damaged, or not a checkpoint of {toolkit} ({line}).")


def settings_of(path: Path, value: object) -> dict[str, Any]:
    """Return the settings of an object or dictionary; none for any other value.

    Raises:
        InputError: A setting is a tensor, which cannot be compared; the message names it.
    """
    if isinstance(value, Record):
        value = value.fields
    fields = value if isinstance(value, dict) else {}
    for name, setting in fields.items():
        if isinstance(setting, Tensor):
            raise InputError(
                f"{path}: the setting {name!s:.60} is a tensor of shape {list(setting.shape)}; "
                "the file is damaged."
            )
    return fields


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

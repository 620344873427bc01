"""Install and remove models of the store (model_store.py), each as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from translate_trt.runtime.bundle.manifest import bundle_files
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.io.atomic_files import (
    clear_leftovers,
    new_directory,
    output_errors,
    remove_directory,
    write_json,
)
from translate_trt.runtime.io.locks import lock_beside, locked
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.model_store import (
    BUNDLE_NAME,
    RECORD_NAME,
    ModelRecord,
    check_name,
    directory_of,
    find_model,
)


@contextmanager
def new_model(name: str, force: bool = False) -> Iterator[Path]:
    """Create the directory of a model, which appears in the store when the block ends.

    The block writes model.json (`write_record`) and the bundle into the yielded directory. After an
    error, Ctrl-C or SIGKILL the store is as before. No other process can install or remove the same
    model during the block.

    Args:
        name: Name of the model.
        force: Replace an installed model of the same name.

    Raises:
        OptionError: The text is not a name.
        OutputError: The model is installed and `force` is not set, another process is installing
            it, or the store is not writable.
    """
    path = directory_of(check_name(name))
    if not force and (path / RECORD_NAME).is_file():
        raise OutputError(
            f"the model {name} is installed; use it by its name, or replace it with --force."
        )
    with new_directory(path, force, kind=MODEL) as directory:
        yield directory


def write_record(directory: Path, record: ModelRecord) -> None:
    """Write model.json into the directory of a model."""
    write_json(directory / RECORD_NAME, record.to_json())


def remove_model(name: str) -> ModelRecord:
    """Remove an installed model; readers see all of it or nothing.

    Returns:
        The record of the model.

    Raises:
        BundleError: No such model is installed.
        OutputError: Another process is installing it, or the store is not writable.
    """
    model = find_model(name)
    path = model.directory.resolve()
    with locked(lock_beside(path), path), output_errors(path):
        clear_leftovers(path)
        remove_directory(path)
    return model.record


def _model_files(directory: Path) -> set[str] | None:
    """Return the relative paths of an installed model's files; None for another directory."""
    bundle = bundle_files(directory / BUNDLE_NAME)
    if bundle is None or not (directory / RECORD_NAME).is_file():
        return None
    return {RECORD_NAME, *(f"{BUNDLE_NAME}/{file}" for file in bundle)}


#: The kind of directory that `translate-trt get --force` may replace.
MODEL = Kind("installed model", "translate-trt get", _model_files)

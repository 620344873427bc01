"""Recognition of the format of model files, of a directory or of a repository's list of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from translate_trt.export.importers import fairseq, opennmt_py
from translate_trt.export.importers.ctranslate2 import argos_package, converted
from translate_trt.export.importers.hugging_face import bart, m2m100, marian, t5
from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.input_files import load_json
from translate_trt.export.importers.marian import model_folder
from translate_trt.export.importers.model_format import Languages, ModelFormat, need
from translate_trt.runtime.errors import InputError
from translate_trt.train.config import TOKENIZER, TOKENIZERS

_CONFIG = "config.json"

#: Checkpoints of translate-trt itself, which need no import.
CHECKPOINT = ModelFormat(
    "checkpoint",
    "a checkpoint of translate-trt",
    (
        need("config.json"),
        need("model.safetensors"),
        need(TOKENIZER, " ".join(TOKENIZERS)),
    ),
    ("shortlist.safetensors", "activation_scales.json"),
    config={"format_version": (), "model": ()},
)
#: Bundles, which need neither import nor export. The manifest names their files.
BUNDLE = ModelFormat(
    "bundle",
    "a bundle of translate-trt",
    (need("manifest.json"),),
    config={"format_version": (), "targets": (), "tokenizer": ()},
    config_name="manifest.json",
)

#: All formats, each declared beside its importer.
FORMATS = (
    BUNDLE, CHECKPOINT, marian.FORMAT, m2m100.FORMAT, bart.FORMAT, t5.FORMAT,
    argos_package.FORMAT, converted.FORMAT, model_folder.FORMAT, fairseq.FORMAT, opennmt_py.FORMAT,
)  # fmt: skip

# Files in a message.
_SHOWN = 12


def recognize(place: str, names: Collection[str], read_json: Callable[[str], Any]) -> ModelFormat:
    """Return the format of a model.

    Args:
        place: Directory or repository, for messages.
        names: Names of its files; of those in subdirectories, only model/ matters.
        read_json: Reads a JSON file of the model by its name.

    Raises:
        InputError: The files are of no format, or of several; the message says what they lack.
    """
    complete = [
        model for model in FORMATS if not model.lacking(names) and model.has_no_other(names)
    ]
    configs = {model.config_name for model in FORMATS} & set(names)
    values = {name: read_json(name) for name in sorted(configs)}
    found = [model for model in complete if model.has_config(values.get(model.config_name))]
    if len(found) == 1:
        return found[0]
    if found:
        commands = " or ".join(f"import {model.name}" for model in found)
        titles = " and of ".join(model.title for model in found)
        raise InputError(
            f"{place} has all files of {titles}; choose with translate-trt {commands}."
        )
    listed = ", ".join(sorted(names)[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
    raise InputError(
        f"{place} is no model that translate-trt recognizes: {_why(names, complete, values)} "
        f"Its files: {listed or 'none'}."
    )


def _why(
    names: Collection[str], complete: Collection[ModelFormat], values: Mapping[str, Any]
) -> str:
    """Describe what was looked for: what the nearest formats lack, or all formats."""
    # A directory with the first file of a format and its config.json lacks the others.
    begun = [model for model in FORMATS if model.required[0].files(names)]
    near = [
        model
        for model in begun
        if model.has_no_other(names) and model.has_config(values.get(model.config_name))
    ]
    lacks = [
        f"{model.title} would need {' and '.join(map(str, model.lacking(names)))}"
        for model in near
        if model not in complete
    ]
    if lacks:
        return "; ".join(lacks) + "."
    if _CONFIG in values:
        types = sorted({name for model in FORMATS for name in model.config.get("model_type", ())})
        config = values[_CONFIG]
        found = config.get("model_type") if isinstance(config, dict) else None
        return (
            f"config.json has the model_type {found!r:.60}, and those that can be imported are "
            f"{', '.join(types)}."
        )
    titles = ", ".join(model.title for model in FORMATS)
    return f"it has the files of none of these: {titles}. docs/import.md lists those of each."


def recognize_directory(directory: Path) -> ModelFormat:
    """Return the format of the model in a directory, or of a packed package.

    Raises:
        InputError: The directory is missing or another file, or its files are of no format or of
            several.
    """
    if argos_package.is_packed(directory):
        return argos_package.FORMAT
    if not directory.is_dir():
        what = "is a file: pass its directory, or the file to a command such as import marian"
        raise InputError(f"{directory} {what if directory.exists() else 'does not exist'}.")
    paths = (*directory.iterdir(), *directory.glob("model/*"))
    names = [path.relative_to(directory).as_posix() for path in paths if path.is_file()]
    return recognize(str(directory), names, lambda name: load_json(directory / name))


def import_directory(directory: Path, languages: Languages) -> tuple[ModelFormat, Imported]:
    """Import a directory of any format; return the format, too.

    Raises:
        InputError: The directory holds no model that can be imported.
    """
    model = recognize_directory(directory)
    if model.load is None:
        what = (
            "compile it with translate-trt export" if model is CHECKPOINT else "translate with it"
        )
        raise InputError(f"{directory} is {model.title} and needs no import; {what}.")
    return model, model.load(directory, languages)

"""Format of a directory of model files: its required files and the importer that loads it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.input_files import find_file, one_file
from translate_trt.runtime.errors import InputError

#: Language codes of source and target, where known.
Languages = tuple[str | None, str | None]

# SentencePiece models of both languages, and of one model for both.
_TOKENIZER_PAIRS = (("source.spm", "target.spm"), ("source.model", "target.model"))
_TOKENIZERS = ("*.spm", "*.model")


@dataclass(frozen=True)
class Requirement:
    """Files of which a format needs one alternative.

    Attributes:
        alternatives: The alternatives in order of preference. Each is one or several patterns of
            file names, separated by spaces, which must all match.
    """

    alternatives: tuple[str, ...]

    def files(self, names: Collection[str]) -> list[str]:
        """Return the files of the first alternative that is complete; none without one."""
        for alternative in self.alternatives:
            found = [matches(names, pattern) for pattern in alternative.split()]
            if all(found):
                return [name for group in found for name in group]
        return []

    def __str__(self) -> str:
        return " or ".join(text.replace(" ", " with ") for text in self.alternatives)


def need(*alternatives: str) -> Requirement:
    """Return the requirement of one of the alternatives; see `Requirement`."""
    return Requirement(alternatives)


@dataclass(frozen=True)
class ModelFormat:
    """Format of a directory of model files.

    Attributes:
        name: Name of the format, which is that of its import command.
        title: Description for messages.
        required: The files that every model has; the first distinguishes the format.
        optional: Patterns of further files that the importer reads.
        excluded: Patterns of files that no model of the format has.
        config: Required fields of a JSON file, with their possible values; none for any value.
        config_name: Name of the JSON file.
        load: Imports the directory; None for directories that need no import.
    """

    name: str
    title: str
    required: tuple[Requirement, ...]
    optional: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    config: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    config_name: str = "config.json"
    load: Callable[[Path, Languages], Imported] | None = None

    def lacking(self, names: Collection[str]) -> list[Requirement]:
        """Return the requirements that a directory of these files does not meet."""
        return [requirement for requirement in self.required if not requirement.files(names)]

    def has_no_other(self, names: Collection[str]) -> bool:
        """Return True if no file is of another format."""
        return not any(matches(names, pattern) for pattern in self.excluded)

    def has_config(self, values: object) -> bool:
        """Return True if the values of the JSON file are those of the format."""
        if not isinstance(values, dict):
            return not self.config
        return all(
            values.get(key) in allowed if allowed else key in values
            for key, allowed in self.config.items()
        )

    def files(self, names: Collection[str]) -> list[str]:
        """Return the files that the importer reads, of all the files of a directory."""
        found = [name for requirement in self.required for name in requirement.files(names)]
        found += [name for pattern in self.optional for name in matches(names, pattern)]
        return sorted(set(found))


def matches(names: Collection[str], pattern: str) -> list[str]:
    """Return the names in the pattern's directory that match, sorted; case matters."""
    depth = pattern.count("/")
    return sorted(name for name in fnmatch.filter(names, pattern) if name.count("/") == depth)


def checkpoint_in(directory: Path, command: str, *patterns: str) -> Path:
    """Return the checkpoint in a directory: the file of the first pattern that matches.

    Args:
        directory: The directory.
        command: Import command that takes the file, for the message.
        patterns: Patterns of the name.

    Raises:
        InputError: Several files match.
    """
    remedy = f"Name the file with `translate-trt import {command}`."
    return one_file(directory, patterns, "checkpoints", remedy) or directory / patterns[0]


def tokenizers_in(directory: Path, command: str) -> tuple[Path | None, Path | None]:
    """Return the SentencePiece models of source and target in a directory, if it has any.

    Args:
        directory: The directory.
        command: Import command that takes the files, for the message.

    Raises:
        InputError: The directory has several models, and their names do not tell the languages.
    """
    for pair in _TOKENIZER_PAIRS:
        source, target = (find_file(directory, (name,)) for name in pair)
        if source is not None and target is not None:
            return source, target
    found = sorted(path for pattern in _TOKENIZERS for path in directory.glob(pattern))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(
            f"{directory} has several SentencePiece models: {names}. Name them with --source-spm "
            f"and --target-spm of `translate-trt import {command}`."
        )
    return (found[0], found[0]) if found else (None, None)


def format_of_transformers(
    name: str,
    title: str,
    model_types: tuple[str, ...],
    load: Callable[[Path], Imported],
    required: tuple[Requirement, ...] = (need("sentencepiece.bpe.model"),),
    optional: tuple[str, ...] = ("tokenizer.json", "vocab.json"),
) -> ModelFormat:
    """Return the format of models that transformers saved, which is recognized by config.json.

    Args:
        name: See `ModelFormat`.
        title: See `ModelFormat`.
        model_types: Values of model_type.
        load: Imports the directory.
        required: Files of the tokenizer.
        optional: Further files of the tokenizer.
    """
    weights = need(
        "model.safetensors",
        "model.safetensors.index.json model-*-of-*.safetensors",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json pytorch_model-*-of-*.bin",
    )
    settings = (
        "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json",
    )  # fmt: skip
    return ModelFormat(
        name,
        title,
        (need("config.json"), *required, weights),
        (*optional, *settings),
        config={"model_type": model_types},
        load=lambda directory, languages: load(directory),
    )

"""Directories of a Marian model, as Firefox, Bergamot and OPUS-MT distribute them.

model*.bin      weights of marian-conv (or model*.npz, *.npz)
vocab*.spm      vocabulary, or srcvocab*.spm and trgvocab*.spm, or *.vocab.yml
source.spm      tokenizer of a .yml vocabulary, with target.spm
lex*.bin        lexical shortlist (or lex*.s2t, text; both may be compressed by gzip)
config*.yml     settings of the decoder, which may name the other files

Of the paths in the settings only the names are used: all files are in the directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.input_files import one_file, sibling
from translate_trt.export.importers.marian.decoder_settings import (
    DecoderSettings,
    read_decoder_file,
)
from translate_trt.export.importers.marian.lexical_table import ShortlistFile
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.export.importers.model_format import ModelFormat, need, tokenizers_in
from translate_trt.runtime.errors import InputError

# Files by their patterns; the first pattern that matches is used.
_SETTINGS = ("decoder.yml", "config.yml", "config*.yml", "*.config.yml", "*.decoder.yml")
_MODELS = ("model*.bin", "*.bin", "model*.npz", "*.npz")
_SHORTLISTS = ("lex*.bin", "lex*.bin.gz", "lex*.s2t", "lex*.s2t.gz", "lex*.txt")
_VOCABULARIES = ("vocab*.spm", "vocab*.yml", "*.vocab.yml")
_PAIRS = (("srcvocab*.spm", "trgvocab*.spm"), ("vocab.src*.spm", "vocab.trg*.spm"))
_NOT_MODELS = ("lex*", "*.optimizer.npz", "quality*")
_COMPRESSED = (".gz", ".zst", ".xz", ".zip")
# Without settings: those of Firefox and of Bergamot's translator.
_DEFAULTS: dict[str, Any] = {"beam-size": 1, "normalize": 1.0}


@dataclass(frozen=True)
class ModelFolder:
    """Files of a model.

    Attributes:
        model: The weights.
        vocabularies: Vocabularies of source and target; may be the same file.
        shortlist: The lexical shortlist, if there is one.
        decoder: Decoding settings.
    """

    model: Path
    vocabularies: tuple[Path, Path]
    shortlist: ShortlistFile | None
    decoder: DecoderSettings

    @classmethod
    def find(cls, directory: Path) -> ModelFolder:
        """Find the files of the model in a directory.

        Raises:
            InputError: A file is missing, or there are several of a kind; the message names them.
        """
        path = _one(directory, _SETTINGS, "settings", excluded=_VOCABULARIES)
        values = _DEFAULTS if path is None else read_decoder_file(path)
        decoder = DecoderSettings.of_values(path or directory / _SETTINGS[0], values)
        model = _named(directory, path, values, "models")
        vocabularies = _named(directory, path, values, "vocabs")
        shortlist = decoder.shortlist
        if shortlist is None:
            file = _one(directory, _SHORTLISTS, "shortlists")
            shortlist = None if file is None else ShortlistFile(file)
        return cls(
            model[0] if model else _model(directory),
            (vocabularies[0], vocabularies[-1]) if vocabularies else _vocabularies(directory),
            shortlist,
            decoder,
        )


def _one(
    directory: Path, patterns: Sequence[str], what: str, excluded: Sequence[str] = ()
) -> Path | None:
    remedy = "Pass the model itself, with --vocab and --shortlist, or move the others away."
    return one_file(directory, patterns, what, remedy, excluded)


def _named(directory: Path, path: Path | None, values: dict[str, Any], name: str) -> list[Path]:
    """Return the files that the settings name."""
    names = values.get(name) or []
    found = []
    for name_of_file in names if isinstance(names, list) else [names]:
        file = sibling(directory, name_of_file)
        if file is None:
            raise _missing(directory, f"{str(name_of_file)[:100]}, which {path} names under {name}")
        found.append(file)
    return found


def _model(directory: Path) -> Path:
    found = _one(directory, _MODELS, "models", excluded=_NOT_MODELS)
    if found is None:
        raise _missing(directory, "a model: model*.bin or model*.npz")
    return found


def _vocabularies(directory: Path) -> tuple[Path, Path]:
    for patterns in _PAIRS:
        source, target = (_one(directory, (x,), "vocabularies") for x in patterns)
        if source is not None and target is not None:
            return source, target
    found = _one(directory, _VOCABULARIES, "vocabularies")
    if found is None:
        raise _missing(directory, "a vocabulary: vocab*.spm, or srcvocab*.spm and trgvocab*.spm")
    return found, found


def _missing(directory: Path, what: str) -> InputError:
    compressed = sorted(path.name for path in directory.iterdir() if path.suffix in _COMPRESSED)
    advice = f" Decompress {', '.join(compressed[:4])} first." if compressed else ""
    return InputError(f"{directory} lacks {what}.{advice}")


def import_folder(
    directory: Path,
    tokenizers: tuple[Path | None, Path | None] = (None, None),
    shortlist: ShortlistFile | None = None,
    recorded_scales: bool = False,
) -> Imported:
    """Import the model in a directory.

    Args:
        directory: Directory with the files of `ModelFolder`.
        tokenizers: See `import_marian_model`. Default for .yml vocabularies: the directory's.
        shortlist: Lexical shortlist. Default: that of the directory.
        recorded_scales: See `import_marian_model`.

    Raises:
        InputError: A file is missing, there are several of a kind, or the model is not supported.
    """
    folder = ModelFolder.find(directory)
    if tokenizers == (None, None) and folder.vocabularies[0].suffix != ".spm":
        if codes := sorted(directory.glob("*.bpe")):
            raise InputError(
                f"{directory} has {codes[0].name}, codes of subword-nmt, which translate-trt does "
                "not apply to text. Pass the model's file, with --vocab, to translate segmented "
                "text."
            )
        tokenizers = tokenizers_in(directory, "marian")
    return import_marian_model(
        folder.model, *folder.vocabularies, tokenizers, shortlist or folder.shortlist,
        folder.decoder, recorded_scales,
    )  # fmt: skip


#: Recognized by the names that Firefox, Bergamot and Marian give to weights and vocabularies.
FORMAT = ModelFormat(
    "marian",
    "a model of Marian, Bergamot, Firefox or OPUS-MT",
    (need("model*.bin", "model*.npz", "*.npz"), need(*_VOCABULARIES, *map(" ".join, _PAIRS))),
    (*_SETTINGS, *_SHORTLISTS, "source.spm", "target.spm"),
    ("shared_vocabulary.*", "source_vocabulary.*"),
    load=lambda directory, languages: import_folder(directory),
)

"""Decoding settings of a Marian model.

Training writes MODEL.decoder.yml, and OPUS-MT's models come with a decoder.yml. Without either, the
defaults of marian-decoder apply. A model directory (`model_directory.py`) may have another file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.imported import check_search
from translate_trt.export.importers.input_files import find_file, read_text, sibling
from translate_trt.export.importers.marian.files import BOOLEANS, read_settings
from translate_trt.export.importers.marian.lexical_table import ShortlistFile
from translate_trt.runtime.errors import InputError

log = logging.getLogger("translate_trt")

_NAME = "decoder.yml"
# Settings that change at most how translations are written.
_WITHOUT_EFFECT = {
    "relative-paths", "models", "vocabs", "mini-batch", "mini-batch-words", "maxi-batch",
    "maxi-batch-sort", "workspace", "devices", "cpu-threads", "num-devices", "data-threads",
    "quiet", "quiet-translation", "log", "log-level", "log-time-zone", "seed", "port", "input",
    "output", "n-best", "alignment", "word-scores", "stat-freq", "optimize", "type", "version",
    "beam-size", "normalize", "allow-unk", "allow-special", "model-mmap", "tsv", "tsv-fields",
    "shortlist", "gemm-precision", "bergamot-mode", "max-length-break", "ssplit-mode",
    "cache-size",
}  # fmt: skip
# Unsupported settings, and their values without effect.
_OFF: dict[str, tuple[Any, ...]] = {
    "word-penalty": (0,),
    "max-length-factor": (3,),  # marian-decoder's default; see docs/import.md
    "max-length": (1000,),
    "max-length-crop": (False,),
    "skip-cost": (False,),
    "force-decode": (False,),
    "no-spm-encode": (False,),
    "no-spm-decode": (False,),
    "fp16": (False,),
    "precision": (["float32"],),
    "gemm-type": ("float32",),
    "quantize-range": (0,),
    "weights": ([], [1], [1.0]),
    "output-sampling": ([], False),
    "output-approx-knn": ([],),
}
# Control characters among the tokens of SentencePiece's byte fallback.
_CONTROL = re.compile(r"<0x[01][0-9A-F]>")


@dataclass(frozen=True)
class DecoderSettings:
    """Decoding defaults of marian-decoder.

    Attributes:
        search: The defaults as fields of `SearchOptions`.
        allows_unknown: Whether translations may contain the unknown token.
        allows_special: Whether translations may contain byte tokens of control characters.
        shortlist: Lexical shortlist, if the settings name one that exists.
    """

    search: dict[str, Any]
    allows_unknown: bool = False
    allows_special: bool = False
    shortlist: ShortlistFile | None = None

    @classmethod
    def read(cls, model: Path) -> DecoderSettings:
        """Read the settings beside a model, and log a warning for unsupported ones.

        Args:
            model: Path of the model's weights.

        Raises:
            InputError: The file is damaged, or a value is out of range.
        """
        path = find_file(model.parent, (f"{model.name}.{_NAME}", _NAME))
        values = {} if path is None else read_decoder_file(path)
        if path is not None and path.name == _NAME and not _names(values, model):
            log.warning(
                "%s is for the models %s, not for %s; marian-decoder's defaults are used.",
                path, values.get("models"), model.name,
            )  # fmt: skip
            values = {}
        return cls.of_values(path or model.with_name(_NAME), values)

    @classmethod
    def of_values(cls, path: Path, values: dict[str, Any]) -> DecoderSettings:
        """Check the values of a file, and log a warning for unsupported ones.

        Args:
            path: Path of the file; its directory holds the shortlist.
            values: Values by name.

        Raises:
            InputError: A value is out of range.
        """
        search = {
            "beam_size": values.get("beam-size", 12),
            "length_penalty": values.get("normalize", 0.0),
            "length_penalty_form": "length",
        }
        check_search(path, search)
        _warn(path, values)
        return cls(
            search,
            allows_unknown=_flag(path, values, "allow-unk"),
            allows_special=_flag(path, values, "allow-special"),
            shortlist=_shortlist(path, values.get("shortlist")),
        )

    def banned(self, path: Path, tokens: Sequence[str], unknown: int) -> list[int]:
        """Return the ids that marian-decoder bans.

        Args:
            path: Path of the vocabulary; control characters are banned in .spm vocabularies.
            tokens: Tokens by id.
            unknown: Id of the unknown token.
        """
        banned = [] if self.allows_unknown else [unknown]
        if path.suffix == ".spm" and not self.allows_special:
            banned += [index for index, token in enumerate(tokens) if _CONTROL.fullmatch(token)]
        return banned


def read_decoder_file(path: Path) -> dict[str, Any]:
    """Read the values of a file by name, without blank ones.

    Raises:
        InputError: The file cannot be read, or is not in the form that Marian writes.
    """
    values = read_settings(path, read_text(path, "copy it again, or delete it"), "it")
    return {name: value for name, value in values.items() if value is not None and value != []}


def _flag(path: Path, values: dict[str, Any], name: str) -> bool:
    """Return a Boolean setting, which is off by default."""
    value = values.get(name, False)
    value = BOOLEANS.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name} is {value!r:.60}; true or false is required.")
    return value


def _names(values: dict[str, Any], model: Path) -> bool:
    """Return whether a file names the model, or no model at all."""
    models = values.get("models")
    if not isinstance(models, list) or not models:
        return True
    return any(Path(str(name)).name == model.name for name in models)


def _shortlist(path: Path, values: Any) -> ShortlistFile | None:
    """Return the shortlist of the settings: a file, and its options."""
    if not values:
        return None
    name, *options = values if isinstance(values, list) else [values]
    file = sibling(path.parent, name)
    if file is None:
        log.warning(
            "%s names the shortlist %s, which is not in its directory; the model is imported "
            "without it.", path, name,
        )  # fmt: skip
        return None
    if options and isinstance(options[0], bool):  # of a binary file: whether to check it
        return ShortlistFile(file)
    defaults = ShortlistFile(file)
    sizes = [*options, *(defaults.frequent, defaults.best, defaults.threshold)[len(options) :]]
    frequent, best, threshold = sizes[:3]
    if type(frequent) is not int or type(best) is not int or not isinstance(threshold, int | float):
        raise InputError(
            f"{path}: shortlist is {values!r:.60}; a file and the numbers of frequent tokens and "
            "of translations are required."
        )
    return ShortlistFile(file, frequent, best, threshold)


def _warn(path: Path, values: dict[str, Any]) -> None:
    models = values.get("models")
    if isinstance(models, list) and len(models) > 1:
        log.warning(
            "%s is for an ensemble of %d models; only one of them is imported. Import the others "
            "as well, and compile all of them with translate-trt export --ensemble.",
            path, len(models),
        )  # fmt: skip
    greedy = values.get("beam-size") == 1
    for name, value in values.items():
        if name in _WITHOUT_EFFECT or value in _OFF.get(name, ()):
            continue
        if name == "skip-cost" and greedy:  # the best logit is the best probability
            continue
        log.warning(
            "%s: %s is %r, which translate-trt does not apply: translations may differ from "
            "Marian's.", path, name, value,
        )  # fmt: skip

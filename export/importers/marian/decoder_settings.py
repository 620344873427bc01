"""Decoding settings of a Marian model.

Training writes MODEL.decoder.yml, and OPUS-MT's models come with a decoder.yml. Without either, the
defaults of marian-decoder apply.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.export.importers.marian.files import read_settings
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions

log = logging.getLogger("translate_trt")

_NAME = "decoder.yml"
# Settings that change at most how translations are written.
_WITHOUT_EFFECT = {
    "relative-paths", "models", "vocabs", "mini-batch", "mini-batch-words", "maxi-batch",
    "maxi-batch-sort", "workspace", "devices", "cpu-threads", "num-devices", "data-threads",
    "quiet", "quiet-translation", "log", "log-level", "log-time-zone", "seed", "port", "input",
    "output", "n-best", "alignment", "word-scores", "stat-freq", "optimize", "type", "version",
    "beam-size", "normalize", "allow-unk", "allow-special", "model-mmap", "tsv", "tsv-fields",
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
    "shortlist": ([],),
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
    """

    search: dict[str, Any]
    allows_unknown: bool = False
    allows_special: bool = False

    @classmethod
    def read(cls, model: Path) -> DecoderSettings:
        """Read the settings beside a model, and log a warning for unsupported ones.

        Args:
            model: Path of the model's weights.

        Raises:
            InputError: The file is damaged, or a value is out of range.
        """
        path = _settings_path(model)
        values = {} if path is None else _values(path)
        if path is not None and path.name == _NAME and not _names(values, model):
            log.warning(
                "%s is for the models %s, not for %s; marian-decoder's defaults are used.",
                path, values.get("models"), model.name,
            )  # fmt: skip
            values = {}
        search = {
            "beam_size": values.get("beam-size", 12),
            "length_penalty": values.get("normalize", 0.0),
            "length_penalty_form": "length",
        }
        try:
            SearchOptions(**search)
        except (OptionError, TypeError) as error:
            raise InputError(
                f"{path}: its beam-size or normalize is not supported: {error}"
            ) from error
        _warn(path, values)
        flags = (values.get(name, False) is True for name in ("allow-unk", "allow-special"))
        return cls(search, *flags)

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


def _settings_path(model: Path) -> Path | None:
    for path in (model.with_name(f"{model.name}.{_NAME}"), model.with_name(_NAME)):
        if path.is_file():
            return path
    return None


def _values(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; copy it again, or delete it.") from error
    return read_settings(path, text, "it")


def _names(values: dict[str, Any], model: Path) -> bool:
    """Return whether a file names the model, or no model at all."""
    models = values.get("models")
    if not isinstance(models, list) or not models:
        return True
    return any(Path(str(name)).name == model.name for name in models)


def _warn(path: Path | None, values: dict[str, Any]) -> None:
    models = values.get("models")
    if isinstance(models, list) and len(models) > 1:
        log.warning(
            "%s is for an ensemble of %d models; only one of them is imported.", path, len(models)
        )
    for name, value in values.items():
        if name in _WITHOUT_EFFECT or value in _OFF.get(name, ()):
            continue
        log.warning(
            "%s: %s is %r, which translate-trt does not apply: translations may differ from "
            "Marian's.", path, name, value,
        )  # fmt: skip

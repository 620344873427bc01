"""The settings that a Marian model is decoded with: decoder.yml, which stands beside it.

Training writes them as MODEL.decoder.yml; OPUS-MT's models come with one decoder.yml. Without
either the defaults of marian-decoder hold.
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
# Settings that do not change translations, or only how they are written.
_WITHOUT_EFFECT = {
    "relative-paths", "models", "vocabs", "mini-batch", "mini-batch-words", "maxi-batch",
    "maxi-batch-sort", "workspace", "devices", "cpu-threads", "num-devices", "data-threads",
    "quiet", "quiet-translation", "log", "log-level", "log-time-zone", "seed", "port", "input",
    "output", "n-best", "alignment", "word-scores", "stat-freq", "optimize", "type", "version",
    "beam-size", "normalize", "allow-unk", "allow-special", "model-mmap", "tsv", "tsv-fields",
}  # fmt: skip
# Settings that are not represented, and their values when they change nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "word-penalty": (0,),
    "max-length-factor": (3,),  # the limit of marian-decoder; see docs/import.md
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
# Bytes of SentencePiece's byte fallback that are control characters.
_CONTROL = re.compile(r"<0x[01][0-9A-F]>")


@dataclass(frozen=True)
class DecoderSettings:
    """Decoding defaults of marian-decoder.

    Attributes:
        search: the same by the names of `SearchOptions`.
        allows_unknown: the unknown token may come.
        allows_special: control characters among the bytes of SentencePiece may come.
    """

    search: dict[str, Any]
    allows_unknown: bool = False
    allows_special: bool = False

    @classmethod
    def read(cls, model: Path) -> DecoderSettings:
        """Of the file beside a model; what it asks for and is not represented is warned of.

        Args:
            model: path of the model's weights.

        Raises:
            InputError: the file is damaged, or a value is out of range.
        """
        path = _beside(model)
        values = {} if path is None else _values(path)
        if path is not None and path.name == _NAME and not _names(values, model):
            log.warning(
                "%s is for the models %s, not for %s; marian-decoder's defaults are taken.",
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
                f"{path}: its beam-size or normalize is not represented: {error}"
            ) from error
        _warn(path, values)
        flags = (values.get(name, False) is True for name in ("allow-unk", "allow-special"))
        return cls(search, *flags)

    def banned(self, path: Path, tokens: Sequence[str], unknown: int) -> list[int]:
        """Ids that marian-decoder never chooses.

        Args:
            path: of the vocabulary; of SentencePiece's alone control characters are banned.
            tokens: by id.
            unknown: id of the unknown token.
        """
        found = [] if self.allows_unknown else [unknown]
        if path.suffix == ".spm" and not self.allows_special:
            found += [place for place, token in enumerate(tokens) if _CONTROL.fullmatch(token)]
        return found


def _beside(model: Path) -> Path | None:
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
    """Whether a model is the first of those that a file names; one that names none is of any."""
    models = values.get("models")
    if not isinstance(models, list) or not models:
        return True
    return any(Path(str(name)).name == model.name for name in models)


def _warn(path: Path | None, values: dict[str, Any]) -> None:
    models = values.get("models")
    if isinstance(models, list) and len(models) > 1:
        log.warning(
            "%s is for an ensemble of %d models; one of them alone is imported.", path, len(models)
        )
    for name, value in values.items():
        if name in _WITHOUT_EFFECT or value in _OFF.get(name, ()):
            continue
        log.warning(
            "%s: %s is %r, which translate-trt does not apply: translations may differ from those "
            "of Marian.", path, name, value,
        )  # fmt: skip

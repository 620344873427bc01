"""Settings of a Marian model, in the array special:model.yml.

Settings that change the layers must be known, so that an unknown feature is refused by its name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from translate_trt.export.importers.marian.files import SETTINGS, read_settings
from translate_trt.export.importers.settings_table import Config, SettingsTable
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.errors import InputError

log = logging.getLogger("translate_trt")

#: Value of transformer-decoder-autoreg for a recurrent unit in place of self-attention.
RECURRENT = "rnn"

# Supported values of settings that change the layers.
_ONLY: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", RECURRENT),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-alibi-shift": (False,),
    "transformer-alibi-trainable": (False,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "factors-dim-emb": (0,),
    "ulr": (False,),
    "right-left": (False,),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
    "input-reorder": ([],),
    "input-join-fields": (False,),
    "special-vocab": ([],),
    "transformer-ffn-activation": ("relu", "swish"),
}
# Supported values for a recurrent unit in the decoder.
_ONLY_RECURRENT: dict[str, tuple[Any, ...]] = {
    "dec-cell": ("ssru",),
    "layer-normalization": (False,),
    "transformer-rnn-projection": (False,),
}
# Settings that the import reads.
_READ = (
    "dim-emb", "dim-vocabs", "enc-depth", "dec-depth", "transformer-heads", "transformer-dim-ffn",
    "transformer-decoder-dim-ffn", "transformer-preprocess", "transformer-postprocess",
    "transformer-postprocess-emb", "transformer-postprocess-top", "transformer-tied-layers",
    "transformer-guided-alignment-layer",
)  # fmt: skip
# Settings without effect on a Transformer without factors: ties, which the arrays imply, and
# settings of RNNs, average attention, BERT and training.
_WITHOUT_EFFECT = (
    "version", "dim-rnn", "enc-type", "enc-cell", "enc-cell-depth", "dec-cell",
    "dec-cell-base-depth", "dec-cell-high-depth", "skip", "layer-normalization",
    "tied-embeddings", "tied-embeddings-src", "tied-embeddings-all", "output-omit-bias",
    "factors-combine", "separator-symbol", "ulr-dim-emb", "ulr-trainable-transformation",
    "transformer-dim-aan", "transformer-aan-depth", "transformer-aan-activation",
    "transformer-aan-nogate", "transformer-rnn-projection", "transformer-depth-scaling",
    "bert-train-type-embeddings", "bert-type-vocab-size",
)  # fmt: skip
_SETTINGS = SettingsTable({*_READ, *_WITHOUT_EFFECT}, _ONLY, off=())
_RECURRENT_SETTINGS = SettingsTable(_SETTINGS.known, _ONLY | _ONLY_RECURRENT, off=())
# Operations before a sub-layer, after a sub-layer and after the last layer, without dropout:
# a = residual sum, n = LayerNorm.
_NORMS = {("", "an", ""): "post", ("n", "a", "n"): "pre"}
_OPERATIONS = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
# First version certain to normalize the keys and values of pre-norm self-attention.
_PRE_NORM_VERSION = (1, 12)
# Tied layers have no arrays of their own, which would limit their number.
_MOST_LAYERS = 256


def read_model_settings(path: Path, content: NDArray[Any] | None) -> Config:
    """Read the settings of a model.

    Args:
        path: Path of the model, for error messages.
        content: The array of the settings; None if the model lacks it.

    Raises:
        InputError: The settings are missing, damaged, unknown or not supported.
    """
    if content is None:
        raise InputError(f"{path} has no {SETTINGS}; pass the model that marian wrote.")
    text = content.tobytes().rstrip(b"\0").decode("utf-8", "replace")
    config = Config(path, read_settings(path, text))
    config.check(_RECURRENT_SETTINGS if recurrent(config) else _SETTINGS)
    config.choice("transformer-ffn-activation", _ONLY["transformer-ffn-activation"])  # required
    sizes = config.values.get("dim-vocabs", [])
    if isinstance(sizes, list) and len(sizes) > 2:
        raise config.setting_error("dim-vocabs", "only one source and one target are supported")
    return config


def recurrent(config: Config) -> bool:
    """Return whether the decoder has a recurrent unit in place of self-attention."""
    return bool(config.values.get("transformer-decoder-autoreg") == RECURRENT)


def decoder_numbers(config: Config) -> Sequence[int]:
    """Return the number (from 1) of each decoder layer's arrays, which tied layers share.

    Raises:
        InputError: The ties do not fit the number of layers.
    """
    name, count = "transformer-tied-layers", config.integer("dec-depth")
    numbers = config.values.get(name) or []
    if count > _MOST_LAYERS:
        raise config.setting_error("dec-depth", f"at most {_MOST_LAYERS} layers are supported")
    if not numbers:
        return range(1, count + 1)
    if not isinstance(numbers, list) or not all(type(n) is int and n > 0 for n in numbers):
        raise config.setting_error(name, "a list of the numbers of layers is required")
    if len(numbers) != count:
        raise config.setting_error(
            name, f"a number for each of the decoder's {count} layers (dec-depth) is required"
        )
    return numbers


def alignment_heads(config: Config) -> AttentionHeads:
    """Return the cross-attention of marian-decoder's --alignment: the first head of one layer.

    Raises:
        InputError: The model has no such layer.
    """
    name, layers = "transformer-guided-alignment-layer", config.integer("dec-depth")
    number = str(config.values.get(name, "last"))
    if number == "last":
        return AttentionHeads(layers - 1, (0,))
    if not number.isdecimal() or not 1 <= int(number) <= layers:
        raise config.setting_error(name, f"last or a layer from 1 to {layers} is required")
    return AttentionHeads(int(number) - 1, (0,))


def norm_of(config: Config) -> str:
    """Return the place of LayerNorm: post or pre.

    Raises:
        InputError: Another order of operations, or a pre-norm model of an old version.
    """
    steps = tuple(str(config.values.get(name, "")).replace("d", "") for name in _OPERATIONS)
    found = _NORMS.get((steps[0], steps[1], steps[2]))
    if found is None:
        raise config.setting_error(
            _OPERATIONS[1],
            f"with {_OPERATIONS[0]} {steps[0]!r} and {_OPERATIONS[2]} {steps[2]!r}; supported: "
            "dan alone, and n before, da after and n on top",
        )
    if found == "pre":
        _check_pre_norm(config)
    return found


def _check_pre_norm(config: Config) -> None:
    """Refuse versions that may compute pre-norm keys and values without LayerNorm."""
    match = re.match(r"v?(\d+)\.(\d+)\b", str(config.values.get("version", "")))
    if match is None or (int(match[1]), int(match[2])) < _PRE_NORM_VERSION:
        raise config.setting_error(
            "version",
            "pre-norm models (transformer-preprocess n) need Marian 1.12 or later: earlier "
            "versions had no LayerNorm before the keys and values of self-attention. Continue "
            "training with Marian 1.12 for some updates",
        )
    if recurrent(config):
        return
    log.warning(
        "%s is a pre-norm model: marian-decoder computes keys and values of the decoder's "
        "self-attention differently from training and marian-scorer. translate-trt follows the "
        "latter (docs/import.md, Differences to know).", config.path,
    )  # fmt: skip

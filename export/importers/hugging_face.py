"""Directories of Hugging Face's transformers, and the layers that all of BART's family have.

No code of a file is run: weights are safetensors, or a pickle that torch reads with nothing but
tensors in it. Every tensor must find its place in ours; one that does not is named.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from translate_trt.export.importers.sizes import check_tensors
from translate_trt.export.importers.torch_file import load_pickle, reason_of, unlisted_class
from translate_trt.runtime.errors import InputError

_SAFE = "model.safetensors"
_PICKLE = "pytorch_model.bin"
# By the name there, ours, in encoder and decoder layers.
_ATTENTIONS = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_FEED_FORWARD = {
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_norm.norm",
}
_PARTS = ("weight", "bias")
# Ids without a token that a vocabulary may have: so many times its tokens, and some.
_MOST_TIMES, _MOST_UNNAMED = 2, 100_000


def parse_json(text: str) -> Any:
    """What a text in JSON holds.

    Raises:
        ValueError: it is no JSON, or has brackets within brackets without end.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json_file(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: it is missing, or no JSON.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give a directory of Hugging Face's "
            "transformers with all its files."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}. Copy the directory again.") from error


@dataclass
class Config:
    """config.json, whose values each importer asks for; `path` is for messages."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, *model_types: str) -> Config:
        """Of a directory, and of the model types that it may be.

        Raises:
            InputError: it is missing, damaged, or of another type.
        """
        if not directory.is_dir():
            raise InputError(
                f"there is no directory {directory}; give the one with config.json in it."
            )
        path = directory / "config.json"
        values = read_json_file(path)
        if not isinstance(values, dict):
            raise InputError(f"{path} holds no JSON object; copy the directory again.")
        config = cls(path, values)
        if values.get("model_type") not in model_types:
            known = " or ".join(repr(name) for name in model_types)
            raise config.refused("model_type", f"{known} is what this command imports")
        return config

    def refused(self, name: str, why: str) -> InputError:
        """The error that a field's value will not do."""
        return InputError(f"{self.path}: {name} is {self.values.get(name)!r}; {why}.")

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refused(name, "a whole number is needed")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false is needed")
        return value


def tokens_by_id(path: Path, ids: dict[str, Any], size: int) -> list[str]:
    """Tokens in the order of their ids; ids that nothing has get names that no text has.

    Args:
        path: that they are from, for messages.
        ids: by token.
        size: of the model's vocabulary.

    Raises:
        InputError: an id is none, or two tokens have the same.
    """
    if size > len(ids) * _MOST_TIMES + _MOST_UNNAMED:
        raise InputError(
            f"{path} has {len(ids):,} tokens, but the model's vocab_size is {size:,}; they are of "
            "different models."
        )
    tokens: list[str | None] = [None] * size
    for token, place in ids.items():
        if not isinstance(place, int) or not 0 <= place < size or tokens[place] is not None:
            raise InputError(
                f"{path}: {token!r} has id {place!r}; ids must be below the model's {size}, and "
                "no two the same."
            )
        tokens[place] = token
    return [f"<unused-{i}>" if token is None else token for i, token in enumerate(tokens)]


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of the model, in float32.

    Raises:
        InputError: there are none, or only such as need code to be run.
    """
    for name, read in ((_SAFE, _read_safe), (_PICKLE, _unpickle)):
        paths = [directory / name] if (directory / name).is_file() else _shards(directory, name)
        if paths:
            return {key: tensor.float() for path in paths for key, tensor in read(path).items()}
    raise InputError(
        f"{directory} has neither {_SAFE} nor {_PICKLE}, nor their parts with an index. Weights "
        "for another framework are not read: load the model with transformers and save it with "
        "save_pretrained."
    )


def _shards(directory: Path, name: str) -> list[Path]:
    """The files that weights of that name are in, if they are in several."""
    path = directory / f"{name}.index.json"
    if not path.is_file():
        return []
    try:
        files = sorted({str(file) for file in read_json_file(path)["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} lists no files of weights; copy the directory again.") from error
    for file in files:
        if Path(file).name != file or not (directory / file).is_file():
            raise InputError(f"{path} lists {file}, which is not beside it; copy it to there.")
    return [directory / file for file in files]


def _read_safe(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def _unpickle(path: Path) -> dict[str, Tensor]:
    try:
        found = load_pickle(path)
    except InputError:
        raise
    except Exception as error:  # torch's, pickle's and zipfile's classes have no other base
        unlisted = unlisted_class(error)
        reason = reason_of(error) if unlisted is None else f"an object of {unlisted} is in it"
        raise InputError(
            f"{path} is damaged, or needs code to be run when it is read, which could be anyone's "
            f"({reason}). If you trust it, load it with transformers and save it as safetensors."
        ) from error
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise InputError(f"{path} holds other things than tensors; it is no model's weights.")
    check_tensors(path, found.items())
    return found


@dataclass
class Tensors:
    """Tensors by name; what nobody takes is not understood."""

    directory: Path
    values: dict[str, Tensor]
    _taken: set[str] = field(default_factory=set)

    def take(self, *names: str) -> Tensor:
        """The first of these that there is; all of them are known then."""
        self._taken |= set(names)
        for name in names:
            if name in self.values:
                return self.values[name]
        raise InputError(f"{self.directory}: the weights have no {names[0]}.")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def check_all_used(self, ignored: set[str]) -> None:
        """Raise an InputError if there is one that nobody took."""
        rest = sorted(set(self.values) - self._taken - ignored)
        if rest:
            raise InputError(
                f"{self.directory}: {rest[0]} is part of the model, which translate-trt does not "
                f"represent ({len(rest)} such tensors)."
            )


def layers(tensors: Tensors, stack: str, count: int, prefix: str = "model.") -> dict[str, Tensor]:
    """Weights of a stack, "encoder" or "decoder", by their names in `Transformer`.

    Args:
        tensors: of the model.
        stack: which of the two.
        count: its layers.
        prefix: what their names begin with; fairseq's, which BART comes from, have none.
    """
    found: dict[str, Tensor] = {}
    for index in range(count):
        there, here = f"{prefix}{stack}.layers.{index}", f"{stack}.{index}"
        names = dict(_FEED_FORWARD)
        for attention, ours in _ATTENTIONS.items():
            if stack == "encoder" and attention == "encoder_attn":
                continue
            names[f"{attention}_layer_norm"] = f"{ours}_norm.norm"
            for projection, part in _PROJECTIONS.items():
                names[f"{attention}.{projection}"] = f"{ours}.{part}"
        for name, ours in names.items():
            for part in _PARTS:
                found[f"{here}.{ours}.{part}"] = tensors.take(f"{there}.{name}.{part}")
    return found

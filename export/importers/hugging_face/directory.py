"""Directories of Hugging Face's transformers, and the layers that all of BART's family have.

No code of a file is run: weights are safetensors, or a pickle that torch reads with nothing but
tensors in it. Every tensor must find its place in ours; one that does not is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from translate_trt.export.importers.hugging_face.settings import check_model_settings
from translate_trt.export.importers.json_file import load_json, shown
from translate_trt.export.importers.sizes import check_tensors
from translate_trt.export.importers.torch_file import read_torch_file
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
# Ids without a token that a vocabulary may have: so many times its tokens, and some.
_MOST_TIMES, _MOST_UNNAMED = 2, 100_000


def read_json_file(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: it is missing, or no JSON.
    """
    return load_json(path, "give a directory of Hugging Face's transformers with all its files")


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
            raise config.setting_error("model_type", f"{known} is what this command imports")
        check_model_settings(path, values)
        config.check_sizes()
        return config

    def check_sizes(self) -> None:
        """Find out whether the vocabulary can be as large as declared, before it is made.

        Raises:
            InputError: the weights have fewer bytes than the embeddings numbers, or are missing.
        """
        size = sum(path.stat().st_size for path in weight_files(self.path.parent))
        width = self.values.get("d_model")
        for name in ("vocab_size", "decoder_vocab_size"):
            rows = self.values.get(name)
            if isinstance(rows, int) and rows * (width if isinstance(width, int) else 1) > size:
                raise self.setting_error(
                    name, f"the weights have {size} bytes, too few for it: they are damaged"
                )

    def setting_error(self, name: str, why: str) -> InputError:
        """The error that a field's value will not do."""
        return InputError(f"{self.path}: {name} is {self.values.get(name)!r:.60}; {why}.")

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.setting_error(name, "a whole number is needed")
        return value

    def token(self, name: str, size: int) -> int:
        """A token of a vocabulary of that size."""
        value = self.integer(name)
        if not 0 <= value < size:
            raise self.setting_error(name, f"there are {size} tokens")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.setting_error(name, "true or false is needed")
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
        fits = isinstance(place, int) and not isinstance(place, bool) and 0 <= place < size
        if not fits or tokens[place] is not None:
            raise InputError(
                f"{path}: {token!r:.60} has id {place!r:.60}; ids must be below the "
                f"model's {size}, and no two the same."
            )
        tokens[place] = token
    return [f"<unused-{i}>" if token is None else token for i, token in enumerate(tokens)]


def weight_files(directory: Path) -> list[Path]:
    """The files that the weights are in, all of one format.

    Raises:
        InputError: there are none.
    """
    for name in (_SAFE, _PICKLE):
        paths = [directory / name] if (directory / name).is_file() else _shards(directory, name)
        if paths:
            return paths
    raise InputError(
        f"{directory} has neither {_SAFE} nor {_PICKLE}, nor their parts with an index. Weights "
        "for another framework are not read: load the model with transformers and save it with "
        "save_pretrained."
    )


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of the model, in float32.

    Raises:
        InputError: there are none, or only such as need code to be run.
    """
    found: dict[str, Tensor] = {}
    for path in weight_files(directory):
        for name, tensor in (_read_safe if path.suffix == ".safetensors" else _unpickle)(path):
            if not tensor.is_floating_point():
                raise InputError(
                    f"{path}: {shown(name)} is of {tensor.dtype}; quantized weights are not read."
                )
            found[name] = tensor.float()
    return found


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
            raise InputError(
                f"{path} lists {file[:100]}, which is not beside it; copy it to there."
            )
        if Path(file).suffix != Path(name).suffix:
            raise InputError(f"{path} lists {file[:100]}, which is no {Path(name).suffix} file.")
    return [directory / file for file in files]


def _read_safe(path: Path) -> Iterable[tuple[str, Tensor]]:
    try:
        return load_file(path).items()
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    except Exception as error:  # an element type, for example, that torch has not
        raise InputError(f"{path} cannot be read: {type(error).__name__}.") from error


def _unpickle(path: Path) -> Iterable[tuple[str, Tensor]]:
    found = read_torch_file(path, (), "transformers")
    if not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise InputError(f"{path} holds other things than tensors; it is no model's weights.")
    check_tensors(path, ((shown(name), tensor) for name, tensor in found.items()))
    return [(str(name), tensor) for name, tensor in found.items()]


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

    def table(self, *names: str) -> Tensor:
        """A matrix, the first of these that there is."""
        found = self.take(*names)
        if found.dim() != 2:
            raise InputError(
                f"{self.directory}: {names[0]} has shape {list(found.shape)}; a matrix is needed."
            )
        return found

    def renamed(self, name: str, ours: str) -> dict[str, Tensor]:
        """Take the weight and the bias of a module, under our name of the module."""
        return {f"{ours}.{part}": self.take(f"{name}.{part}") for part in ("weight", "bias")}

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
            found |= tensors.renamed(f"{there}.{name}", f"{here}.{ours}")
    return found

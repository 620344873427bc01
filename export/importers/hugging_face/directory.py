"""Configuration, weights and layers of a directory that transformers saved.

No code of a file is run: weights are safetensors, or a pickle that contains only tensors. A tensor
that the conversion does not use is an error.
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
from translate_trt.export.importers.imported import sibling
from translate_trt.export.importers.json_file import load_json, shown
from translate_trt.export.importers.sizes import check_tensors
from translate_trt.export.importers.torch_file import read_torch_file
from translate_trt.runtime.errors import InputError

_SAFE = "model.safetensors"
_PICKLE = "pytorch_model.bin"
# Our names of the modules of a layer.
_ATTENTIONS = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_FEED_FORWARD = {
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_norm.norm",
}
# Largest vocab_size for a number of tokens: a multiple of the tokens, and a constant.
_MAX_RATIO, _MAX_UNNAMED = 2, 100_000


def read_json_file(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: The file is missing or not JSON.
    """
    return load_json(path, "pass a complete directory that transformers saved")


@dataclass
class Config:
    """Values of config.json; `path` is for error messages."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, directory: Path, *model_types: str) -> Config:
        """Read config.json of one of the given model types.

        Raises:
            InputError: The file is missing, damaged, or of another model type.
        """
        if not directory.is_dir():
            raise InputError(f"{directory} is not a directory; pass the directory of config.json.")
        path = directory / "config.json"
        values = read_json_file(path)
        if not isinstance(values, dict):
            raise InputError(f"{path} is not a JSON object; copy the directory again.")
        config = cls(path, values)
        if values.get("model_type") not in model_types:
            known = " or ".join(repr(name) for name in model_types)
            raise config.setting_error("model_type", f"this command imports {known}")
        check_model_settings(path, values)
        config.check_sizes()
        return config

    def check_sizes(self) -> None:
        """Check the declared vocabulary size before memory is allocated for it.

        Raises:
            InputError: The weights are missing, or smaller than the declared embeddings.
        """
        size = sum(path.stat().st_size for path in weight_files(self.path.parent))
        width = self.values.get("d_model")
        for name in ("vocab_size", "decoder_vocab_size"):
            rows = self.values.get(name)
            if isinstance(rows, int) and rows * (width if isinstance(width, int) else 1) > size:
                raise self.setting_error(
                    name, f"the weights have {size} bytes, too few for that size: they are damaged"
                )

    def setting_error(self, name: str, why: str) -> InputError:
        """Return the error for an unsuitable value of a field."""
        return InputError(f"{self.path}: {name} is {self.values.get(name)!r:.60}; {why}.")

    def integer(self, name: str) -> int:
        """Return an integer field."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.setting_error(name, "an integer is required")
        return value

    def token(self, name: str, size: int) -> int:
        """Return a token id field of a vocabulary of `size` tokens."""
        value = self.integer(name)
        if not 0 <= value < size:
            raise self.setting_error(name, f"the vocabulary has {size} tokens")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a Boolean field."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.setting_error(name, "true or false is required")
        return value


def tokens_by_id(path: Path, ids: dict[str, Any], size: int) -> list[str]:
    """Return the tokens in the order of their ids; an id without a token gets an unused name.

    Args:
        path: File of the ids, for error messages.
        ids: Ids by token.
        size: Size of the model's vocabulary.

    Raises:
        InputError: An id is out of range or used twice.
    """
    if size > len(ids) * _MAX_RATIO + _MAX_UNNAMED:
        raise InputError(
            f"{path} has {len(ids):,} tokens, but the model's vocab_size is {size:,}; they belong "
            "to different models."
        )
    tokens: list[str | None] = [None] * size
    for token, index in ids.items():
        fits = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < size
        if not fits or tokens[index] is not None:
            raise InputError(
                f"{path}: {token!r:.60} has id {index!r:.60}; ids must be unique and below the "
                f"model's vocab_size, {size}."
            )
        tokens[index] = token
    return [f"<unused-{i}>" if token is None else token for i, token in enumerate(tokens)]


def weight_files(directory: Path) -> list[Path]:
    """Return the files of the weights, all of one format.

    Raises:
        InputError: No supported file exists.
    """
    for name in (_SAFE, _PICKLE):
        paths = [directory / name] if (directory / name).is_file() else _shards(directory, name)
        if paths:
            return paths
    raise InputError(
        f"{directory} has neither {_SAFE} nor {_PICKLE}, nor their shards with an index. Weights "
        "of other frameworks are not supported: load the model with transformers and save it "
        "with save_pretrained."
    )


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Read all tensors of the model, in float32.

    Raises:
        InputError: The weights are missing, damaged, quantized, or contain other objects.
    """
    found: dict[str, Tensor] = {}
    for path in weight_files(directory):
        for name, tensor in (_read_safe if path.suffix == ".safetensors" else _unpickle)(path):
            if not tensor.is_floating_point():
                raise InputError(
                    f"{path}: {shown(name)} has type {tensor.dtype}; quantized weights are not "
                    "supported."
                )
            found[name] = tensor.float()
    return found


def _shards(directory: Path, name: str) -> list[Path]:
    """Return the shards of sharded weights, or no files."""
    path = directory / f"{name}.index.json"
    if not path.is_file():
        return []
    try:
        files = sorted({str(file) for file in read_json_file(path)["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} lists no weight files; copy the directory again.") from error
    for file in files:
        if Path(file).name != file or sibling(directory, file) is None:
            raise InputError(
                f"{path} lists {file[:100]}, which is not in {directory}; copy the file there."
            )
        if Path(file).suffix != Path(name).suffix:
            raise InputError(f"{path} lists {file[:100]}, which is not a {Path(name).suffix} file.")
    return [directory / file for file in files]


def _read_safe(path: Path) -> Iterable[tuple[str, Tensor]]:
    try:
        return load_file(path).items()
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    except Exception as error:  # for example, an element type that torch lacks
        raise InputError(f"{path} cannot be read: {type(error).__name__}.") from error


def _unpickle(path: Path) -> Iterable[tuple[str, Tensor]]:
    found = read_torch_file(path, (), "transformers")
    if not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise InputError(f"{path} contains objects other than tensors; it is not a weight file.")
    check_tensors(path, ((shown(name), tensor) for name, tensor in found.items()))
    return [(str(name), tensor) for name, tensor in found.items()]


@dataclass
class Tensors:
    """Tensors by name; `check_all_used` finds those that the conversion did not read."""

    directory: Path
    values: dict[str, Tensor]
    _taken: set[str] = field(default_factory=set)

    def take(self, *names: str) -> Tensor:
        """Return the first existing tensor; the other names count as read, too."""
        self._taken |= set(names)
        for name in names:
            if name in self.values:
                return self.values[name]
        raise InputError(f"{self.directory}: the weights lack {names[0]}.")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def table(self, *names: str) -> Tensor:
        """Return the first existing tensor, which must be a matrix."""
        found = self.take(*names)
        if found.dim() != 2:
            raise InputError(
                f"{self.directory}: {names[0]} has shape {list(found.shape)}; a matrix is required."
            )
        return found

    def renamed(self, name: str, ours: str) -> dict[str, Tensor]:
        """Take the weight and the bias of a module, under our name of the module."""
        return {f"{ours}.{part}": self.take(f"{name}.{part}") for part in ("weight", "bias")}

    def check_all_used(self, ignored: set[str]) -> None:
        """Raise an InputError if a tensor was not read."""
        rest = sorted(set(self.values) - self._taken - ignored)
        if rest:
            raise InputError(
                f"{self.directory}: {rest[0]} is part of the model, which translate-trt does not "
                f"support ({len(rest)} such tensors)."
            )


def layers(tensors: Tensors, stack: str, count: int, prefix: str = "model.") -> dict[str, Tensor]:
    """Return the weights of a stack by their names in `Transformer`.

    Args:
        tensors: The model's tensors.
        stack: "encoder" or "decoder".
        count: Number of layers.
        prefix: Prefix of the names; empty in fairseq, whose names transformers adopted.
    """
    found: dict[str, Tensor] = {}
    for index in range(count):
        old, new = f"{prefix}{stack}.layers.{index}", f"{stack}.{index}"
        names = dict(_FEED_FORWARD)
        for attention, ours in _ATTENTIONS.items():
            if stack == "encoder" and attention == "encoder_attn":
                continue
            names[f"{attention}_layer_norm"] = f"{ours}_norm.norm"
            for projection, part in _PROJECTIONS.items():
                names[f"{attention}.{projection}"] = f"{ours}.{part}"
        for name, ours in names.items():
            found |= tensors.renamed(f"{old}.{name}", f"{new}.{ours}")
    return found

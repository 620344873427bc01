"""Configuration and weights of a directory that transformers saved.

No code of a file is run: weights are safetensors, or a pickle that contains only tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from translate_trt.export.importers.hugging_face.settings import check_model_settings
from translate_trt.export.importers.input_files import load_json, load_object, shown, sibling
from translate_trt.export.importers.settings_table import Config, is_token
from translate_trt.export.importers.sizes import check_tensors
from translate_trt.export.importers.torch_file import read_torch_file
from translate_trt.runtime.errors import InputError

_SAFE = "model.safetensors"
_PICKLE = "pytorch_model.bin"
# Largest vocab_size for a number of tokens: a multiple of the tokens, and a constant.
_MAX_RATIO, _MAX_UNNAMED = 2, 100_000


def read_config(directory: Path, *model_types: str) -> Config:
    """Read config.json of one of the given model types.

    Raises:
        InputError: The file is missing, damaged, or of another model type.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory; pass the directory of config.json.")
    path = directory / "config.json"
    config = Config(path, load_object(path))
    config.choice("model_type", model_types)
    check_model_settings(config)
    _check_sizes(config)
    return config


def _check_sizes(config: Config) -> None:
    """Check the declared vocabulary size before memory is allocated for it.

    Raises:
        InputError: The weights are missing, or smaller than the declared embeddings.
    """
    size = sum(path.stat().st_size for path in weight_files(config.path.parent))
    width = config.values.get("d_model")
    for name in ("vocab_size", "decoder_vocab_size"):
        rows = config.values.get(name)
        if isinstance(rows, int) and rows * (width if isinstance(width, int) else 1) > size:
            raise config.setting_error(
                name, f"the weights have {size} bytes, too few for that size: they are damaged"
            )


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
        if not is_token(index, size) or tokens[index] is not None:
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
        files = sorted({str(file) for file in load_json(path)["weight_map"].values()})
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

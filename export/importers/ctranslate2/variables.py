"""Arrays of a model file, by name, in floating point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_bin import ModelFile
from translate_trt.runtime.errors import InputError

#: Names of the two stacks.
STACKS = ("encoder", "decoder")
_SPECIFICATIONS = ("TransformerSpec", "TransformerBase", "TransformerBig")
# Revisions from this on name a model's settings once for each stack.
_EACH_STACK = 5
# They choose what attention CTranslate2 returns, not what it computes.
_NO_MATTER = {
    "alignment_layer", "alignment_heads", "decoder/alignment_layer", "decoder/alignment_heads",
    "embeddings_merge", "encoder/embeddings_merge",
}  # fmt: skip
# Switches, by the last part of their names, of what is not represented; they must be off.
_SWITCHES = {"alibi", "alibi_use_positive_positions", "scale_alibi", "multi_query_attention"}
_ZERO_START = "start_from_zero_embedding"


class Variables:
    """The arrays of a file, each taken once or more; what is never taken is not understood."""

    def __init__(self, path: Path, file: ModelFile) -> None:
        if file.specification not in _SPECIFICATIONS or file.revision < 2:
            raise InputError(
                f"{path} is a {file.specification[:60] or 'model'} of revision {file.revision}; "
                "encoder-decoder Transformers (TransformerSpec) from revision 2 on are imported."
            )
        self.path, self.file = path, file
        self._taken = set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.file.arrays

    def take(self, name: str) -> np.ndarray:
        """That array, as stored."""
        if name not in self.file.arrays:
            raise InputError(f"{self.path} has no {name}, which an encoder-decoder model needs.")
        self._taken.add(name)
        return self.file.arrays[name]

    def matrix(self, name: str) -> Tensor:
        """A weight in floats."""
        stored, scale_name = self.take(name), f"{name}_scale"
        array = stored.astype(np.float32)
        if scale_name in self:
            scale = self.take(scale_name).astype(np.float32)
            if scale.shape not in ((), (1,), array.shape[:1]):
                raise InputError(f"{self.path} is damaged: {scale_name} does not fit {name}.")
            with np.errstate(all="ignore"):
                array = array / (scale[:, None] if scale.size > 1 else scale)
            if not np.isfinite(array).all():
                raise InputError(f"{self.path} is damaged: by {scale_name}, {name} is not finite.")
        elif not np.issubdtype(stored.dtype, np.floating):
            raise InputError(f"{self.path}: {name} is quantized, but there is no {scale_name}.")
        return torch.from_numpy(np.ascontiguousarray(array))

    def number(self, name: str) -> float:
        """An array of one number."""
        array = self.take(name)
        if array.size != 1:
            raise InputError(f"{self.path} is damaged: {name} has {array.size} numbers, not one.")
        return float(array.reshape(()))

    def setting(self, name: str, default: float) -> float:
        """A number of one of the stacks, the same for both."""
        if self.file.revision < _EACH_STACK:
            places = [name]
        else:
            places = [f"{stack}/{name}" for stack in STACKS]
        found = {self.number(place) if place in self else default for place in places}
        if len(found) > 1:
            raise self.setting_error(name, f"differs between encoder and decoder: {sorted(found)}")
        return found.pop()

    def setting_error(self, name: str, why: str) -> InputError:
        """The error that says a setting cannot be represented."""
        return InputError(f"{self.path}: {name} {why}, which translate-trt does not represent.")

    def zero_start(self) -> bool:
        """Whether decoding starts with an embedding of zeros, as Marian's models do."""
        name = f"decoder/{_ZERO_START}"
        return name in self and bool(self.take(name).any())

    def check_all_used(self) -> None:
        """Raise an InputError if there is an array that nobody took."""
        rest = set(self.file.arrays) - self._taken - _NO_MATTER
        off = {name for name in rest if name.rsplit("/", 1)[-1] in _SWITCHES}
        off = {name for name in off if not self.file.arrays[name].any()}
        on = sorted(rest - off)
        if on:
            raise self.setting_error(on[0][:100], f"is part of the model{_and_more(len(on) - 1)}")


def _and_more(count: int) -> str:
    return f" (and {count} more arrays)" if count else ""


def source_table(variables: Variables) -> str:
    """The name of the source's embeddings, which may be of several features."""
    if "encoder/embeddings_1/weight" in variables:
        raise variables.setting_error(
            "encoder/embeddings_1", "is there: tokens have several features"
        )
    names = ("encoder/embeddings_0/weight", "encoder/embeddings/weight")
    return names[0] if names[0] in variables else names[1]


def count_layers(variables: Variables, stack: str) -> int:
    """Count the layers of a stack."""
    count = 0
    while f"{stack}/layer_{count}/ffn/linear_0/weight" in variables:
        count += 1
    return count

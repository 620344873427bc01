"""Arrays of a model file, dequantized.

W = stored / scale, with a scale per row in 8 bits and per matrix in 16 bits.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from translate_trt.export.importers.ctranslate2.model_bin import ModelFile
from translate_trt.export.importers.tensors import STACKS
from translate_trt.runtime.errors import InputError

_SPECIFICATIONS = ("TransformerSpec", "TransformerBase", "TransformerBig")
# First revision that stores settings per stack.
_PER_STACK_REVISION = 5
# The attention that CTranslate2 returns, which does not change what it computes.
_IGNORED = {
    "alignment_layer", "alignment_heads", "decoder/alignment_layer", "decoder/alignment_heads",
    "embeddings_merge", "encoder/embeddings_merge",
}  # fmt: skip
# Unsupported features, by the last part of their flag's name; the flags must be off.
_MUST_BE_OFF = {"alibi", "alibi_use_positive_positions", "scale_alibi", "multi_query_attention"}


#: Beginning of the names of T5's relative positions in a stack. Later layers have the same.
RELATIVE = "layer_0/self_attention/relative_attention_"


class Variables:
    """Arrays of a model file; `check_all_used` finds those that the conversion did not read."""

    def __init__(self, path: Path, file: ModelFile) -> None:
        if file.specification not in _SPECIFICATIONS or file.revision < 2:
            raise InputError(
                f"{path} is a {file.specification[:60] or 'model'} of revision {file.revision}; "
                "supported: encoder-decoder Transformers (TransformerSpec) of revision 2 or later."
            )
        self.path, self.file = path, file
        self._taken = set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.file.arrays

    def take(self, name: str) -> np.ndarray:
        """Return an array as stored."""
        if name not in self.file.arrays:
            raise InputError(f"{self.path} lacks {name}, which an encoder-decoder model needs.")
        self._taken.add(name)
        return self.file.arrays[name]

    def weight(self, name: str, axes: int = 2) -> Tensor:
        """Return a matrix or, of one axis, a bias or a parameter of LayerNorm, in float32.

        Raises:
            InputError: The array is missing, damaged, or has another number of axes.
        """
        stored, scale_name = self.take(name), f"{name}_scale"
        if stored.ndim != axes:
            raise InputError(
                f"{self.path} is damaged: {name} has {stored.ndim} axes; {axes} are required."
            )
        array = stored.astype(np.float32)
        if scale_name in self:
            scale = self.take(scale_name).astype(np.float32)
            if scale.shape not in ((), (1,)) and (axes == 1 or scale.shape != array.shape[:1]):
                raise InputError(f"{self.path} is damaged: {scale_name} does not fit {name}.")
            with np.errstate(all="ignore"):
                array = array / (scale[:, None] if scale.size > 1 else scale)
            if not np.isfinite(array).all():
                raise InputError(
                    f"{self.path} is damaged: {name} is not finite after scaling by {scale_name}."
                )
        elif not np.issubdtype(stored.dtype, np.floating):
            raise InputError(f"{self.path}: {name} is quantized, but {scale_name} is missing.")
        return torch.from_numpy(np.ascontiguousarray(array))

    def number(self, name: str) -> float:
        """Return the value of a single-element array.

        Raises:
            InputError: The array is missing, or is not one finite number.
        """
        array = self.take(name)
        if array.size != 1:
            raise InputError(f"{self.path} is damaged: {name} has {array.size} elements, not one.")
        value = float(array.reshape(()))
        if not math.isfinite(value):
            raise InputError(f"{self.path} is damaged: {name} is {value}, not a finite number.")
        return value

    def setting(self, name: str, default: float) -> float:
        """Return a number that must be equal in encoder and decoder."""
        if self.file.revision < _PER_STACK_REVISION:
            keys = [name]
        else:
            keys = [f"{stack}/{name}" for stack in STACKS]
        values = {self.number(key) if key in self else default for key in keys}
        if len(values) > 1:
            raise self.setting_error(name, f"differs between encoder and decoder: {sorted(values)}")
        return values.pop()

    def setting_error(self, name: str, why: str) -> InputError:
        """Return the error for an unsupported setting."""
        return InputError(f"{self.path}: {name} {why}, which translate-trt does not support.")

    def alignment(self) -> tuple[int, int]:
        """Return the layer and the number of heads whose attention CTranslate2 returns."""
        found = []
        for name, default in (("alignment_layer", -1), ("alignment_heads", 1)):
            stored = next((key for key in (f"decoder/{name}", name) if key in self), None)
            found.append(default if stored is None else int(self.number(stored)))
        return found[0], found[1]

    def zero_start(self) -> bool:
        """Return whether decoding starts with a zero embedding, as in Marian's models."""
        name = "decoder/start_from_zero_embedding"
        return name in self and bool(self.take(name).any())

    def relative(self) -> bool:
        """Return whether relative positions bias attention, as in T5's models."""
        return f"encoder/{RELATIVE}bias" in self

    def check_all_used(self) -> None:
        """Raise an InputError if an array was not read, unless it is a flag that is off."""
        rest = set(self.file.arrays) - self._taken - _IGNORED
        flags = {name for name in rest if name.rsplit("/", 1)[-1] in _MUST_BE_OFF}
        unused = sorted(rest - {name for name in flags if not self.file.arrays[name].any()})
        if unused:
            more = f" (and {len(unused) - 1} more arrays)" if len(unused) > 1 else ""
            raise self.setting_error(unused[0][:100], f"is part of the model{more}")


def source_table(variables: Variables) -> str:
    """Return the name of the source embeddings, which must have a single feature."""
    if "encoder/embeddings_1/weight" in variables:
        raise variables.setting_error("encoder/embeddings_1", "is a second feature of tokens")
    names = ("encoder/embeddings_0/weight", "encoder/embeddings/weight")
    return names[0] if names[0] in variables else names[1]


def count_layers(variables: Variables, stack: str) -> int:
    """Count the layers of a stack."""
    count = 0
    while f"{stack}/layer_{count}/ffn/linear_0/weight" in variables:
        count += 1
    return count

"""Weights of an imported model, renamed from a toolkit's module names to those of `Transformer`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from translate_trt.runtime.errors import InputError
from translate_trt.train.config import ModelConfig

#: The two stacks.
STACKS = ("encoder", "decoder")


@dataclass
class Tensors:
    """Tensors by name; `check_all_used` finds those that the conversion did not read."""

    path: Path
    values: dict[str, Tensor]
    _taken: set[str] = field(default_factory=set)

    def take(self, *names: str) -> Tensor:
        """Return the first existing tensor; the other names count as read, too."""
        self._taken |= set(names)
        for name in names:
            if name in self.values:
                return self.values[name]
        raise InputError(f"{self.path}: the weights lack {names[0]}.")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def table(self, *names: str) -> Tensor:
        """Return the first existing tensor, which must be a matrix."""
        found = self.take(*names)
        if found.dim() != 2:
            raise InputError(
                f"{self.path}: {names[0]} has shape {list(found.shape)}; a matrix is required."
            )
        return found

    def renamed(self, name: str, ours: str) -> dict[str, Tensor]:
        """Take the weight and the bias of a module, under our name of the module."""
        return {f"{ours}.{part}": self.take(f"{name}.{part}") for part in ("weight", "bias")}

    def check_all_used(self, ignored: Collection[str] = ()) -> None:
        """Raise an InputError if a tensor was not read."""
        rest = sorted(set(self.values) - self._taken - set(ignored))
        if rest:
            raise InputError(
                f"{self.path}: {rest[0]:.100} is part of the model, which translate-trt does not "
                f"support ({len(rest)} such tensors)."
            )


@dataclass(frozen=True)
class StackNames:
    """A toolkit's names of the modules of a stack.

    Attributes:
        layer: Prefix of a layer's modules, with {} for its number.
        modules: Names of a layer's modules after the prefix, by ours.
        last_norm: LayerNorm after the last layer of a pre-norm stack.
        embedding_norm: LayerNorm of the embeddings.
    """

    layer: str
    modules: Mapping[str, str]
    last_norm: str
    embedding_norm: str = ""


def attention_names(ours: str, theirs: str, parts: Sequence[str], norm: str) -> dict[str, str]:
    """Return the names of an attention's modules, by ours.

    Args:
        ours: Our name of the attention.
        theirs: The toolkit's name, before those of its parts.
        parts: The toolkit's names of query, key, value and output.
        norm: The toolkit's name of its LayerNorm.
    """
    names = zip(("query", "key", "value", "output"), parts, strict=True)
    return {f"{ours}.{part}": theirs + name for part, name in names} | {f"{ours}_norm.norm": norm}


def read_modules(
    model: ModelConfig,
    names: Mapping[str, StackNames],
    read: Callable[[str, str], dict[str, Tensor]],
    numbers: Mapping[str, Iterable[int]] | None = None,
) -> dict[str, Tensor]:
    """Read the layers of both stacks, and the LayerNorms around them.

    Args:
        model: Configuration of the model.
        names: The toolkit's names, by stack.
        read: Returns the weights of a module of the toolkit's name under ours.
        numbers: The toolkit's numbers of the layers, by stack; None for those from 0.
    """
    numbers = numbers or {
        "encoder": range(model.encoder_layers), "decoder": range(model.decoder_layers)
    }  # fmt: skip
    found: dict[str, Tensor] = {}
    for stack, embedding_norm in (
        ("encoder", "source_embedding_norm"), ("decoder", "embedding_norm")
    ):  # fmt: skip
        theirs = names[stack]
        if model.norm_embedding:
            found |= read(theirs.embedding_norm, embedding_norm)
        if model.norm == "pre":
            found |= read(theirs.last_norm, f"{stack}_norm")
        for index, number in enumerate(numbers[stack]):
            for ours, name in theirs.modules.items():
                found |= read(theirs.layer.format(number) + name, f"{stack}.{index}.{ours}")
    return found

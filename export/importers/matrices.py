"""The three matrices of tokens (section 3.4 of the paper), and which of them are one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from translate_trt.export.importers.imported import ModelPart
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.errors import InputError

_TIED = {(True, True): "all", (True, False): "input", (False, True): "output"}


@dataclass(frozen=True)
class Matrices:
    """Of a toolkit, in its order of tokens.

    Attributes:
        source: embeddings [V of the source, d_model].
        target: embeddings [V, d_model].
        output: rows that logits are products with [V, d_model].
        bias: of logits [V]; None: there is none.
    """

    source: Tensor
    target: Tensor
    output: Tensor
    bias: Tensor | None

    def check(self, path: object, source: TokenMap, target: TokenMap) -> None:
        """Raise an InputError if they are not of the vocabularies' sizes."""
        for side, token_map, rows in (
            ("source", source, self.source), ("target", target, self.target),
            ("target", target, self.output),
        ):  # fmt: skip
            tokens = token_map.count
            if len(rows) != tokens:
                raise InputError(
                    f"{path}: the {side}'s matrix has {len(rows)} rows, but the vocabulary "
                    f"{tokens} tokens; they are of different models."
                )

    def remap(self, source: TokenMap, target: TokenMap) -> ModelPart:
        """In our order of tokens.

        Args:
            source: of the source; the same object as the target's if they share a vocabulary.
            target: of the target.
        """
        same = source is target
        shares_input = same and torch.equal(self.source, self.target)
        shares_output = torch.equal(self.output, self.target)
        bias = target.bias(self.bias)
        weights = {"embedding.weight": target.matrix(self.target)}
        if not shares_input:
            weights["source_embedding.weight"] = source.matrix(self.source)
        if not shares_output:
            weights["output_weight"] = target.matrix(self.output)
        if bias is not None:
            weights["output_bias"] = bias
        fields = {
            "vocabulary_size": target.size,
            "source_vocabulary_size": 0 if same else source.size,
            "d_model": self.target.shape[1],
            "tied": _TIED.get((shares_input, shares_output), "none"),
            "output_bias": bias is not None,
        }
        return ModelPart(fields, weights)

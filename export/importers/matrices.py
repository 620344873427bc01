"""Embedding and output matrices (section 3.4 of the paper), and their tying."""

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
    """Matrices of a toolkit, in its order of tokens.

    Attributes:
        source: Source embeddings [V of the source, d_model].
        target: Target embeddings [V, d_model].
        output: Output projection [V, d_model].
        bias: Bias of the logits [V], or None.
    """

    source: Tensor
    target: Tensor
    output: Tensor
    bias: Tensor | None

    def check(self, path: object, source: TokenMap, target: TokenMap) -> None:
        """Raise an InputError if a matrix is none, or does not have a row for each token."""
        for side, token_map, rows in (
            ("source", source, self.source), ("target", target, self.target),
            ("target", target, self.output),
        ):  # fmt: skip
            if rows.dim() != 2:
                raise InputError(
                    f"{path} is damaged: the {side}'s matrix has shape {list(rows.shape)}; a row "
                    "for each token is required."
                )
            tokens = token_map.count
            if len(rows) != tokens:
                raise InputError(
                    f"{path}: the {side}'s matrix has {len(rows)} rows, but the vocabulary has "
                    f"{tokens} tokens; they belong to different models."
                )
        if self.bias is not None and list(self.bias.shape) != [target.count]:
            raise InputError(
                f"{path} is damaged: the bias of the output has shape {list(self.bias.shape)}, but "
                f"the vocabulary has {target.count} tokens."
            )

    def remap(self, source: TokenMap, target: TokenMap) -> ModelPart:
        """Permute the rows to our order of tokens, and detect tied matrices.

        Args:
            source: Map of the source; the same object as `target` for a shared vocabulary.
            target: Map of the target.
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

"""Choice of the cross-attention that a step graph returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import OptionError


@dataclass(frozen=True)
class AttentionHeads:
    """Heads of one decoder layer, whose cross-attention is averaged.

    Attributes:
        layer: Index of the decoder layer, from 0; -1 is the last layer, -2 the one before.
        heads: Indices of the heads, from 0; empty for all heads of the layer.
    """

    layer: int = -1
    heads: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, fields: Fields) -> AttentionHeads:
        """Read a choice that `to_json` wrote.

        Raises:
            BundleError: A field is missing or has the wrong type.
        """
        layer = fields.integer("layer", 0)
        return cls(layer, tuple(fields.integers("heads", 0)))

    def to_json(self) -> dict[str, Any]:
        """Convert the choice to JSON values."""
        return {"layer": self.layer, "heads": [*self.heads]}

    def within(self, layers: int, heads: int, setting: str = "attention_layer") -> AttentionHeads:
        """Return the choice for a model of these sizes, with a layer of at least 0.

        Args:
            layers: Number of decoder layers.
            heads: Number of heads of a layer.
            setting: Name of the setting of the layer in messages.

        Raises:
            OptionError: The model has no such layer or head, or a head is named twice.
        """
        if not -layers <= self.layer < layers:
            raise OptionError(
                f"{setting} is {self.layer}, but the decoder has {layers} layers; choose 0 "
                f"to {layers - 1}, or -1 for the last."
            )
        for head in self.heads:
            if not 0 <= head < heads:
                raise OptionError(
                    f"attention_heads has {head}, but a layer has {heads} heads; choose from 0 to "
                    f"{heads - 1}."
                )
        if len(set(self.heads)) < len(self.heads):
            raise OptionError(f"attention_heads names a head twice: {[*self.heads]}.")
        return AttentionHeads(self.layer % layers, tuple(sorted(self.heads)))


#: The last layer's attention, averaged over all heads: the default of models without heads of
#: their own for alignments.
LAST_LAYER = AttentionHeads()

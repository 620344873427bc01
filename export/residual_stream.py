"""The residual stream: the tensors that PyTorch and every graph have in common, and their names.

A stack's residual stream is its embedding and what each sub-layer leaves behind (sections 3.1 and
5.4). Fusions are made between its tensors and not across them, so that they outlive every pass; a
pass hands on the names of values it replaces. `compile` names them in the graphs, where
`verify --layers`, Polygraphy and Netron find them; `observe` records them in PyTorch.
"""

from __future__ import annotations

#: Of the tensor behind the last one, where a graph computes logits of the whole vocabulary.
LOGITS = "logits"
#: By the graph's name, the stack that it runs.
STACKS = {"encoder": "encoder", "step": "decoder"}
#: By stack, the sub-layers of a layer in order.
SUBLAYERS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


def stream(stack: str, layers: int) -> tuple[str, ...]:
    """Names of a stack's residual stream: embedding, then after each sub-layer, bottom first."""
    sublayers = (f"{stack}.{i}.{name}" for i in range(layers) for name in SUBLAYERS[stack])
    return (f"{stack}.embedding", *sublayers)

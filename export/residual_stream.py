"""Names of the residual stream: the tensors that PyTorch and every graph have in common.

The residual stream of a stack is its embedding and the result of each sub-layer (sections 3.1 and
5.4). Fusions never cross one of its tensors, and a pass hands on the names of values it replaces,
so the tensors survive every pass. `compile` names them in the graphs, where `verify --layers`,
Polygraphy and Netron find them; `taps` records them in PyTorch.
"""

from __future__ import annotations

#: Name of the tensor after the residual stream, in graphs with logits of the whole vocabulary.
LOGITS = "logits"
#: Stack that each graph runs, by the name of the graph.
STACKS = {"encoder": "encoder", "step": "decoder"}
#: Sub-layers of a layer in order, by stack.
SUBLAYERS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


def stream(stack: str, layers: int) -> tuple[str, ...]:
    """Names of a stack's residual stream: the embedding, then each sub-layer, bottom first."""
    sublayers = (f"{stack}.{i}.{name}" for i in range(layers) for name in SUBLAYERS[stack])
    return (f"{stack}.embedding", *sublayers)

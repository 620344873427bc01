"""Names of the residual stream: the tensors that PyTorch and every graph have in common.

The residual stream of a stack is its embedding and the result of each sub-layer (sections 3.1 and
5.4). Fusions never cross one of its tensors, and a pass hands on the names of values it replaces,
so the tensors survive every pass. `compile` names them in the graphs, where `verify --layers`,
Polygraphy and Netron find them; `taps` records them in PyTorch.
"""

from __future__ import annotations

from translate_trt.train.config import ModelConfig

#: Name of the tensor after the residual stream, in graphs with logits of the whole vocabulary.
LOGITS = "logits"
#: Stack that each graph runs, by the name of the graph.
STACKS = {"encoder": "encoder", "step": "decoder"}


def sublayers(config: ModelConfig, stack: str) -> tuple[str, ...]:
    """Names of the sub-layers of a stack's layers, in order."""
    if stack == "encoder":
        return ("self_attention", "feed_forward")
    return ("ssru" if config.is_recurrent else "self_attention", "cross_attention", "feed_forward")


def stream(config: ModelConfig, stack: str) -> tuple[str, ...]:
    """Names of a stack's residual stream: the embedding, then each sub-layer, bottom first."""
    layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
    names = sublayers(config, stack)
    return (f"{stack}.embedding", *(f"{stack}.{i}.{name}" for i in range(layers) for name in names))

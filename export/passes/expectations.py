"""Expected matches: how many subgraphs a pass rewrites in a model of a given shape.

A pattern that no longer recognizes what PyTorch traces costs a fusion and breaks nothing. Each pass
therefore declares its number of matches, and an export that finds fewer fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from translate_trt.runtime.bundle.contract import Contract
from translate_trt.train.config import GATED, ModelConfig


@dataclass(frozen=True)
class ModelShape:
    """Properties of a model and a target that decide how many matches each pass has.

    Attributes:
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        cross_layers: Number of decoder layers with cross-attention keys and values of their own.
        self_attentions: Number of decoder layers with self-attention.
        ssrus: Number of decoder layers with an SSRU.
        post_norm: Whether LayerNorm follows the residual sums.
        rms_norm: Whether norms are RMSNorm.
        embedding_norm: Whether LayerNorm follows the embeddings.
        gated: Whether feed-forward layers have a third matrix.
        scaled_queries: Whether queries are multiplied by 1 / sqrt(d_k), which is 1 if d_k is 1.
        scaled_embeddings: Whether embeddings are multiplied by sqrt(d_model).
        equal_heads: Whether keys and values have the same size.
        attention: Whether the step returns cross-attention weights.
        shortlist: Whether the encoder makes a shortlist and the step chooses from it.
        static_caches: Whether the beams and the KV caches have a fixed size.
        marks: Whether the step has the inputs of rules 13 to 15.
    """

    encoder_layers: int
    decoder_layers: int
    cross_layers: int
    self_attentions: int
    ssrus: int
    post_norm: bool
    rms_norm: bool
    embedding_norm: bool
    gated: bool
    scaled_queries: bool
    scaled_embeddings: bool
    equal_heads: bool
    attention: bool
    shortlist: bool
    static_caches: bool
    marks: bool

    @classmethod
    def of(cls, config: ModelConfig, contract: Contract) -> ModelShape:
        """Shape of the graphs of a model under a contract."""
        return cls(
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            cross_layers=config.distinct_decoder_layers,
            self_attentions=0 if config.is_recurrent else config.decoder_layers,
            ssrus=config.decoder_layers if config.is_recurrent else 0,
            post_norm=config.norm == "post",
            rms_norm=config.rms_norm,
            embedding_norm=config.norm_embedding,
            gated=config.activation == GATED,
            scaled_queries=config.d_k > 1,
            scaled_embeddings=config.scale_embedding,
            equal_heads=config.d_k == config.d_v,
            attention=contract.attention,
            shortlist=contract.shortlist is not None,
            static_caches=contract.beams is not None,
            marks=contract.marks,
        )


@dataclass(frozen=True)
class Expected:
    """Number of matches that a pass has in each graph of a model, or of an ensemble.

    Attributes:
        encoder: Matches in the encoder graph, for each member.
        step: Matches in the step graph, for each member.
        search: Further matches in the step graph, in the search that the members share.
        source: Further matches in the encoder graph, in what the members share.
    """

    encoder: Callable[[ModelShape], int]
    step: Callable[[ModelShape], int]
    search: Callable[[ModelShape], int] = lambda _: 0
    source: Callable[[ModelShape], int] = lambda _: 0

    def of(self, graph: str, members: Sequence[ModelShape]) -> int:
        """Number of matches in one graph, "encoder" or "step".

        The search has the most that a member needs: an ancestry if any of them has self-attention.
        """
        own, shared = (
            (self.encoder, self.source) if graph == "encoder" else (self.step, self.search)
        )
        return sum(map(int, map(own, members))) + max(map(int, map(shared, members)))

"""What is traced: the encoder, and one decoding step with the beam search inside.

Both are written for the graph they become. Weights are stored as the product wants them ([in,
out]), projections that read the same input are one matrix, 1 / sqrt(D) is folded into the queries,
and the whole of runtime/contract.py is their signature. Letters as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.runtime.contract import MASKED, GraphShape
from translate_trt.train.config import END, ModelConfig
from translate_trt.train.model import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    Transformer,
    split_heads,
)


class Product(nn.Module):
    """x W + b for one or several linear layers that read the same x, side by side.

    Args of the constructor:
        layers: linear layers [in, out_i].
        scales: a factor for each one's output, folded into its weights.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Sequence[nn.Linear], scales: Sequence[float] | None = None) -> None:
        super().__init__()
        factors = [1.0] * len(layers) if scales is None else scales
        pairs = list(zip(layers, factors, strict=True))
        weight = torch.cat([layer.weight.detach() * factor for layer, factor in pairs])
        self.register_buffer("weight", weight.T.contiguous())  # [in, sum of out_i]
        self.register_buffer("bias", torch.cat([layer.bias.detach() * f for layer, f in pairs]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    """softmax(q k + bias) v over projected, scaled queries, and the output projection."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.heads = attention.heads
        self.output = Product([attention.output])

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            query: [N, T, H * D], scaled.
            key: [N, H, D, S].
            value: [N, H, S, D].
            bias: broadcast to [N, H, T, S].

        Returns:
            The sub-layer's output [N, T, d_model] and the weights [N, H, T, S].
        """
        weights = (split_heads(query, self.heads) @ key + bias).softmax(-1)
        context = (weights @ value).transpose(1, 2).flatten(-2)  # [N, T, H * D]
        return self.output(context), weights


class FeedForwardBlock(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2."""

    def __init__(self, feed_forward: FeedForward) -> None:
        super().__init__()
        self.inner = Product([feed_forward.inner])
        self.outer = Product([feed_forward.outer])

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.relu(self.inner(x)))  # type: ignore[no-any-return]


class QueryKeyValue(nn.Module):
    """Scaled queries, keys and values of one self-attention, in one product."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        layers = [attention.query, attention.key, attention.value]
        self.product = Product(layers, [attention.d_k**-0.5, 1.0, 1.0])
        self.sizes = [layer.out_features for layer in layers]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, T, d_model] -> [N, T, H * d_k], [N, T, H * d_k], [N, T, H * d_v]."""
        query, key, value = self.product(x).split(self.sizes, dim=-1)
        return query, key, value


class Embedding(nn.Module):
    """sqrt(d_model) * embedding + position; the factor is folded into the table [V, d_model]."""

    table: Tensor
    positions: Tensor

    def __init__(self, model: Transformer, max_positions: int) -> None:
        super().__init__()
        d_model = model.config.d_model
        self.register_buffer("table", model.embedding.weight.detach() * math.sqrt(d_model))
        self.register_buffer("positions", model.positions(0, max_positions).detach().clone())


class EncoderLayerGraph(nn.Module):
    """One encoder layer."""

    def __init__(self, layer: EncoderLayer, config: ModelConfig) -> None:
        super().__init__()
        self.query_key_value = QueryKeyValue(layer.self_attention)
        self.attention = Attention(layer.self_attention)
        self.attention_norm = layer.self_attention_norm
        self.feed_forward = FeedForwardBlock(layer.feed_forward)
        self.feed_forward_norm = layer.feed_forward_norm
        self.heads = config.heads

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """One layer: x [N, S, d_model] under bias [N, 1, 1, S]."""
        query, key, value = self.query_key_value(self.attention_norm.before(x))
        keys = split_heads(key, self.heads).transpose(-1, -2)  # [N, H, D, S]
        attended, _ = self.attention(query, keys, split_heads(value, self.heads), bias)
        x = self.attention_norm.after(x, attended)
        inner = self.feed_forward(self.feed_forward_norm.before(x))
        return self.feed_forward_norm.after(x, inner)


class EncoderGraph(nn.Module):
    """source_ids [N, S], source_lengths [N] -> `GraphShape.encoder_outputs`."""

    def __init__(self, model: Transformer, max_source_length: int) -> None:
        super().__init__()
        config = model.config
        self.heads = config.heads
        self.embedding = Embedding(model, max_source_length)
        layers = model.encoder_layers
        self.layers = nn.ModuleList(EncoderLayerGraph(layer, config) for layer in layers)
        self.norm = model.encoder_norm
        # Every decoder layer reads the same encoder output: all keys and values in one product.
        crosses = [layer.cross_attention for layer in model.decoder_layers]
        cross = [linear for c in crosses for linear in (c.key, c.value)]
        self.cross, self.cross_sizes = Product(cross), [linear.out_features for linear in cross]

    def forward(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        size = source_ids.shape[1]
        hidden = torch.arange(size) >= source_lengths[:, None]
        bias = torch.where(hidden, MASKED, 0.0)[:, None, None, :]  # [N, 1, 1, S]
        x = F.embedding(source_ids, self.embedding.table) + self.embedding.positions[:size]
        for layer in self.layers:
            x = layer(x, bias)
        parts = self.cross(self.norm(x)).split(self.cross_sizes, dim=-1)  # [N, S, H * D] each
        split = [split_heads(part, self.heads) for part in parts]  # [N, H, S, D]
        keys = [part.transpose(-1, -2) for part in split[0::2]]
        return (bias, *(x for pair in zip(keys, split[1::2], strict=True) for x in pair))


class DecoderLayerGraph(nn.Module):
    """One decoder layer for one position of every beam; beams are the query positions."""

    def __init__(self, layer: DecoderLayer, config: ModelConfig) -> None:
        super().__init__()
        cross = layer.cross_attention
        self.query_key_value = QueryKeyValue(layer.self_attention)
        self.self_attention = Attention(layer.self_attention)
        self.cross_query = Product([cross.query], [cross.d_k**-0.5])
        self.cross_attention = Attention(cross)
        self.feed_forward = FeedForwardBlock(layer.feed_forward)
        self.self_attention_norm = layer.self_attention_norm
        self.cross_attention_norm = layer.cross_attention_norm
        self.feed_forward_norm = layer.feed_forward_norm
        self.heads = config.heads

    def forward(
        self,
        x: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        own_bias: Tensor,
        cross_key: Tensor,
        cross_value: Tensor,
        source_bias: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One layer.

        Args:
            x: [N, K, d_model].
            past_key: [N, H, P, D].
            past_value: [N, H, P, D].
            own_bias: [N, 1, K, P + K].
            cross_key: [N, H, D, S].
            cross_value: [N, H, S, D].
            source_bias: [N, 1, 1, S].

        Returns:
            The new x, keys and values [N, H, P + K, D], cross-attention weights [N, H, K, S].
        """
        query, key, value = self.query_key_value(self.self_attention_norm.before(x))
        keys = torch.cat((past_key, split_heads(key, self.heads)), dim=2)
        values = torch.cat((past_value, split_heads(value, self.heads)), dim=2)
        attended, _ = self.self_attention(query, keys.transpose(-1, -2), values, own_bias)
        x = self.self_attention_norm.after(x, attended)
        query = self.cross_query(self.cross_attention_norm.before(x))
        attended, weights = self.cross_attention(query, cross_key, cross_value, source_bias)
        x = self.cross_attention_norm.after(x, attended)
        inner = self.feed_forward(self.feed_forward_norm.before(x))
        return self.feed_forward_norm.after(x, inner), keys, values, weights


class StepGraph(nn.Module):
    """`GraphShape.step_inputs` -> `GraphShape.step_outputs`: one position of all beams."""

    vocabulary: Tensor

    def __init__(self, model: Transformer, max_target_length: int, attention: bool) -> None:
        super().__init__()
        config = model.config
        self.config, self.attention = config, attention
        self.embedding = Embedding(model, max_target_length)
        layers = model.decoder_layers
        self.layers = nn.ModuleList(DecoderLayerGraph(layer, config) for layer in layers)
        self.norm = model.decoder_norm
        # A constant of its own, transposed: else it is neither prepacked nor quantized.
        weight = model.embedding.weight.detach().T.contiguous()
        self.register_buffer("vocabulary", weight)  # [d_model, V]
        self.search = BeamSearchStep(END)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shape = graph_shape(self.config, self.attention)
        named = {spec.name: x for spec, x in zip(shape.step_inputs(), inputs, strict=True)}
        tokens, positions = named["tokens"], named["positions"]
        position = F.embedding(positions, self.embedding.positions)[:, None]  # [N, 1, d_model]
        x = F.embedding(tokens, self.embedding.table) + position  # [N, K, d_model]
        ancestry = _extend_ancestry(named["ancestry"])  # [N, K, P + K]
        own_bias = ancestry[:, None]
        caches: list[Tensor] = []
        weights = x
        for index, layer in enumerate(self.layers):
            x, keys, values, weights = layer(
                x,
                named[f"self_key_{index}"],
                named[f"self_value_{index}"],
                own_bias,
                named[f"cross_key_{index}"],
                named[f"cross_value_{index}"],
                named["source_bias"],
            )
            caches += (keys, values)
        logits = self.norm(x) @ self.vocabulary  # [N, K, V]
        request = [named[spec.name] for spec in shape.request()]
        state = [named[name] for name in BeamSearchStep.STATE]
        parents, *following = self.search(logits, *request, *state)
        ancestry = ancestry.gather(1, parents[..., None].expand_as(ancestry))
        outputs = (parents, *following, ancestry, *caches)
        return (*outputs, weights.mean(1)) if self.attention else outputs


def _extend_ancestry(ancestry: Tensor) -> Tensor:
    """[N, K, P] -> [N, K, P + K]: each beam sees its own past, and of the new slots its own."""
    beams = torch.arange(ancestry.shape[1])
    own = torch.where(beams[:, None] == beams, 0.0, MASKED)  # [K, K]
    return torch.cat((ancestry, own.expand(ancestry.shape[0], -1, -1)), dim=2)


class BeamSearchStep(nn.Module):
    """Logits of all beams -> the next beams and the pool of finished hypotheses.

    docs/beam-search.md, rules 2 to 5; each comment names its rule. Its inputs after the logits are
    `GraphShape.request()`, then `STATE`; its outputs the parents, then `next_` of `STATE`.
    """

    STATE = (
        "tokens",
        "log_probs",
        "positions",
        "done",
        "finished_scores",
        "finished_lengths",
        "finished_parents",
    )

    def __init__(self, end_token: int) -> None:
        super().__init__()
        self.end_token = end_token

    def forward(
        self,
        logits: Tensor,  # [N, K, V]
        forced_tokens: Tensor,  # [N]
        min_lengths: Tensor,  # [N]
        max_lengths: Tensor,  # [N]
        alpha: Tensor,  # []
        beta: Tensor,  # []
        tokens: Tensor,  # [N, K]
        log_probs: Tensor,  # [N, K]
        positions: Tensor,  # [N]
        done: Tensor,  # [N]
        finished_scores: Tensor,  # [N, K]
        finished_lengths: Tensor,  # [N, K]
        finished_parents: Tensor,  # [N, K]
    ) -> tuple[Tensor, ...]:
        beams = tokens.shape[1]
        lengths = positions + 1  # [N] tokens generated once this step is over
        values, choices = self._continuations(
            logits, log_probs, forced_tokens, lengths < min_lengths
        )
        # Rule 2: the best 2K of all. Of equal ones TopK takes the first, and per beam they stand
        # sorted by token (rule 8). Greedy search (K = 1) looks at the best alone: rank < K * K.
        best, index = values.flatten(1).topk(2 * beams)  # [N, 2K]
        best = torch.where(torch.arange(2 * beams) < beams * beams, best, -math.inf)
        parents = index // values.shape[2]
        token = choices.flatten(1).gather(1, index)
        ended = token == self.end_token

        # Rule 3: those that end enter the pool, which keeps the K best ever.
        penalty = _length_penalty(lengths, alpha, beta)[:, None]
        new_scores = torch.where(ended & ~done[:, None], best / penalty, -math.inf)
        scores, place = torch.cat((finished_scores, new_scores), 1).topk(beams)
        new_lengths = lengths[:, None].expand_as(token)
        next_lengths = torch.cat((finished_lengths, new_lengths), 1).gather(1, place)
        next_parents = torch.cat((finished_parents, parents), 1).gather(1, place)

        # Rule 4: the best K that do not end live on.
        live, place = torch.where(ended, -math.inf, best).topk(beams)

        # Rule 5: no live hypothesis can beat the pool's worst (which is minus infinity as long as
        # the pool has room), or the maximum length is reached.
        bound = live[:, 0] / _length_penalty(max_lengths, alpha, beta)
        finished = done | (bound <= scores[:, -1]) | (lengths >= max_lengths)
        return (
            parents.gather(1, place),
            token.gather(1, place),
            live,
            lengths,
            finished,
            scores,
            next_lengths,
            next_parents,
        )

    def _continuations(
        self, logits: Tensor, log_probs: Tensor, forced_tokens: Tensor, too_short: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cumulative log-probability and token of each beam's candidates, [N, K, 2K + 2] both.

        A beam can give the sentence's best 2K at most 2K members; one more in case the end symbol
        is among them and may not come yet, and one place for a forced token. So only the top of
        the vocabulary is ever looked at twice: the log-sum-exp is taken off the candidates alone.
        """
        top, choices = logits.topk(2 * logits.shape[1] + 1)  # [N, K, 2K + 1]
        largest = top[..., :1]
        log_total = largest + (logits - largest).exp().sum(-1, keepdim=True).log()
        forced = forced_tokens[:, None, None]  # [N, 1, 1]
        column = forced.clamp(min=0).expand(-1, logits.shape[1], -1)  # [N, K, 1]
        is_forced = forced >= 0
        barred = is_forced | ((choices == self.end_token) & too_short[:, None, None])
        top = torch.where(barred, -math.inf, top)
        forced_logits = torch.where(is_forced, logits.gather(2, column), -math.inf)
        values = torch.cat((top, forced_logits), 2) - log_total + log_probs[..., None]
        return values, torch.cat((choices, column), 2)


def _length_penalty(lengths: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """((beta + n) / (beta + 1)) ** alpha."""
    return ((beta + lengths) / (beta + 1)) ** alpha


def graph_shape(config: ModelConfig, attention: bool) -> GraphShape:
    """The contract's view of a model."""
    return GraphShape(config.decoder_layers, config.heads, config.d_k, config.d_v, attention)

"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the paper's order.

Post-norm, sinusoidal positions, one embedding matrix shared by source, target and the output
projection (section 3.4). `ModelConfig` selects pre-norm, learned positions and the variants of
imported models. Letters: N sentences, S source tokens, T target tokens, H heads, D columns of a
head (d_k of queries and keys, d_v of values), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.contract import MASKED
from translate_trt.runtime.errors import OptionError
from translate_trt.train.config import BANNED_BIAS, GATED, PAD, ModelConfig
from translate_trt.train.initialization import scale_initial_weights
from translate_trt.train.packing import Packing, Packings, packed_attention
from translate_trt.train.ssru import SSRU


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
        query: [N, H, T, D].
        key: [N, H, S, D].
        value: [N, H, S, D].
        bias: Added to the scaled scores, broadcast to [N, H, T, S]: 0, or MASKED to hide a key.
        causal: Position t attends to positions up to t only.
        dropout: Dropout of the weights; None for none.

    Returns:
        [N, H, T, D].
    """
    rate = dropout.rate if dropout is not None and dropout.training else 0.0
    if query.device.type == "cpu" and (query.dtype == torch.bfloat16 or rate):
        return _attention_by_matmuls(query, key, value, bias, causal, dropout)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=rate, is_causal=causal
    )


def _attention_by_matmuls(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    dropout: Dropout | None,
) -> Tensor:
    """Compute attention by separate matmuls.

    In bfloat16 on a CPU the gradient of torch's fused kernel took half of a training step, six
    times as long as this (docs/adr/0008-training-on-a-cpu.md). With dropout, torch has no fused
    kernel on a CPU.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [N, H, T, S]
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, MASKED)
    weights = torch.softmax(scores, -1)
    return (weights if dropout is None else dropout(weights)) @ value


def attention_scores(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """Q K^T + bias, [N, H, T, S].

    Args:
        query: [N, H, T, D], times 1 / sqrt(d_k).
        key: [N, H, S, D].
        bias: Added to the scores, broadcast to [N, H, T, S].
    """
    scores = query @ key.transpose(-1, -2)
    return scores if bias is None else scores + bias


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T + bias), [N, H, T, S]; see `attention_scores`."""
    return torch.softmax(attention_scores(query, key, bias), -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the columns into heads: [N, T, H * D] -> [N, H, T, D]."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)


def padding_bias(lengths: Tensor, size: int) -> Tensor:
    """Attention bias [N, 1, 1, size] that hides positions from `lengths` [N] on."""
    hidden = torch.arange(size, device=lengths.device) >= lengths[:, None]
    return (hidden * MASKED)[:, None, None, :]


def source_padding_bias(source: Tensor, lengths: Tensor) -> Tensor | None:
    """Return the `padding_bias` of source [N, S]; None without padding."""
    full = bool((lengths == source.shape[1]).all())
    return None if full else padding_bias(lengths, source.shape[1])


#: What a decoder layer keeps of previous positions: keys and values [N, H, P, D] of its
#: self-attention, or the state [N, d_model] of its SSRU.
Past: TypeAlias = tuple[Tensor, ...]


class Dropout(nn.Module):
    """Inverted dropout.

    On a CPU, torch draws a random number per element in a single thread, which made dropout one of
    the most expensive parts of a step. Drawing 16 random bits per element takes less than half the
    time (docs/adr/0008-training-on-a-cpu.md); the rate is rounded to a multiple of 2^-16.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        draws = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = draws >= round(self.rate * 2**16) - 2**15
        return x * kept.to(x.dtype).mul_(1.0 / (1.0 - self.rate))


class MultiHeadAttention(nn.Module):
    """Concat(head_1 .. head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (3.2.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.d_k = config.heads, config.d_k
        self.query = nn.Linear(config.d_model, config.heads * config.d_k)
        self.key = nn.Linear(config.d_model, config.heads * config.d_k)
        self.value = nn.Linear(config.d_model, config.heads * config.d_v)
        self.output = nn.Linear(config.heads * config.d_v, config.d_model)
        self.dropout = Dropout(config.attention_dropout)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys and values of x [N, S, d_model]: two of [N, H, S, D]."""
        return split_heads(self.key(x), self.heads), split_heads(self.value(x), self.heads)

    def attend(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        causal: bool = False,
        packed: tuple[Packing, Packing] | None = None,
    ) -> Tensor:
        """Queries from x [N, T, d_model] over projected keys and values; [N, T, d_model].

        Args:
            x: [N, T, d_model].
            key: [N, H, S, D].
            value: [N, H, S, D].
            bias: See `scaled_dot_product_attention`.
            causal: See `scaled_dot_product_attention`.
            packed: Layouts of x and of the keys; N is 1, and there is no bias. None with padding.
        """
        query = split_heads(self.query(x), self.heads)
        if packed is None:
            context = scaled_dot_product_attention(  # [N, H, T, D]
                query, key, value, bias, causal, self.dropout
            )
        else:
            context = packed_attention(query, key, value, *packed, causal)
        return cast(Tensor, self.output(context.transpose(1, 2).flatten(-2)))

    def queries(self, x: Tensor) -> Tensor:
        """Projected queries of x [N, T, d_model] times 1 / sqrt(d_k): [N, H, T, D]."""
        query: Tensor = split_heads(self.query(x), self.heads) * self.d_k**-0.5
        return query

    def weights(self, x: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """Attention weights of `attend`: [N, H, T, S]."""
        return attention_weights(self.queries(x), key, bias)

    def log_weights_of_head(self, x: Tensor, key: Tensor, bias: Tensor | None, head: int) -> Tensor:
        """Logarithms of `weights` of one head, without those of the others: [N, 1, T, S] float32.

        Weights would underflow, and with them the gradient where it should be largest.
        """
        rows = slice(head * self.d_k, (head + 1) * self.d_k)
        query = F.linear(x, self.query.weight[rows], self.query.bias[rows]) * self.d_k**-0.5
        return attention_scores(query[:, None], key[:, head, None], bias).float().log_softmax(-1)


#: By `ModelConfig.activation`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    GATED: partial(F.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (equation 2), or with another activation.

    Attributes:
        gate: Matmul of x that the activation is multiplied by; None without.
    """

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, width)
        self.outer = nn.Linear(width, config.d_model)
        gated = config.activation == GATED
        self.gate = nn.Linear(config.d_model, width) if gated else None
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.inner(x))
        if self.gate is not None:
            inner = inner * self.gate(x)
        return cast(Tensor, self.outer(self.dropout(inner)))


def make_norm(config: ModelConfig) -> nn.Module:
    """Make LayerNorm, or division by the root mean square."""
    kind = nn.RMSNorm if config.rms_norm else nn.LayerNorm
    return kind(config.d_model, config.layer_norm_epsilon)


class Residual(nn.Module):
    """The residual connection, dropout and LayerNorm around a sub-layer (sections 3.1 and 5.4).

    Post-norm, the paper's: LayerNorm(x + Dropout(sub-layer(x))). Pre-norm: x +
    Dropout(sub-layer(LayerNorm(x))), with one more LayerNorm at the end of the stack.

    Attributes:
        fused: Function that computes all three in training (train/fused_norm.py); None for PyTorch.
    """

    fused: Callable[[Tensor, Tensor, Tensor, Tensor, float, float], Tensor] | None = None
    norm: Any

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.first = config.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """Input of the sub-layer."""
        return cast(Tensor, self.norm(x)) if self.first else x

    def after(self, x: Tensor, sublayer: Tensor) -> Tensor:
        """Output of the block, from its input and the sub-layer's output."""
        if self.fused is not None and self.training and not self.first:
            return self.fused(
                x, sublayer, self.norm.weight, self.norm.bias, self.dropout.rate, self.norm.eps
            )
        total = x + self.dropout(sublayer)
        return total if self.first else cast(Tensor, self.norm(total))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = Residual(config)
        self.feed_forward = FeedForward(config, config.d_ff)
        self.feed_forward_norm = Residual(config)

    def forward(self, x: Tensor, bias: Tensor | None, packing: Packing | None = None) -> Tensor:
        """x [N, S, d_model], or [1, P, d_model] in the layout `packing` -> the same shape."""
        y = self.self_attention_norm.before(x)
        packed = None if packing is None else (packing, packing)
        attended = self.self_attention.attend(
            y, *self.self_attention.keys_values(y), bias, packed=packed
        )
        x = self.self_attention_norm.after(x, attended)
        y = self.feed_forward_norm.before(x)
        return self.feed_forward_norm.after(x, self.feed_forward(y))


class DecoderLayer(nn.Module):
    """Masked self-attention or SSRU, cross-attention, feed-forward (figure 1, right).

    Attributes:
        is_recurrent: Whether the layer has `ssru` and `ssru_norm` instead of `self_attention` and
            `self_attention_norm`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_recurrent = config.is_recurrent
        if self.is_recurrent:
            self.ssru = SSRU(config.d_model)
            self.ssru_norm = Residual(config)
        else:
            self.self_attention = MultiHeadAttention(config)
            self.self_attention_norm = Residual(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_norm = Residual(config)
        self.feed_forward = FeedForward(config, config.decoder_inner)
        self.feed_forward_norm = Residual(config)

    def forward(
        self,
        x: Tensor,
        past: Past | None,
        cross_keys_values: tuple[Tensor, Tensor],
        source_bias: Tensor | None,
        record: list[Tensor] | None = None,
        recorded_head: int | None = None,
        packings: Packings | None = None,
        self_bias: Tensor | None = None,
    ) -> tuple[Tensor, Past]:
        """Run the layer on a whole sentence, or on the next position.

        Args:
            x: [N, T, d_model].
            past: What the layer keeps of previous positions, with T = 1. None if x is the whole
                sentence, in which no position sees a later one.
            cross_keys_values: Keys and values [N, H, S, D] of the encoder output.
            source_bias: [N, 1, 1, S].
            record: List to which cross-attention weights [N, H, T, S] are appended.
            recorded_head: Head whose logarithms of weights [N, 1, T, S] are appended instead.
            packings: Layouts of sentences without padding, in x [1, P, d_model] and in the encoder
                output. Neither an SSRU nor recorded weights support them.
            self_bias: `Transformer.decoder_bias`.

        Returns:
            The new x, and the past of the next position.
        """
        if self.is_recurrent:
            y = self.ssru_norm.before(x)
            mixed, state = self.ssru(y, None if past is None else past[0])
            x, past = self.ssru_norm.after(x, mixed), (state,)
        else:
            packing = None if packings is None else packings.target
            x, past = self._attend_to_past(x, past, packing, self_bias)
        y = self.cross_attention_norm.before(x)
        if record is not None:
            weights, key = self.cross_attention, cross_keys_values[0]
            record.append(
                weights.weights(y, key, source_bias)
                if recorded_head is None
                else weights.log_weights_of_head(y, key, source_bias, recorded_head)
            )
        packed = None if packings is None else (packings.target, packings.source)
        attended = self.cross_attention.attend(y, *cross_keys_values, source_bias, packed=packed)
        x = self.cross_attention_norm.after(x, attended)
        y = self.feed_forward_norm.before(x)
        return self.feed_forward_norm.after(x, self.feed_forward(y)), past

    def _attend_to_past(
        self, x: Tensor, past: Past | None, packing: Packing | None, bias: Tensor | None
    ) -> tuple[Tensor, Past]:
        """Run the self-attention block; see `forward`."""
        y = self.self_attention_norm.before(x)
        key, value = self.self_attention.keys_values(y)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        packed = None if packing is None else (packing, packing)
        causal = past is None and bias is None
        attended = self.self_attention.attend(y, key, value, bias, causal, packed)
        return self.self_attention_norm.after(x, attended), (key, value)


def sinusoid(positions: Tensor, d_model: int, kind: str = "interleaved") -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same (section 3.5).

    Args:
        positions: [...] integers, from 0.
        d_model: Size of an encoding, even.
        kind: "interleaved", as above; "concatenated": all sines, then all cosines; "tensor2tensor":
            concatenated, with exponents up to 1 (i / (d_model / 2 - 1)).

    Returns:
        [..., d_model] float32.
    """
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float64)
    exponents = exponents / (d_model - 2 if kind == "tensor2tensor" else d_model)
    angles = positions[..., None].double() / 10_000.0**exponents  # [..., d_model / 2]
    if kind == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float()


@dataclass
class DecoderCache:
    """Decoder cache of N rows (sentences or beams), for decoding token by token.

    Attributes:
        cross: Projected keys and values of the encoder output per layer, [N, H, S, D] each; layers
            that share weights share them.
        source_bias: [N, 1, 1, S].
        past: Past of each layer; those of self-attention have T positions.
        length: T.
        recorded: Heads whose cross-attention is recorded; None for none.
        attention: Cross-attention of these heads at the last position, averaged, [N, S].
    """

    cross: list[tuple[Tensor, Tensor]]
    source_bias: Tensor | None
    past: list[Past] = field(default_factory=list)
    length: int = 0
    recorded: AttentionHeads | None = None
    attention: Tensor | None = None

    def select(self, rows: Tensor) -> DecoderCache:
        """Gather the rows [M] of the cache; rows may repeat."""
        return DecoderCache(
            [(key[rows], value[rows]) for key, value in self.cross],
            None if self.source_bias is None else self.source_bias[rows],
            [tuple(tensor[rows] for tensor in past) for past in self.past],
            self.length,
            self.recorded,
        )


@dataclass
class RecordedHead:
    """Cross-attention of one head, recorded by a forward pass over whole sentences.

    Attributes:
        layer: Index of the decoder layer.
        head: Index of the head.
        log_weights: Logarithms of the weights of each forward pass, [N, 1, T, S].
    """

    layer: int
    head: int
    log_weights: list[Tensor] = field(default_factory=list)


class Positions(nn.Module):
    """Position encodings: sinusoidal, for any position, or a learned table (Table 3, row E).

    Zeros if biases of attention scores tell positions instead.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.longest = config, config.longest
        if self.longest is None:
            self.register_buffer("table", self._sinusoids(1024, None), persistent=False)
        else:
            self.table = nn.Parameter(torch.empty(self.longest, config.d_model))

    def forward(self, first: int, end: int) -> Tensor:
        """Vectors of positions `first` up to `end`: [end - first, d_model].

        Raises:
            OptionError: The learned table is shorter.
        """
        if end > len(self.table):
            if self.longest is not None:
                raise OptionError(
                    f"a sentence of {end} tokens: the model has learned positions for "
                    f"{self.longest} (max_positions); shorten it."
                )
            self.table = self._sinusoids(2 * end, self.table.device)
        return self.table[first:end]

    def _sinusoids(self, count: int, device: torch.device | None) -> Tensor:
        """Compute the first `count` sinusoids, [count, d_model]."""
        config = self.config
        if config.relative_positions:
            return torch.zeros(count, config.d_model, device=device)
        positions = config.first_position + torch.arange(count, device=device)
        return sinusoid(positions, config.d_model, config.sinusoid)


class Transformer(nn.Module):
    """Encoder, decoder, and the embedding matrix they share with the output projection.

    Attributes:
        embedding: Embedding of target tokens, shared according to `ModelConfig.tied`.
        source_embedding: Embedding of source tokens; None if shared with `embedding`.
        output_weight: [V, d_model] output projection; None if shared with `embedding`.
        output_bias: [V] bias of the logits, or None.
        positions: Positions of source and target.
        own_target_positions: Positions of the target; None if shared with `positions`.
        source_distances: [2 M + 1, H] biases of the encoder's scores by the distance of a key from
            its query, from -M on, or None; M is `ModelConfig.relative_positions`.
        target_distances: [M + 1, H] biases of the decoder's by the distance of a query from its
            key, or None.
    """

    output_weight: nn.Parameter | None
    output_bias: nn.Parameter | None
    source_distances: nn.Parameter | None
    target_distances: nn.Parameter | None

    def __init__(self, config: ModelConfig, initialization: str = "xavier") -> None:
        super().__init__()
        self.config = config
        size, width = config.vocabulary_size, config.d_model
        self.embedding = nn.Embedding(size, width)
        self.source_embedding = (
            None if config.shares_input else nn.Embedding(config.input_vocabulary_size, width)
        )
        self.output_weight = (
            None if config.shares_output else nn.Parameter(torch.empty(size, width))
        )
        self.output_bias = nn.Parameter(torch.zeros(size)) if config.output_bias else None
        self.source_embedding_norm = self._norm(config.norm_embedding)
        self.embedding_norm = self._norm(config.norm_embedding)
        self.positions = Positions(config)
        own = config.own_target_positions and config.longest is not None
        self.own_target_positions = Positions(config) if own else None
        self.dropout = Dropout(config.dropout)
        most = config.relative_positions
        for side, count in (("source", 2 * most + 1), ("target", most + 1)):
            table = nn.Parameter(torch.zeros(count, config.heads)) if most else None
            self.register_parameter(f"{side}_distances", table)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(
            DecoderLayer(config) for _ in range(config.distinct_decoder_layers)
        )
        # The residual sum of a pre-norm stack is not normalized.
        self.encoder_norm = self._norm(config.norm == "pre")
        self.decoder_norm = self._norm(config.norm == "pre")
        self.reset_parameters(initialization)

    def _norm(self, present: bool) -> nn.Module:
        """Make a norm, or nothing in its place."""
        return make_norm(self.config) if present else nn.Identity()

    @property
    def source_end(self) -> bool:
        """Whether the decoder sees the source's end symbol."""
        return self.config.source_end

    @property
    def longest(self) -> int | None:
        """Maximum sentence length in tokens; None without a limit (sinusoidal positions)."""
        return self.config.longest

    @property
    def source_table(self) -> nn.Embedding:
        """Embedding of source tokens."""
        return self.embedding if self.source_embedding is None else self.source_embedding

    @property
    def projection_weight(self) -> Tensor:
        """Weight of the output projection, [V, d_model]."""
        return self.embedding.weight if self.output_weight is None else self.output_weight

    @property
    def banned_tokens(self) -> Tensor | None:
        """Tokens [n] whose logit bias bans them from translations; None if there are none."""
        if self.output_bias is None:
            return None
        found = (self.output_bias.detach() <= BANNED_BIAS).nonzero()[:, 0]
        return found if len(found) else None

    @property
    def target_positions(self) -> Positions:
        """Positions of target tokens."""
        own = self.own_target_positions
        return self.positions if own is None else own

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """Layers of the encoder, bottom first."""
        return cast(list[EncoderLayer], list(self.encoder))

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """Layers of the decoder, bottom first; layers that share weights are the same object."""
        return [cast(DecoderLayer, self.decoder[index]) for index in self.config.decoder_weights]

    def reset_parameters(self, initialization: str = "xavier") -> None:
        """Xavier-uniform matrices, zero biases, embeddings of standard deviation d_model^-0.5.

        Args:
            initialization: How to scale the matrices; see `TrainConfig.initialization`.
        """
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        tables = [self.embedding.weight, *self.positions.parameters()]
        others = (self.source_embedding, self.own_target_positions)
        tables += [table for other in others if other is not None for table in other.parameters()]
        tables += [] if self.output_weight is None else [self.output_weight]
        for table in tables:
            nn.init.normal_(table, std=self.config.d_model**-0.5)
        scale_initial_weights(self, self.config, initialization)

    def look_up(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        """embedding * sqrt(d_model), [N, T] -> [N, T, d_model] (section 3.4)."""
        found: Tensor = table(tokens)
        return found * math.sqrt(self.config.d_model) if self.config.scale_embedding else found

    def embed_source(self, tokens: Tensor, packing: Packing | None = None) -> Tensor:
        """Dropout(embedding * sqrt(d_model) + position), [N, S] -> [N, S, d_model] (3.4, 3.5).

        With a `packing`, [N, S] -> [1, P, d_model].
        """
        positions = self.positions(0, tokens.shape[1])
        if packing is not None:
            tokens, positions = packing.pack(tokens), positions[packing.columns]
        total = self.look_up(self.source_table, tokens) + positions
        return cast(Tensor, self.dropout(self.source_embedding_norm(total)))

    def embed(
        self, tokens: Tensor, first_position: int = 0, packing: Packing | None = None
    ) -> Tensor:
        """Embed target tokens [N, T] like `embed_source`, from `first_position` on."""
        positions = self.target_positions(first_position, first_position + tokens.shape[1])
        if packing is not None:
            tokens, positions = packing.pack(tokens), positions[packing.columns]
        total = self.look_up(self.embedding, tokens) + positions
        return cast(Tensor, self.dropout(self.embedding_norm(total)))

    def encoder_bias(self, source_bias: Tensor | None, size: int) -> Tensor | None:
        """Bias of self-attention over a source of a size, [N, 1, 1, S] or [N, H, S, S].

        Args:
            source_bias: [N, 1, 1, S] `padding_bias`; None without padding.
            size: S.
        """
        if self.source_distances is None:
            return source_bias
        most = self.config.relative_positions
        positions = torch.arange(size, device=self.source_distances.device)
        distances = (positions - positions[:, None]).clamp(-most, most) + most
        bias = F.embedding(distances, self.source_distances).permute(2, 0, 1)[None]
        return bias if source_bias is None else bias + source_bias

    def decoder_bias(self, first: int, end: int) -> Tensor | None:
        """Bias [1, H, end - first, end] of self-attention of positions from `first` on.

        It also hides later positions. None if encodings tell positions.
        """
        if self.target_distances is None:
            return None
        positions = torch.arange(end, device=self.target_distances.device)
        distances = positions[first:, None] - positions
        near = distances.clamp(0, self.config.relative_positions)
        bias = F.embedding(near, self.target_distances).permute(2, 0, 1)
        return torch.where(distances < 0, MASKED, bias)[None]

    def encode(
        self, source: Tensor, source_bias: Tensor | None, packing: Packing | None = None
    ) -> Tensor:
        """Encoder output.

        Args:
            source: [N, S] token ids, each row with the end symbol.
            source_bias: [N, 1, 1, S] `padding_bias`; None without padding.
            packing: Layout of the output without padding; None with padding.

        Returns:
            [N, S, d_model], or [1, P, d_model] with a `packing`.
        """
        x = self.embed_source(source, packing)
        bias = self.encoder_bias(source_bias, source.shape[1])
        for layer in self.encoder_layers:
            x = layer(x, bias, packing)
        return cast(Tensor, self.encoder_norm(x))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_bias: Tensor | None,
        recorded: RecordedHead | None = None,
        packings: Packings | None = None,
    ) -> Tensor:
        """Decoder output at every position (before the output projection).

        Args:
            target: [N, T] previous tokens; the first is the start symbol. Padding must be on the
                right, where the causal mask hides it.
            memory: [N, S, d_model] encoder output.
            source_bias: Bias of the encoder.
            recorded: Head whose cross-attention is recorded.
            packings: Layouts of `memory` and of the output without padding; None with padding.

        Returns:
            [N, T, d_model], or [1, P, d_model] with `packings`.
        """
        x = self.embed(target, 0, None if packings is None else packings.target)
        own = self.decoder_bias(0, target.shape[1])
        for index, (layer, keys_values) in enumerate(
            zip(self.decoder_layers, self.cross_keys_values(memory), strict=True)
        ):
            if recorded is not None and recorded.layer == index:
                record = recorded.log_weights, recorded.head
                x, _ = layer(x, None, keys_values, source_bias, *record, self_bias=own)
            else:
                x, _ = layer(x, None, keys_values, source_bias, packings=packings, self_bias=own)
        return cast(Tensor, self.decoder_norm(x))

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: hidden [..., d_model] times the embedding matrix (3.4)."""
        return F.linear(hidden, self.projection_weight, self.output_bias)

    def forward(
        self,
        source: Tensor,
        source_bias: Tensor | None,
        target: Tensor,
        recorded: RecordedHead | None = None,
        packings: Packings | None = None,
    ) -> Tensor:
        """Decoder output [N, T, d_model] for source [N, S] and previous target tokens [N, T].

        With `packings`, [1, P, d_model] without padding.
        """
        memory = self.encode(source, source_bias, None if packings is None else packings.source)
        return self.decode(target, memory, source_bias, recorded, packings)

    def start_cache(self, source: Tensor, source_lengths: Tensor) -> DecoderCache:
        """Encode the source, and project the keys and values of the cross-attention.

        Args:
            source: [N, S] token ids, each row with the end symbol.
            source_lengths: [N] tokens of each row, the end symbol included.
        """
        if not self.config.source_end:
            source_lengths = source_lengths - 1  # hides the end symbol like padding
        bias = source_padding_bias(source, source_lengths)
        memory = self.encode(source, bias)
        cross = self.cross_keys_values(memory)
        if self.config.is_recurrent:
            past: Past = (memory.new_zeros(memory[:, 0].shape),)
        else:
            past = tuple(x[:, :, :0] for x in cross[0])
        return DecoderCache(cross, bias, [past for _ in cross])

    def cross_keys_values(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Project the encoder output [N, S, d_model] to keys and values [N, H, S, D] per layer."""
        layers = cast(list[DecoderLayer], list(self.decoder))
        distinct = [layer.cross_attention.keys_values(memory) for layer in layers]
        return [distinct[index] for index in self.config.decoder_weights]

    def decode_next(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """Logits [N, V] of the token after `tokens` [N]; the cache grows by one position."""
        x = self.embed(tokens[:, None], cache.length)
        record: list[Tensor] | None = None if cache.recorded is None else []
        bias = self.decoder_bias(cache.length, cache.length + 1)
        for index, layer in enumerate(self.decoder_layers):
            x, cache.past[index] = layer(
                x, cache.past[index], cache.cross[index], cache.source_bias, record, self_bias=bias
            )
        cache.length += 1
        if record is not None and cache.recorded is not None:
            weights = record[cache.recorded.layer][:, :, 0]
            heads = [*cache.recorded.heads] or slice(None)
            cache.attention = weights[:, heads].mean(1)
        return self.project(self.decoder_norm(x[:, 0]))


def pad(sequences: list[list[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad token lists: ids [N, S] and lengths [N], both int64."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    ids = torch.full((len(sequences), int(lengths.max())), PAD, dtype=torch.int64)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    return ids.to(device), lengths

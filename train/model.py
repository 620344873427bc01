"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the paper's order.

Post-norm, sinusoidal positions, one embedding matrix shared by source, target and the output
projection (section 3.4). Letters: N sentences, S source tokens, T target tokens, H heads, D head
size, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.runtime.contract import MASKED
from translate_trt.train.config import PAD, ModelConfig


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
        query: [N, H, T, D].
        key: [N, H, S, D].
        value: [N, H, S, D].
        bias: added to the scaled scores, broadcast to [N, H, T, S]: 0 to look, MASKED not to.
        causal: position t looks at positions up to t only.

    Returns:
        [N, H, T, D].
    """
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        return _attention_by_products(query, key, value, bias, causal)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=causal)


def _attention_by_products(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool
) -> Tensor:
    """The same, as the products it is made of.

    In bfloat16 on a CPU the gradient of torch's fused kernel took half of a whole training step,
    six times as long as this (docs/results.md, made by benchmarks/training.py --parts).
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # [N, H, T, S]
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, MASKED)
    return torch.softmax(scores, -1) @ value


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[N, T, H * D] -> [N, H, T, D]."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)


def padding_bias(lengths: Tensor, size: int) -> Tensor:
    """[N, 1, 1, size] attention bias that hides positions from `lengths` [N] on."""
    hidden = torch.arange(size, device=lengths.device) >= lengths[:, None]
    return (hidden * MASKED)[:, None, None, :]


class Dropout(nn.Module):
    """Inverted dropout.

    On a CPU, torch draws one random number per element in a single thread, which made dropout one
    of the dearest parts of a step; 16 random bits per element take less than half the time
    (docs/results.md, made by benchmarks/training.py --parts). The rate is thereby rounded to a
    multiple of 2^-16.
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
        self.heads, self.head_size = config.heads, config.head_size
        self.query = nn.Linear(config.d_model, config.d_model)
        self.key = nn.Linear(config.d_model, config.d_model)
        self.value = nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys and values of x [N, S, d_model]: two of [N, H, S, D]."""
        return split_heads(self.key(x), self.heads), split_heads(self.value(x), self.heads)

    def attend(
        self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Queries from x [N, T, d_model] over projected keys and values; [N, T, d_model]."""
        query = split_heads(self.query(x), self.heads)
        context = scaled_dot_product_attention(query, key, value, bias, causal)  # [N, H, T, D]
        return cast(Tensor, self.output(context.transpose(1, 2).flatten(-2)))

    def weights(self, x: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
        """The attention weights that `attend` applies, averaged over heads: [N, T, S]."""
        query: Tensor = split_heads(self.query(x), self.heads) * self.head_size**-0.5
        scores = query @ key.transpose(-1, -2)  # [N, H, T, S]
        scores = scores if bias is None else scores + bias
        return torch.softmax(scores, -1).mean(1)


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.outer(F.relu(self.inner(x))))


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(sub-layer output)): residual, then norm (sections 3.1 and 5.4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Tensor) -> Tensor:
        return cast(Tensor, self.norm(x + self.dropout(sublayer)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = AddNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = AddNorm(config)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [N, S, d_model] -> the same shape."""
        key, value = self.self_attention.keys_values(x)
        x = self.self_attention_norm(x, self.self_attention.attend(x, key, value, bias))
        return cast(Tensor, self.feed_forward_norm(x, self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward (figure 1, right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_norm = AddNorm(config)
        self.cross_attention = MultiHeadAttention(config)
        self.cross_attention_norm = AddNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = AddNorm(config)

    def forward(
        self,
        x: Tensor,
        self_keys_values: tuple[Tensor, Tensor],
        cross_keys_values: tuple[Tensor, Tensor],
        source_bias: Tensor | None,
        causal: bool,
        record: list[Tensor] | None = None,
    ) -> Tensor:
        """x [N, T, d_model] -> the same shape; keys and values are given already projected.

        Cross-attention weights [N, T, S] (mean over heads) are appended to `record` if it is given.
        """
        attended = self.self_attention.attend(x, *self_keys_values, None, causal)
        x = self.self_attention_norm(x, attended)
        if record is not None:
            record.append(self.cross_attention.weights(x, cross_keys_values[0], source_bias))
        attended = self.cross_attention.attend(x, *cross_keys_values, source_bias)
        x = self.cross_attention_norm(x, attended)
        return cast(Tensor, self.feed_forward_norm(x, self.feed_forward(x)))


def sinusoid(positions: Tensor, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same (section 3.5).

    Args:
        positions: [...] integers, the first position is 0.
        d_model: size of an encoding, even.

    Returns:
        [..., d_model] float32.
    """
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float64) / d_model
    angles = positions[..., None].double() / 10_000.0**exponents  # [..., d_model / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


@dataclass
class DecoderCache:
    """What decoding token by token remembers, for N rows (sentences or beams).

    Attributes:
        cross: per layer, projected keys and values of the encoder output, [N, H, S, D] each.
        source_bias: [N, 1, 1, S].
        past: per layer, keys and values of the tokens so far, [N, H, T, D] each.
        length: T.
        attention: of the last position and layer, [N, S]; kept if `record_attention`.
    """

    cross: list[tuple[Tensor, Tensor]]
    source_bias: Tensor | None
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    length: int = 0
    record_attention: bool = False
    attention: Tensor | None = None

    def select(self, rows: Tensor) -> DecoderCache:
        """The cache of those rows [M], in that order (a row may come more than once)."""
        return DecoderCache(
            [(key[rows], value[rows]) for key, value in self.cross],
            None if self.source_bias is None else self.source_bias[rows],
            [(key[rows], value[rows]) for key, value in self.past],
            self.length,
            self.record_attention,
        )


class Transformer(nn.Module):
    """Encoder, decoder, and the embedding matrix they share with the output projection."""

    positions: Tensor

    def __init__(self, config: ModelConfig, max_positions: int = 1024) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        table = sinusoid(torch.arange(max_positions), config.d_model)
        self.register_buffer("positions", table, persistent=False)
        self.reset_parameters()

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder, bottom first."""
        return cast(list[EncoderLayer], list(self.encoder))

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder, bottom first."""
        return cast(list[DecoderLayer], list(self.decoder))

    def reset_parameters(self) -> None:
        """Xavier-uniform matrices, zero biases, embeddings of standard deviation d_model^-0.5."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.config.d_model**-0.5)

    def embed(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        """Dropout(embedding * sqrt(d_model) + position), [N, T] -> [N, T, d_model] (3.4, 3.5)."""
        end = first_position + tokens.shape[1]
        if end > len(self.positions):
            longer = torch.arange(2 * end, device=self.positions.device)
            self.positions = sinusoid(longer, self.config.d_model)
        embedded = self.embedding(tokens) * math.sqrt(self.config.d_model)
        return cast(Tensor, self.dropout(embedded + self.positions[first_position:end]))

    def encode(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder output and the bias that hides its padding.

        Args:
            source: [N, S] token ids, each row closed by the end symbol.
            source_lengths: [N] tokens per row, the end symbol included.

        Returns:
            [N, S, d_model], and [N, 1, 1, S] or None where no row has padding.
        """
        size = source.shape[1]
        bias = None if bool((source_lengths == size).all()) else padding_bias(source_lengths, size)
        x = self.embed(source)
        for layer in self.encoder_layers:
            x = layer(x, bias)
        return x, bias

    def decode(self, target: Tensor, memory: Tensor, source_bias: Tensor | None) -> Tensor:
        """Decoder output at every position (before the output projection).

        Args:
            target: [N, T] previous tokens, the first is the start symbol.
            memory: [N, S, d_model] encoder output.
            source_bias: what `encode` returned beside it.

        Returns:
            [N, T, d_model]. Padding may only be on the right: it is after every token that counts,
            so the causal mask hides it.
        """
        x = self.embed(target)
        for layer in self.decoder_layers:
            own = layer.self_attention.keys_values(x)
            cross = layer.cross_attention.keys_values(memory)
            x = layer(x, own, cross, source_bias, causal=True)
        return x

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: hidden [..., d_model] times the embedding matrix (3.4)."""
        return F.linear(hidden, self.embedding.weight)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Decoder output [N, T, d_model] for source [N, S] and previous target tokens [N, T]."""
        return self.decode(target, *self.encode(source, source_lengths))

    def start_cache(self, source: Tensor, source_lengths: Tensor) -> DecoderCache:
        """Encode, and project what every decoding step will look at."""
        memory, bias = self.encode(source, source_lengths)
        cross = [layer.cross_attention.keys_values(memory) for layer in self.decoder_layers]
        empty = memory.new_zeros(len(memory), self.config.heads, 0, self.config.head_size)
        return DecoderCache(cross, bias, [(empty, empty) for _ in self.decoder])

    def decode_next(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """Logits [N, V] of the token after `tokens` [N]; the cache grows by one position."""
        x = self.embed(tokens[:, None], cache.length)
        record: list[Tensor] | None = [] if cache.record_attention else None
        for index, layer in enumerate(self.decoder_layers):
            new = layer.self_attention.keys_values(x)
            old = cache.past[index]
            own = (torch.cat((old[0], new[0]), dim=2), torch.cat((old[1], new[1]), dim=2))
            cache.past[index] = own
            x = layer(x, own, cache.cross[index], cache.source_bias, False, record)
        cache.length += 1
        cache.attention = record[-1][:, 0] if record else None
        return self.project(x[:, 0])


def pad(sequences: list[list[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Token lists as one right-padded batch: ids [N, S] and lengths [N], both int64."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    ids = torch.full((len(sequences), int(lengths.max())), PAD, dtype=torch.int64)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    return ids.to(device), lengths

"""Attention weights of a model for a sentence and its translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from translate_trt.runtime.bundle.contract import MASKED, forced_token
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.config import END, START
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

KINDS = ("encoder", "decoder", "cross")

_NONE = Prompt()


@torch.inference_mode()
def attention_weights(
    model: Transformer, source: Tensor, source_bias: Tensor | None, target: Tensor
) -> dict[str, list[Tensor]]:
    """Compute all attention weights of a forward pass, per layer, bottom first.

    The layers run as in `Transformer.encode` and `Transformer.decode`; the weights are computed
    from the input of each layer (section 3.2).

    Args:
        model: Model in evaluation mode.
        source: [N, S] token ids, each row with the end symbol.
        source_bias: [N, 1, 1, S] `padding_bias`; None without padding.
        target: [N, T] previous tokens; the first is the start symbol.

    Returns:
        By `KINDS`: [N, H, S, S] each of the encoder, [N, H, T, T] of the decoder (none if its
        layers are recurrent), and [N, H, T, S] of cross-attention.

    Raises:
        OptionError: A sentence is longer than the model's learned positions.
    """
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    x = model.embed_source(source)  # [N, S, d_model]
    bias = model.encoder_bias(source_bias, source.shape[1])
    for encoder_layer in model.encoder_layers:
        attention = encoder_layer.self_attention
        y = encoder_layer.self_attention_norm.before(x)
        found["encoder"].append(attention.weights(y, attention.keys_values(y)[0], bias))
        x = encoder_layer(x, bias)
    memory = model.encoder_norm(x)
    x = model.embed(target)  # [N, T, d_model]
    causal = own = model.decoder_bias(0, x.shape[1])
    if causal is None:
        causal = x.new_full((x.shape[1], x.shape[1]), MASKED).triu(1)  # broadcast over N and H
    for layer in model.decoder_layers:
        if not layer.is_recurrent:
            attention = layer.self_attention
            y = layer.self_attention_norm.before(x)
            found["decoder"].append(attention.weights(y, attention.keys_values(y)[0], causal))
        cross = layer.cross_attention.keys_values(memory)
        x, _ = layer(x, None, cross, source_bias, record=found["cross"], self_bias=own)
    return found


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of one kind, with the tokens of queries and keys.

    Attributes:
        kind: One of `KINDS`.
        query: Tokens of the queries: T, or S in the encoder.
        key: Tokens of the keys: S, or T in the decoder's self-attention.
        weights: [layers, H, T, S]; the last axis sums to 1.
    """

    kind: str
    query: tuple[str, ...]
    key: tuple[str, ...]
    weights: Tensor


@dataclass(frozen=True)
class SentenceAttention:
    """Translation of a sentence, and its attention maps by `KINDS`."""

    translation: str
    maps: dict[str, AttentionMap]


def attend_sentence(
    model: Transformer,
    tokenizer: Tokenizer,
    sentence: str,
    target: str | None,
    options: SearchOptions,
    prompt: Prompt = _NONE,
) -> SentenceAttention:
    """Compute the attention maps of a sentence and its translation.

    The encoder's tokens are the source, with the end symbol if the model reads one. Queries and
    keys of the decoder's self-attention are the tokens that it reads, from the start symbol on.
    Queries of the cross-attention are labelled with the tokens that they predict, up to the end
    symbol.

    Args:
        model: Model in evaluation mode.
        tokenizer: Tokenizer of the checkpoint.
        sentence: Source text.
        target: Translation; None for the result of beam search.
        options: Search options, with languages that the checkpoint has checked.
        prompt: Prompt of the checkpoint.

    Raises:
        InputError: The sentence or the given translation is empty.
        OptionError: The sentence or translation is longer than the model's learned positions, or
            the sentence lacks a target language.
    """
    sentence, options = prompt.of_line(sentence, options)
    text = tokenizer.encode_source(sentence)
    if not text:
        raise InputError("the sentence is empty; give some words to translate.")
    prompt.check_line(options, "the sentence")
    source, begin = [*prompt.of_source(options), *text], prompt.of_target(options)
    if target is None:
        produced = _translate(model, source, begin, options)
    else:
        text = tokenizer.encode_target(target)
        produced = [*map(forced_token, begin), *text, END]
        if not text:
            raise InputError(
                "the given translation is empty; without --translation the sentence is translated."
            )
    return _maps(model, tokenizer, [*source, END], produced)


def _translate(
    model: Transformer, source: Sequence[int], begin: Sequence[int], options: SearchOptions
) -> list[int]:
    """Return the best translation, with the end symbol unless it is truncated."""
    if model.longest is not None:
        longest = min(options.max_length_for(len(source)), model.longest)
        options = dataclasses.replace(options, max_length=longest)
    best = beam_search(model, [source], options, [begin])[0][0]
    return [*best.tokens, *([] if best.truncated else [END])]


def _maps(
    model: Transformer, tokenizer: Tokenizer, source: Sequence[int], produced: Sequence[int]
) -> SentenceAttention:
    device = model.embedding.weight.device
    previous = [START, *produced[:-1]]
    source = source if model.config.source_end else source[:-1]
    found = attention_weights(
        model, torch.tensor([source], device=device), None, torch.tensor([previous], device=device)
    )
    source_text = tuple(tokenizer.source_pieces(source))
    read = tuple(tokenizer.target_pieces(previous))
    predicted = tuple(tokenizer.target_pieces(produced))
    maps = {
        kind: AttentionMap(kind, query, key, torch.cat(found[kind]).float().cpu())
        for kind, query, key in (
            ("encoder", source_text, source_text),
            ("decoder", read, read),
            ("cross", predicted, source_text),
        )
    }
    words = [token for token in produced if token != END]
    return SentenceAttention(tokenizer.decode(words), maps)

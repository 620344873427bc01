"""The attention weights of a model on one sentence and its translation."""

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


@dataclass(frozen=True)
class AttentionWeights:
    """Weights per layer, bottom first, as the model applies them to its values.

    Attributes:
        encoder: self-attention, [N, H, S, S] each.
        decoder: masked self-attention, [N, H, T, T] each.
        cross: attention of the decoder to the encoder output, [N, H, T, S] each.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


@torch.inference_mode()
def attention_weights(
    model: Transformer, source: Tensor, source_bias: Tensor | None, target: Tensor
) -> AttentionWeights:
    """All attention weights of a pass through the model.

    Goes through the layers as `Transformer.encode` and `Transformer.decode` do; each layer's
    weights are computed from the same input by the layer's own projections (section 3.2).

    Args:
        model: in evaluation mode.
        source: [N, S] token ids, each row closed by the end symbol.
        source_bias: `padding_bias` [N, 1, 1, S], or None where no row has padding.
        target: [N, T] previous tokens, the first is the start symbol.

    Raises:
        OptionError: a sentence is longer than the model's learned positions.
    """
    found = AttentionWeights([], [], [])
    x = model.embed_source(source)  # [N, S, d_model]
    for encoder_layer in model.encoder_layers:
        attention = encoder_layer.self_attention
        y = encoder_layer.self_attention_norm.before(x)
        found.encoder.append(attention.weights(y, attention.keys_values(y)[0], source_bias))
        x = encoder_layer(x, source_bias)
    memory = model.encoder_norm(x)
    x = model.embed(target)  # [N, T, d_model]
    causal = x.new_full((x.shape[1], x.shape[1]), MASKED).triu(1)  # broadcast over N and H
    for layer in model.decoder_layers:
        attention = layer.self_attention
        y = layer.self_attention_norm.before(x)
        found.decoder.append(attention.weights(y, attention.keys_values(y)[0], causal))
        cross = layer.cross_attention.keys_values(memory)
        x, _ = layer(x, None, cross, source_bias, record=found.cross)
    return found


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one kind of attention, with the pieces that they lie between.

    Attributes:
        kind: one of `KINDS`.
        query: the pieces that look, T of them (of the encoder: S).
        key: the pieces looked at, S of them (of the decoder's self-attention: T).
        weights: [layers, H, T, S]; each row of the last axis sums to 1.
    """

    kind: str
    query: tuple[str, ...]
    key: tuple[str, ...]
    weights: Tensor


@dataclass(frozen=True)
class SentenceAttention:
    """A translation, and the attention by `KINDS`."""

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
    """The attention of a model as it translates a sentence.

    The encoder's pieces are the source with its end symbol, if the model reads that. The decoder
    reads the start symbol and the translation, and its self-attention lies between these; from each
    position it says the next piece, under whose name the cross-attention of that position stands,
    up to the end symbol.

    Args:
        model: in evaluation mode.
        tokenizer: of its checkpoint.
        sentence: source text.
        target: its translation; None: the one that the beam search finds.
        options: of that search; what they say of languages, the checkpoint has checked.
        prompt: of the checkpoint.

    Raises:
        InputError: the sentence or the translation given is empty.
        OptionError: one of them is longer than the model's learned positions.
    """
    sentence, options = prompt.of_line(sentence, options)
    text = tokenizer.encode_source(sentence)
    if not text:
        raise InputError("the sentence is empty; give some words to translate.")
    source, begin = [*prompt.of_source(options), *text], prompt.of_target(options)
    if target is None:
        produced = _translate(model, source, begin, options)
    else:
        said = tokenizer.encode_target(target)
        produced = [*map(forced_token, begin), *said, END]
        if not said:
            raise InputError(
                "the given translation is empty; without --target the sentence is translated."
            )
    return _maps(model, tokenizer, [*source, END], produced)


def _translate(
    model: Transformer, source: Sequence[int], begin: Sequence[int], options: SearchOptions
) -> list[int]:
    """The best translation, with the end symbol unless it was cut."""
    if (
        model.longest is not None
    ):  # of learned positions the search must not use more than there are
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
    read = tuple(tokenizer.source_pieces(source))
    before = tuple(tokenizer.target_pieces(previous))
    said = tuple(tokenizer.target_pieces(produced))
    maps = {
        kind: AttentionMap(kind, query, key, torch.cat(weights).float().cpu())
        for kind, query, key, weights in (
            ("encoder", read, read, found.encoder),
            ("decoder", before, before, found.decoder),
            ("cross", said, read, found.cross),
        )
    }
    words = [token for token in produced if token != END]
    return SentenceAttention(tokenizer.decode(words), maps)

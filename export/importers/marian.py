"""Marian models as Hugging Face's transformers keeps them (the OPUS-MT models, for example).

Their vocabulary is vocab.json; SentencePiece models of both languages only cut text. A piece that
vocab.json lacks stands for the unknown token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from translate_trt.export.importers.hugging_face import (
    Config,
    Tensors,
    layers,
    read_json_file,
    read_weights,
)
from translate_trt.export.importers.imported import Imported, build_model
from translate_trt.export.importers.vocabulary import (
    Numbering,
    Special,
    arranged_tokenizers,
)
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import ModelConfig

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_POSITIONS = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}


def import_marian(directory: Path) -> Imported:
    """The model in a directory of `MarianMTModel.save_pretrained` and its tokenizer.

    Args:
        directory: with config.json, vocab.json, source.spm, target.spm and the weights.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
    """
    if not directory.is_dir():
        raise InputError(f"there is no directory {directory}; give the one with config.json in it.")
    config = Config.read(directory, "marian")
    source, target = _numberings(directory, config)
    files = directory / "source.spm", directory / "target.spm"
    (source, target), tokenizers = arranged_tokenizers(files, (source, target), _is_language)
    tensors = Tensors(directory, read_weights(directory))
    model, weights = _convert(config, tensors, source, target)
    tensors.check_all_used(_POSITIONS)
    made = build_model(model, weights, directory)
    return Imported(made, tokenizers, "marian-hf", _search(directory, config))


def _is_language(token: str) -> bool:
    """Whether a token at the start of a source says what to translate into, such as >>deu<<."""
    return token.startswith(">>") and token.endswith("<<")


def _numberings(directory: Path, config: Config) -> tuple[Numbering, Numbering]:
    """Of source and target; the same object where they share a vocabulary."""
    shared = config.flag("share_encoder_decoder_embeddings", True)
    size = config.integer("vocab_size")
    source = _read_vocabulary(directory / "vocab.json", size)
    own = directory / "target_vocab.json"
    if not shared or own.is_file():
        if shared or not own.is_file():
            raise config.refused(
                "share_encoder_decoder_embeddings",
                f"it does not fit {own.name}, which is {'there' if shared else 'missing'}",
            )
        target_size = int(config.values.get("decoder_vocab_size") or size)
        target = _read_vocabulary(own, target_size)
        return _numbering(source, config, None), _numbering(target, config, directory)
    numbering = _numbering(source, config, directory)
    return numbering, numbering


def _read_vocabulary(path: Path, size: int) -> list[str]:
    """Tokens by id; ids that nothing has get names that no text has."""
    values = read_json_file(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} is no JSON object of tokens and ids; copy the directory again.")
    tokens: list[str | None] = [None] * size
    for token, place in values.items():
        if not isinstance(place, int) or not 0 <= place < size or tokens[place] is not None:
            raise InputError(
                f"{path}: {token!r} has id {place!r}; ids must be below the model's {size}, and "
                "no two the same."
            )
        tokens[place] = token
    return [f"<unused-{i}>" if token is None else token for i, token in enumerate(tokens)]


def _numbering(tokens: list[str], config: Config, never: Path | None) -> Numbering:
    """Numbers of the tokens.

    Args:
        tokens: by id.
        config: of the model.
        never: where to look for tokens that are never generated; None: none of these are.
    """
    start, pad = config.integer("decoder_start_token_id"), config.integer("pad_token_id")
    end = config.integer("eos_token_id")
    unknown = tokens.index("<unk>") if "<unk>" in tokens else None
    if never is None:
        places = [tokens.index(name) if name in tokens else None for name in ("<pad>", "</s>")]
        return Numbering(tokens, Special(places[0], unknown, None, places[1]))
    if max(start, pad, end) >= len(tokens):
        raise config.refused("decoder_start_token_id", f"there are {len(tokens)} tokens")
    return Numbering(tokens, Special(pad, unknown, start, end), _bad_words(never, config))


def _generation(directory: Path, config: Config) -> dict[str, Any]:
    """What generation is asked to do: generation_config.json, in older models config.json."""
    path = directory / "generation_config.json"
    values = read_json_file(path) if path.is_file() else {}
    return {**config.values, **values} if isinstance(values, dict) else config.values


def _bad_words(directory: Path, config: Config) -> list[int]:
    """Tokens that are never generated: Marian itself does not know the padding symbol."""
    words = _generation(directory, config).get("bad_words_ids") or []
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise config.refused("bad_words_ids", "words of one token alone are represented")
    return [int(word[0]) for word in words]


def _search(directory: Path, config: Config) -> dict[str, Any]:
    values = _generation(directory, config)
    beams, penalty = values.get("num_beams"), values.get("length_penalty")
    search: dict[str, Any] = {
        "beam_size": 1 if beams is None else beams,
        "length_penalty": 1.0 if penalty is None else penalty,
        "length_penalty_form": "length",
        "early_stopping": values.get("early_stopping") is True,
    }
    try:
        SearchOptions(**search)
    except (OptionError, TypeError) as error:
        raise InputError(f"{directory}: how to generate is not represented: {error}") from error
    return search


def _convert(
    config: Config, tensors: Tensors, source: Numbering, target: Numbering
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration, and the weights by their names in `Transformer`."""
    shared = "model.shared.weight"
    activation = config.values.get("activation_function")
    if activation not in _ACTIVATIONS:
        raise config.refused("activation_function", f"represented are {', '.join(_ACTIVATIONS)}")
    for stack in ("encoder", "decoder"):
        if config.values.get("normalize_before") or config.values.get("add_final_layer_norm"):
            raise config.refused("normalize_before", "Marian's models are post-norm")
        if config.integer(f"{stack}_attention_heads") != config.integer("encoder_attention_heads"):
            raise config.refused(f"{stack}_attention_heads", "both stacks must have as many")
        if config.integer(f"{stack}_ffn_dim") != config.integer("encoder_ffn_dim"):
            raise config.refused(f"{stack}_ffn_dim", "both stacks must have the same")
    embedded = {
        stack: tensors.take(f"model.{stack}.embed_tokens.weight", shared, "lm_head.weight")
        for stack in ("encoder", "decoder")
    }
    output = tensors.take("lm_head.weight", "model.decoder.embed_tokens.weight", shared)
    bias = torch.zeros(len(output))
    if "final_logits_bias" in tensors:
        bias = tensors.take("final_logits_bias").reshape(-1)
    same = source is target
    shares_input = same and torch.equal(embedded["encoder"], embedded["decoder"])
    shares_output = torch.equal(output, embedded["decoder"])
    tied = {(True, True): "all", (True, False): "input", (False, True): "output"}
    logits_bias = target.bias(bias)
    model = ModelConfig(
        vocabulary_size=target.size,
        source_vocabulary_size=0 if same else source.size,
        encoder_layers=config.integer("encoder_layers"),
        decoder_layers=config.integer("decoder_layers"),
        d_model=config.integer("d_model"),
        d_ff=config.integer("encoder_ffn_dim"),
        heads=config.integer("encoder_attention_heads"),
        dropout=0.0,
        tied=tied.get((shares_input, shares_output), "none"),
        output_bias=logits_bias is not None,
        activation=_ACTIVATIONS[activation],
        sinusoid="concatenated",
        scale_embedding=config.flag("scale_embedding", False),
    )
    weights = {"embedding.weight": target.matrix(embedded["decoder"])}
    if not shares_input:
        weights["source_embedding.weight"] = source.matrix(embedded["encoder"])
    if not shares_output:
        weights["output_weight"] = target.matrix(output)
    if logits_bias is not None:
        weights["output_bias"] = logits_bias
    weights |= layers(tensors, "encoder", model.encoder_layers)
    weights |= layers(tensors, "decoder", model.decoder_layers)
    return model, weights

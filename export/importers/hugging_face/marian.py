"""Importer of Marian models that transformers saved, such as OPUS-MT.

Token ids are those of vocab.json, and of tokens that were added after training; the SentencePiece
models of both languages only segment text. A piece that vocab.json lacks becomes the unknown token.
Added tokens are words that are never split, like the languages (>>deu<<).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from translate_trt.export.importers.hugging_face.bart_family import IGNORED, convert
from translate_trt.export.importers.hugging_face.directory import (
    Config,
    Tensors,
    read_json_file,
    read_weights,
    tokens_by_id,
)
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import (
    check_end,
    read_added_tokens,
    read_object,
)
from translate_trt.export.importers.imported import (
    Imported,
    ModelPart,
    build_model,
    read_positions,
)
from translate_trt.export.importers.languages import is_opus_language, opus_prompt
from translate_trt.export.importers.model_format import (
    SETTINGS_OF_TRANSFORMERS,
    ModelFormat,
    need,
    weights_of_transformers,
)
from translate_trt.export.importers.vocabulary import (
    SpecialTokens,
    TokenMap,
    remap_tokenizers,
)
from translate_trt.runtime.errors import InputError
from translate_trt.train.model import sinusoid

log = logging.getLogger("translate_trt")

_POSITIONS = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
# Sinusoids of a model without tables.
_SINUSOID = "concatenated"


def import_marian(directory: Path) -> Imported:
    """Import a directory of `MarianMTModel`.

    Args:
        directory: Directory with config.json, vocab.json, source.spm, target.spm and the weights.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    config = Config.read(directory, "marian")
    generation = Generation.read(directory, config)
    settings = read_object(directory / "tokenizer_config.json")
    _warn(directory, settings)
    added = read_added_tokens(directory, settings)
    source, target = _token_maps(directory, config, generation, settings, added)
    forced = generation.token("forced_bos_token_id", target.count)
    files = directory / "source.spm", directory / "target.spm"
    (source, target), tokenizers = remap_tokenizers(
        files, (source, target), lambda token: token in added or is_opus_language(token)
    )
    tensors = Tensors(directory, read_weights(directory))
    model, weights = convert(config, tensors, (source, target), _positions(tensors))
    tensors.check_all_used(IGNORED)
    made = build_model(model, weights, directory)
    prompt = opus_prompt(source.names, tokenizers[0])
    if forced is not None:
        prompt = replace(prompt, target=(target.id_of(forced),))
    return Imported(made, tokenizers, "marian-hf", generation.search(), prompt)


def _warn(directory: Path, settings: dict[str, Any]) -> None:
    """Log a warning for a setting of the tokenizer that changes translations."""
    if settings.get("clean_up_tokenization_spaces"):
        log.warning(
            "%s: clean_up_tokenization_spaces is true, which translate-trt does not apply: "
            "transformers removes spaces before . ? ! and , and in English contractions such as "
            "do n't.", directory / "tokenizer_config.json",
        )  # fmt: skip


def _positions(tensors: Tensors) -> ModelPart:
    """Read the position tables; a stack without a table has sinusoids."""
    present = [name for name in _POSITIONS if name in tensors]
    if not present:
        return ModelPart({"sinusoid": _SINUSOID}, {})
    count, width = tensors.table(present[0]).shape
    if width % 2:
        raise InputError(
            f"{tensors.directory}: {present[0]} is {width} wide; an even width is required."
        )
    computed = sinusoid(torch.arange(count), width, _SINUSOID)
    source, target = (tensors.table(name) if name in tensors else computed for name in _POSITIONS)
    return read_positions(source, target)


def _token_maps(
    directory: Path,
    config: Config,
    generation: Generation,
    settings: dict[str, Any],
    added: dict[str, int],
) -> tuple[TokenMap, TokenMap]:
    """Read the maps of source and target; the same object for a shared vocabulary.

    Args:
        directory: Directory of the model.
        config: The model's config.json.
        generation: The model's generation settings.
        settings: Values of tokenizer_config.json.
        added: Ids of added tokens, which vocab.json may contain or lack.
    """
    shared = config.flag("share_encoder_decoder_embeddings", True)
    size, vocabulary = config.integer("vocab_size"), directory / "vocab.json"
    own = directory / "target_vocab.json"
    if not shared or own.is_file():
        if shared or not own.is_file():
            raise config.setting_error(
                "share_encoder_decoder_embeddings",
                f"but {own.name} {'exists' if shared else 'is missing'}",
            )
        target_size = size
        if config.values.get("decoder_vocab_size"):
            target_size = config.integer("decoder_vocab_size")
        source, target = _read_vocabulary(vocabulary, size), _read_vocabulary(own, target_size)
        missing = next((token for token in added if token not in source), None)
        if missing is not None:  # transformers has one id of it for both sides
            raise InputError(
                f"{directory}: {missing!r:.60} is an added token, which {vocabulary.name} lacks; "
                "with separate vocabularies, added tokens are not supported."
            )
        return _source_token_map(source), _token_map(target, config, generation)
    source = _read_vocabulary(vocabulary, size, added)
    token_map = _token_map(source, config, generation)
    check_end(generation.config, source[generation.end(config, len(source))], settings)
    return token_map, token_map


def _read_vocabulary(path: Path, size: int, added: Mapping[str, int] | None = None) -> list[str]:
    """Read the tokens by id, with added tokens that the file lacks."""
    values = read_json_file(path)
    if not isinstance(values, dict):
        raise InputError(
            f"{path} is not a JSON object of tokens and ids; copy the directory again."
        )
    return tokens_by_id(path, {**(added or {}), **values}, size)


def _source_token_map(tokens: list[str]) -> TokenMap:
    """Map a source vocabulary of its own, whose special tokens are found by name."""
    pad, end, unknown = (
        tokens.index(name) if name in tokens else None for name in ("<pad>", "</s>", "<unk>")
    )
    return TokenMap(tokens, SpecialTokens(pad, unknown, None, end))


def _token_map(tokens: list[str], config: Config, generation: Generation) -> TokenMap:
    """Map the vocabulary of the target or of both sides."""
    size = len(tokens)
    start = generation.start(config, size)
    if start is None:
        raise config.setting_error(
            "decoder_start_token_id", f"one of the {size} tokens is required"
        )
    pad, end = config.token("pad_token_id", size), generation.end(config, size)
    unknown = tokens.index("<unk>") if "<unk>" in tokens else None
    return TokenMap(tokens, SpecialTokens(pad, unknown, start, end), generation.banned_tokens(size))


#: Recognized by the SentencePiece models of both languages and their common ids.
FORMAT = ModelFormat(
    "marian-hf",
    "a Marian model saved by transformers",
    (
        need("config.json"),
        need("source.spm target.spm"),
        need("vocab.json"),
        weights_of_transformers(),
    ),
    ("target_vocab.json", *SETTINGS_OF_TRANSFORMERS),
    config={"model_type": ("marian",)},
    load=lambda directory, languages: import_marian(directory),
)

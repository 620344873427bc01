"""Importer of Marian models that transformers saved, such as OPUS-MT.

Token ids are those of vocab.json, and of tokens that were added after training; the SentencePiece
models of both languages only segment text. A piece that vocab.json lacks becomes the unknown token.
Added tokens are words that are never split, like the languages (>>deu<<).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from translate_trt.export.importers.hugging_face.bart_family import build
from translate_trt.export.importers.hugging_face.directory import (
    read_config,
    read_weights,
    tokens_by_id,
)
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import read_added_tokens, read_object
from translate_trt.export.importers.imported import Imported, ModelPart, read_positions
from translate_trt.export.importers.input_files import load_object
from translate_trt.export.importers.languages import is_opus_language, opus_prompt
from translate_trt.export.importers.model_format import format_of_transformers, need
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import STACKS, Tensors
from translate_trt.export.importers.vocabulary import SpecialTokens, TokenMap, make_tokenizers
from translate_trt.runtime.errors import InputError
from translate_trt.train.model import sinusoid

log = logging.getLogger("translate_trt")

_POSITIONS = [f"model.{stack}.embed_positions.weight" for stack in STACKS]
# Sinusoids of a model without tables.
_SINUSOID = "concatenated"


def import_marian(directory: Path) -> Imported:
    """Import a directory of `MarianMTModel`.

    Args:
        directory: Directory with config.json, vocab.json, source.spm, target.spm and the weights.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    config = read_config(directory, "marian")
    generation = Generation.read(config)
    settings = read_object(directory / "tokenizer_config.json")
    _warn(directory, settings)
    added = read_added_tokens(directory, settings)
    source, target = _token_maps(config, generation, settings, added)
    forced = generation.config.optional_token("forced_bos_token_id", target.count)
    files = directory / "source.spm", directory / "target.spm"
    (source, target), tokenizers = make_tokenizers(
        files, (source, target), lambda token: token in added or is_opus_language(token)
    )
    tensors = Tensors(directory, read_weights(directory))
    model = build(config, tensors, (source, target), _positions(tensors))
    prompt = opus_prompt(source.names, tokenizers[0])
    if forced is not None:
        prompt = replace(prompt, target=(target.id_of(forced),))
    return Imported(model, tokenizers, "marian-hf", generation.search(), prompt)


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
            f"{tensors.path}: {present[0]} is {width} wide; an even width is required."
        )
    computed = sinusoid(torch.arange(count), width, _SINUSOID)
    source, target = (tensors.table(name) if name in tensors else computed for name in _POSITIONS)
    return read_positions(source, target)


def _token_maps(
    config: Config, generation: Generation, settings: dict[str, Any], added: dict[str, int]
) -> tuple[TokenMap, TokenMap]:
    """Read the maps of source and target; the same object for a shared vocabulary.

    Args:
        config: The model's config.json.
        generation: The model's generation settings.
        settings: Values of tokenizer_config.json.
        added: Ids of added tokens, which vocab.json may contain or lack.
    """
    shared = config.flag("share_encoder_decoder_embeddings", True)
    size, vocabulary = config.integer("vocab_size"), config.path.with_name("vocab.json")
    own = config.path.with_name("target_vocab.json")
    if shared == own.is_file():
        raise config.setting_error(
            "share_encoder_decoder_embeddings",
            f"but {own.name} {'exists' if shared else 'is missing'}",
        )
    ids = load_object(vocabulary)
    if shared:
        token_map = generation.token_map(tokens_by_id(vocabulary, added | ids, size), settings)
        return token_map, token_map
    missing = next((token for token in added if token not in ids), None)
    if missing is not None:  # transformers has one id of it for both sides
        raise InputError(
            f"{vocabulary} lacks the added token {missing!r:.60}; with separate vocabularies, "
            "that is not supported."
        )
    tokens = tokens_by_id(vocabulary, ids, size)
    source = TokenMap(tokens, SpecialTokens.named(tokens, ("<pad>",), ("<unk>",), (), ("</s>",)))
    if config.values.get("decoder_vocab_size"):
        size = config.integer("decoder_vocab_size")
    return source, generation.token_map(tokens_by_id(own, load_object(own), size), None)


#: Recognized by the SentencePiece models of both languages and their common ids.
FORMAT = format_of_transformers(
    "marian-hf", "a Marian model saved by transformers", ("marian",), import_marian,
    (need("source.spm target.spm"), need("vocab.json")), ("target_vocab.json",),
)  # fmt: skip

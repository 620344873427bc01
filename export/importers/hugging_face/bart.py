"""Importer of BART and mBART-50 models with a SentencePiece tokenizer.

BART and BARThez put a begin token before the source. mBART-50 begins source and translation with
their language. Tables of learned positions have two unused rows at the beginning.
"""

from __future__ import annotations

from pathlib import Path

from translate_trt.export.importers.hugging_face.bart_family import build
from translate_trt.export.importers.hugging_face.directory import read_config, read_weights
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import Tokens
from translate_trt.export.importers.imported import Imported, read_positions
from translate_trt.export.importers.languages import MBART50, language_prompt, languages_of
from translate_trt.export.importers.model_format import format_of_transformers
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import STACKS, Tensors
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError

_BEGIN = ("BartTokenizer", "BarthezTokenizer")
_LANGUAGES = "MBart50Tokenizer"
# Unused rows of a position table: positions follow fairseq's padding id, which is 1.
_OFFSET = 2


def import_bart(directory: Path, spm: Path | None = None) -> Imported:
    """Import a directory of `BartForConditionalGeneration` or `MBartForConditionalGeneration`.

    Args:
        directory: Directory with config.json, the weights and the tokenizer's files.
        spm: SentencePiece model. Default: sentencepiece.bpe.model in `directory`.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    config = read_config(directory, "bart", "mbart")
    generation = Generation.read(config)
    tokens = Tokens.read(config, spm)
    begins_with_language = _begins_with_language(config, generation, tokens)
    token_map, tokenizers = tokens.remap(generation)
    tensors = Tensors(directory, read_weights(directory))
    positions = read_positions(
        *(tensors.table(f"model.{stack}.embed_positions.weight")[_OFFSET:] for stack in STACKS)
    )
    norm = "pre" if config.values["model_type"] == "mbart" else "post"
    model = build(config, tensors, (token_map, token_map), positions, norm, norm_embedding=True)
    search = generation.search()
    if begins_with_language:
        search |= tokens.languages(languages_of(tokens.names, MBART50), generation)
        prompt = language_prompt(languages_of(token_map.names, MBART50))
    else:
        prompt = _begin(generation, token_map)
    return Imported(model, tokenizers, "bart-hf", search, prompt)


def _begins_with_language(config: Config, generation: Generation, tokens: Tokens) -> bool:
    """Return whether texts begin with their language rather than the begin token."""
    name = tokens.class_name(config)
    start = generation.start(len(tokens.names))
    languages = languages_of(tokens.names, MBART50)
    if name == "MBartTokenizer" or start is None or start in languages.values():
        raise InputError(
            f"{tokens.directory}: the tokenizer is that of mBART with 25 languages, which puts the "
            "source's language after the end token. translate-trt supports mBART-50 "
            "(MBart50Tokenizer) only."
        )
    if name not in (None, _LANGUAGES, *_BEGIN):
        raise InputError(
            f"{tokens.directory}: tokenizer_class is {name!r:.60}; supported: "
            f"{', '.join(_BEGIN)} and {_LANGUAGES}."
        )
    if name == _LANGUAGES and not languages:
        raise InputError(
            f"{tokens.directory}: the vocabulary has no language tokens such as de_DE; copy "
            "tokenizer.json or special_tokens_map.json as well."
        )
    return name == _LANGUAGES or (name is None and bool(languages))


def _begin(generation: Generation, token_map: TokenMap) -> Prompt:
    begin = generation.model.token("bos_token_id", token_map.count)
    forced = generation.config.optional_token("forced_bos_token_id", token_map.count)
    target = () if forced is None else (token_map.id_of(forced),)
    return Prompt(source=(token_map.id_of(begin),), target=target)


#: Recognized by its model type.
FORMAT = format_of_transformers(
    "bart-hf", "a BART or mBART-50 model saved by transformers", ("bart", "mbart"), import_bart
)

"""Importer of M2M100 and NLLB-200 models, which have the same architecture.

Source and translation begin with their language, and decoding starts with the end token. Positions
are tensor2tensor's sinusoids; the first one follows the id of the padding token, as in fairseq.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from translate_trt.export.importers.hugging_face.bart_family import build
from translate_trt.export.importers.hugging_face.directory import read_config, read_weights
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import Tokens
from translate_trt.export.importers.imported import Imported, ModelPart, is_sinusoid
from translate_trt.export.importers.languages import M2M100, NLLB, language_prompt, languages_of
from translate_trt.export.importers.model_format import format_of_transformers
from translate_trt.export.importers.settings_table import Config
from translate_trt.export.importers.tensors import STACKS, Tensors
from translate_trt.runtime.errors import InputError

# Rounding of sinusoids stored in 16 bits.
_SINUSOID_TOLERANCE = 5e-3
_CLASSES = {None, "M2M100Tokenizer", "NllbTokenizer"}


def import_m2m100(directory: Path, spm: Path | None = None) -> Imported:
    """Import a directory of `M2M100ForConditionalGeneration`.

    Args:
        directory: Directory with config.json, the weights and the tokenizer's files.
        spm: SentencePiece model. Default: sentencepiece.bpe.model in `directory`.

    Raises:
        InputError: A file is missing or damaged, or the model is not supported.
    """
    config = read_config(directory, "m2m_100")
    generation = Generation.read(config)
    tokens = Tokens.read(config, spm)
    _check_prompt(config, tokens)
    theirs = _languages(tokens.names)
    if not theirs:
        raise InputError(
            f"{directory}: the vocabulary has no language tokens such as __de__ or deu_Latn; "
            "copy tokenizer.json or special_tokens_map.json as well."
        )
    languages = tokens.languages(theirs, generation)
    token_map, tokenizers = tokens.remap(generation)
    tensors = Tensors(directory, read_weights(directory))
    first = config.integer("pad_token_id") + 1
    _check_positions(tensors, first)
    positions = ModelPart({"sinusoid": "tensor2tensor", "first_position": first}, {})
    model = build(config, tensors, (token_map, token_map), positions, norm="pre")
    prompt = language_prompt(_languages(token_map.names))
    return Imported(model, tokenizers, "m2m100-hf", generation.search() | languages, prompt)


def _languages(names: Sequence[str]) -> dict[str, int]:
    return languages_of(names, M2M100) or languages_of(names, NLLB)


def _check_prompt(config: Config, tokens: Tokens) -> None:
    """Refuse tokenizers that put other tokens around a text than M2M100's and NLLB's."""
    directory = tokens.directory
    name = tokens.class_name(config)
    if name not in _CLASSES:
        raise InputError(
            f"{directory}: tokenizer_class is {name!r:.60}; supported: M2M100Tokenizer and "
            "NllbTokenizer."
        )
    if tokens.settings.get("legacy_behaviour"):
        raise InputError(
            f"{directory}: legacy_behaviour of tokenizer_config.json is true: the source's "
            "language follows the end token, which translate-trt does not support. If the model "
            "was trained with the language before the source, like NLLB-200, set it to false."
        )
    if name is None and config.values.get("encoder_layers") != config.values.get("decoder_layers"):
        raise InputError(
            f"{directory}: tokenizer_class is not set, and encoder and decoder differ in their "
            "number of layers: the model may be SMaLL-100, which has M2M100's vocabulary and "
            "another prompt. If the model is M2M100 or NLLB, set tokenizer_class in "
            "tokenizer_config.json."
        )


def _check_positions(tensors: Tensors, first: int) -> None:
    """Check the sinusoids that older versions of transformers saved.

    Raises:
        InputError: A table differs.
    """
    for stack in STACKS:
        name = f"model.{stack}.embed_positions.weights"
        if name not in tensors:
            continue
        table = tensors.table(name)[first:]
        if not is_sinusoid(table, "tensor2tensor", first, _SINUSOID_TOLERANCE):
            raise InputError(
                f"{tensors.path}: {name} differs from the sinusoids of M2M100, which no version "
                "of transformers supports."
            )


#: Recognized by its model type.
FORMAT = format_of_transformers(
    "m2m100-hf", "an M2M100 or NLLB-200 model saved by transformers", ("m2m_100",), import_m2m100
)

"""M2M100 and NLLB-200 as Hugging Face's transformers keeps them, models of one architecture.

Source and translation each begin with the token of their language; decoding starts with the end
symbol. Positions are fairseq's: tensor2tensor's sinusoids from the one behind the padding symbol's
number on.
"""

from __future__ import annotations

from pathlib import Path

import torch

from translate_trt.export.importers.hugging_face.bart_family import IGNORED, convert
from translate_trt.export.importers.hugging_face.directory import Config, Tensors, read_weights
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import Tokens
from translate_trt.export.importers.imported import Imported, ModelPart, build_model
from translate_trt.export.importers.languages import M2M100, NLLB, language_prompt, languages_of
from translate_trt.runtime.errors import InputError
from translate_trt.train.model import sinusoid

# Of sinusoids that were stored in 16 bits.
_ROUNDING = 5e-3
_CLASSES = {None, "M2M100Tokenizer", "NllbTokenizer"}


def import_m2m100(directory: Path, pieces: Path | None = None) -> Imported:
    """The model in a directory of `M2M100ForConditionalGeneration` and its tokenizer.

    Args:
        directory: with config.json, the weights and the tokenizer's files.
        pieces: the SentencePiece model; None: sentencepiece.bpe.model in the directory.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
    """
    config = Config.read(directory, "m2m_100")
    generation = Generation.read(directory, config)
    tokens = Tokens.read(directory, config, pieces)
    name = tokens.class_name(config)
    if name not in _CLASSES:
        raise InputError(
            f"{directory}: tokenizer_class is {name!r:.60}; represented are M2M100Tokenizer and "
            "NllbTokenizer."
        )
    if tokens.settings.get("legacy_behaviour"):
        raise InputError(
            f"{directory}: legacy_behaviour of tokenizer_config.json is true: the source's "
            "language stands behind its end, which translate-trt does not represent. If the model "
            "was trained with it before the source, as NLLB-200 was, set it to false."
        )
    if name is None and config.values.get("encoder_layers") != config.values.get("decoder_layers"):
        raise InputError(
            f"{directory}: no tokenizer_class is named, and with more layers in the encoder the "
            "model may be SMaLL-100, which has M2M100's vocabulary and another prompt. If it is "
            "M2M100's or NLLB's, write tokenizer_class into tokenizer_config.json."
        )
    theirs = languages_of(tokens.names, M2M100) or languages_of(tokens.names, NLLB)
    if not theirs:
        raise InputError(
            f"{directory}: no token of the vocabulary is a language such as __de__ or deu_Latn; "
            "copy tokenizer.json or special_tokens_map.json too."
        )
    forced = generation.token("forced_bos_token_id", len(tokens.names))
    if forced not in (None, *theirs.values()):
        raise generation.config.setting_error("forced_bos_token_id", "a language's token is needed")
    token_map, tokenizers = tokens.arrange(tokens.token_map(config, generation))
    tensors = Tensors(directory, read_weights(directory))
    first = config.integer("pad_token_id") + 1
    _check_positions(tensors, first)
    positions = ModelPart({"sinusoid": "tensor2tensor", "first_position": first}, {})
    model, weights = convert(config, tensors, (token_map, token_map), positions, norm="pre")
    tensors.check_all_used(IGNORED)
    made = build_model(model, weights, directory)
    ours = languages_of(token_map.names, M2M100) or languages_of(token_map.names, NLLB)
    search = generation.search() | tokens.languages(theirs, forced)
    return Imported(made, tokenizers, "m2m100-hf", search, language_prompt(ours))


def _check_positions(tensors: Tensors, first: int) -> None:
    """Tables in the file, which current versions of transformers leave out, are the sinusoids.

    Raises:
        InputError: they are others.
    """
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weights"
        if name not in tensors:
            continue
        table = tensors.table(name)[first:]
        numbers = first + torch.arange(len(table))
        fits = table.shape[1] >= 4 and table.shape[1] % 2 == 0
        if not fits or not torch.allclose(
            table, sinusoid(numbers, table.shape[1], "tensor2tensor"), rtol=0, atol=_ROUNDING
        ):
            raise InputError(
                f"{tensors.directory}: {name} are not the sinusoids of M2M100, and no version of "
                "transformers says what to make of them."
            )

"""Marian models as Hugging Face's transformers keeps them (the OPUS-MT models, for example).

Their vocabulary is vocab.json; SentencePiece models of both languages only cut text. A piece that
vocab.json lacks stands for the unknown token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from translate_trt.export.importers.bart_family import convert
from translate_trt.export.importers.generation import Generation
from translate_trt.export.importers.hugging_face import (
    Config,
    Tensors,
    read_json_file,
    read_weights,
    tokens_by_id,
)
from translate_trt.export.importers.imported import Imported, Placed, build_model
from translate_trt.export.importers.languages import is_opus, opus_prompt
from translate_trt.export.importers.vocabulary import (
    Numbering,
    Special,
    arranged_tokenizers,
)
from translate_trt.runtime.errors import InputError

_POSITIONS = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}


def import_marian(directory: Path) -> Imported:
    """The model in a directory of `MarianMTModel.save_pretrained` and its tokenizer.

    Args:
        directory: with config.json, vocab.json, source.spm, target.spm and the weights.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
    """
    config = Config.read(directory, "marian")
    generation = Generation.read(directory, config)
    source, target = _numberings(directory, config, generation.never())
    files = directory / "source.spm", directory / "target.spm"
    (source, target), tokenizers = arranged_tokenizers(files, (source, target), is_opus)
    tensors = Tensors(directory, read_weights(directory))
    if config.values.get("normalize_before") or config.values.get("add_final_layer_norm"):
        raise config.refused("normalize_before", "Marian's models are post-norm")
    positions = Placed({"sinusoid": "concatenated"}, {})
    model, weights = convert(config, tensors, (source, target), positions)
    tensors.check_all_used(_POSITIONS)
    made = build_model(model, weights, directory)
    prompt = opus_prompt(source.names, tokenizers[0])
    return Imported(made, tokenizers, "marian-hf", generation.search(), prompt)


def _numberings(
    directory: Path, config: Config, never: Sequence[int]
) -> tuple[Numbering, Numbering]:
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
        return _numbering(source, config, None), _numbering(target, config, never)
    numbering = _numbering(source, config, never)
    return numbering, numbering


def _read_vocabulary(path: Path, size: int) -> list[str]:
    """Tokens by id."""
    values = read_json_file(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} is no JSON object of tokens and ids; copy the directory again.")
    return tokens_by_id(path, values, size)


def _numbering(tokens: list[str], config: Config, never: Sequence[int] | None) -> Numbering:
    """Numbers of the tokens.

    Args:
        tokens: by id.
        config: of the model.
        never: ids that are never generated; None: these are the source's, and none is.
    """
    start, pad = config.integer("decoder_start_token_id"), config.integer("pad_token_id")
    end = config.integer("eos_token_id")
    unknown = tokens.index("<unk>") if "<unk>" in tokens else None
    if never is None:
        places = [tokens.index(name) if name in tokens else None for name in ("<pad>", "</s>")]
        return Numbering(tokens, Special(places[0], unknown, None, places[1]))
    if max(start, pad, end) >= len(tokens):
        raise config.refused("decoder_start_token_id", f"there are {len(tokens)} tokens")
    return Numbering(tokens, Special(pad, unknown, start, end), never)

"""BART and mBART as Hugging Face's transformers keeps them, where a SentencePiece model cuts text.

What stands around texts is the tokenizer's: BART's and BARThez's put a begin symbol before the
source, mBART-50's the source's language, and its translations begin with theirs. Learned positions
have two rows before the first.
"""

from __future__ import annotations

from pathlib import Path

from translate_trt.export.importers.hugging_face.bart_family import IGNORED, convert
from translate_trt.export.importers.hugging_face.directory import Config, Tensors, read_weights
from translate_trt.export.importers.hugging_face.generation import Generation
from translate_trt.export.importers.hugging_face.tokens import Tokens
from translate_trt.export.importers.imported import Imported, build_model, read_positions
from translate_trt.export.importers.languages import MBART50, language_prompt, languages_of
from translate_trt.export.importers.vocabulary import TokenMap
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError

_BEGIN = ("BartTokenizer", "BarthezTokenizer")
_LANGUAGES = "MBart50Tokenizer"
# Rows of a table of positions that no token has; fairseq's padding symbol is number 1.
_OFFSET = 2


def import_bart(directory: Path, pieces: Path | None = None) -> Imported:
    """The model in a directory of `BartForConditionalGeneration` or mBART's, and its tokenizer.

    Args:
        directory: with config.json, the weights and the tokenizer's files.
        pieces: the SentencePiece model; None: sentencepiece.bpe.model in the directory.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented; the message names what.
    """
    config = Config.read(directory, "bart", "mbart")
    generation = Generation.read(directory, config)
    tokens = Tokens.read(directory, config, pieces)
    begins_with_language = _begins_with_language(config, generation, tokens)
    token_map, tokenizers = tokens.arrange(tokens.token_map(config, generation))
    tensors = Tensors(directory, read_weights(directory))
    source, target = (
        tensors.table(f"model.{stack}.embed_positions.weight")[_OFFSET:]
        for stack in ("encoder", "decoder")
    )
    norm = "pre" if config.values["model_type"] == "mbart" else "post"
    positions = read_positions(source, target)
    model, weights = convert(
        config, tensors, (token_map, token_map), positions, norm, norm_embedding=True
    )
    tensors.check_all_used(IGNORED)
    made = build_model(model, weights, directory)
    forced, search = generation.token("forced_bos_token_id", len(tokens.names)), generation.search()
    if not begins_with_language:
        prompt = _begin(config, token_map, forced)
        return Imported(made, tokenizers, "bart-hf", search, prompt)
    theirs = languages_of(tokens.names, MBART50)
    if forced not in (None, *theirs.values()):
        raise generation.config.setting_error("forced_bos_token_id", "a language's token is needed")
    search |= tokens.languages(theirs, forced)
    prompt = language_prompt(languages_of(token_map.names, MBART50))
    return Imported(made, tokenizers, "bart-hf", search, prompt)


def _begins_with_language(config: Config, generation: Generation, tokens: Tokens) -> bool:
    """Whether texts begin with their languages, or else with the begin symbol or nothing."""
    name = tokens.class_name(config)
    start = generation.start(config, len(tokens.names))
    languages = languages_of(tokens.names, MBART50)
    if name == "MBartTokenizer" or start is None or start in languages.values():
        raise InputError(
            f"{tokens.directory}: its tokenizer is mBART's of 25 languages, which puts the "
            "source's language behind its end, and translate-trt does not represent that. Models "
            "of mBART-50 (MBart50Tokenizer) are imported."
        )
    if name not in (None, _LANGUAGES, *_BEGIN):
        raise InputError(
            f"{tokens.directory}: tokenizer_class is {name!r:.60}; represented are "
            f"{', '.join(_BEGIN)} and {_LANGUAGES}."
        )
    if name == _LANGUAGES and not languages:
        raise InputError(
            f"{tokens.directory}: no token of the vocabulary is a language such as de_DE; copy "
            "tokenizer.json or special_tokens_map.json too."
        )
    return name == _LANGUAGES or (name is None and bool(languages))


def _begin(config: Config, token_map: TokenMap, forced: int | None) -> Prompt:
    target = () if forced is None else (token_map.id_of(forced),)
    begin = config.token("bos_token_id", token_map.count)
    return Prompt(source=(token_map.id_of(begin),), target=target)

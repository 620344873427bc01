"""Models in CTranslate2's format, in any of its precisions.

Their weights are dequantized: W = stored / scale, one scale per row in 8 bits and one per matrix in
16. Every array must find its place in `ModelConfig`; one that does not is named and the model
refused, so that nothing the model needs is left out silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from translate_trt.export.importers.ctranslate2.conversion import convert
from translate_trt.export.importers.ctranslate2.model_bin import read_model_file
from translate_trt.export.importers.ctranslate2.model_directory import Settings, Vocabularies
from translate_trt.export.importers.ctranslate2.variables import Variables, count_layers
from translate_trt.export.importers.imported import (
    Imported,
    build_model,
    find_file,
)
from translate_trt.export.importers.languages import (
    detect_languages,
    is_opus_language,
    language_prompt,
    languages_among,
    opus_prompt,
)
from translate_trt.export.importers.prompt_format import Format
from translate_trt.export.importers.vocabulary import (
    make_tokenizers,
)
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError

# SentencePiece models that a directory may have, of the source or of both sides.
_TOKENIZERS = ("source.spm", "sentencepiece.model", "sentencepiece.bpe.model")
# OpenNMT's name of the padding symbol; no other toolkit's vocabularies have it. Its models never
# read an end symbol behind the source unless add_source_eos says so.
_OPENNMT = "<blank>"


def import_ctranslate2(
    directory: Path,
    source_model: Path | None = None,
    target_model: Path | None = None,
    source_format: str | None = None,
    target_prefix: str | None = None,
) -> Imported:
    """The model in a directory that CTranslate2's converters made.

    Args:
        directory: with model.bin and the vocabularies.
        source_model: SentencePiece model of the source, where the vocabulary is of its pieces;
            None: one beside model.bin, or there is none and tokens are words.
        target_model: of the target; None: as the source's.
        source_format: what the encoder reads around a text, such as "<s> {text} </s>"; None: the
            model's files say, or it is of a known family.
        target_prefix: tokens that translations begin with, such as "{target_language}"; None: as
            of the source.

    Raises:
        InputError: a file is missing or damaged, or the model is of a kind that is not
            represented, or needs a `source_format`; the message names what.
    """
    if not directory.is_dir():
        raise InputError(f"there is no directory {directory}; give the one with model.bin in it.")
    variables = Variables(directory / "model.bin", read_model_file(directory / "model.bin"))
    settings = Settings.read(directory, variables)
    vocabularies = Vocabularies.read(directory, variables, settings)
    source_model = source_model or find_file(directory, _TOKENIZERS)
    target_model = target_model or find_file(directory, ("target.spm",)) or source_model
    spec = _prompt_spec(directory, variables, settings, vocabularies, source_format, target_prefix)
    several = bool(spec.languages)
    token_maps, tokenizers = make_tokenizers(
        (source_model, target_model), (vocabularies.source, vocabularies.target), is_opus_language,
        is_hidden=lambda token: several,
    )  # fmt: skip
    vocabularies = Vocabularies(*token_maps)
    config, weights = convert(variables, settings, vocabularies, spec.source_end)
    variables.check_all_used()
    model = build_model(config, weights, directory)
    prompt = spec.prompt or opus_prompt(vocabularies.source.names, tokenizers[0])
    return Imported(model, tokenizers, "ctranslate2", settings.search(), prompt)


@dataclass(frozen=True)
class _PromptSpec:
    """Tokens around texts.

    Attributes:
        source_end: as in `ModelConfig`.
        languages: tokens of languages are part of the prompt.
        prompt: by our ids; None: what the vocabulary has of OPUS-MT's languages.
    """

    source_end: bool
    languages: bool = False
    prompt: Prompt | None = None


def _prompt_spec(
    directory: Path,
    variables: Variables,
    settings: Settings,
    vocabularies: Vocabularies,
    source_format: str | None,
    target_prefix: str | None,
) -> _PromptSpec:
    """Tokens around texts: from the caller, from the files, or those of a known family."""
    source, target = vocabularies.source.names, vocabularies.target.names
    if source_format is not None or target_prefix is not None:
        fallback = "{text} " + settings.end if _known_end(variables, settings) else None
        if not fallback and _OPENNMT in source:
            fallback = "{text}"
        chosen = source_format or fallback
        if chosen is None:
            raise _unknown_format(directory)
        found = Format.parse(chosen, target_prefix or "", settings.end)
        if settings.source_end and not found.source_end:
            raise InputError(
                f"--source-format {chosen!r} does not end with {settings.end}, but add_source_eos "
                f"in {directory / 'config.json'} says that sources do."
            )
        prompt = found.prompt((source, target), (languages_among(source), languages_among(target)))
        return _PromptSpec(found.source_end, found.has_languages, prompt)
    # Requests bring the languages and the end of the source. SMaLL-100 has the vocabulary of
    # M2M100 and another prompt; unlike all published models of these families, it has more layers
    # in the encoder.
    family = detect_languages(target) if vocabularies.source is vocabularies.target else {}
    if family and count_layers(variables, "encoder") == count_layers(variables, "decoder"):
        return _PromptSpec(True, True, language_prompt(family))
    if not family and _known_end(variables, settings):
        return _PromptSpec(True)
    if not family and _OPENNMT in source:
        return _PromptSpec(False)
    raise _unknown_format(directory)


def _known_end(variables: Variables, settings: Settings) -> bool:
    """Whether sources surely end with the end symbol: it is said, or the model is Marian's."""
    return settings.source_end or variables.zero_start()


def _unknown_format(directory: Path) -> InputError:
    return InputError(
        f"{directory}: add_source_eos is false, so that each request to CTranslate2 brings what "
        "the model reads around a text, and the files do not say what that is. Say it with "
        "--source-format: '{text} </s>', '<s> {text} </s>' (BART, BARThez), "
        "'{source_language} {text} </s>' with --target-prefix '{target_language}' (M2M100, NLLB, "
        "mBART-50), '{target_language} {text} </s>' (SMaLL-100), or '{text}' if nothing is added "
        "(docs/import.md)."
    )

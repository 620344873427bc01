"""Language tokens of multilingual vocabularies, and prompts made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sentencepiece

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.train.data.encode import LANGUAGE_TAG

# Patterns of language tokens by model family; the group is the language.
#: __de__: 100 languages, or 8 in the WMT21 models.
M2M100 = re.compile(r"__([a-z]{2,3})__")
#: deu_Latn: 202 languages.
NLLB = re.compile(r"([a-z]{3}_[A-Z][a-z]{3})")
#: de_DE: 52 languages.
MBART50 = re.compile(r"([a-z]{2}_[A-Z]{2})")
#: >>deu<<: any number of languages, before the source.
OPUS = re.compile(r">>([^<>\s]+)<<")
#: <2de>: any number of languages, before the source (MADLAD-400).
TAGS = re.compile(LANGUAGE_TAG.format("([A-Za-z_]+)"))

# Families whose translations begin with the language, and the number of languages of the smallest
# published model.
_TARGET_FAMILIES = {M2M100: 8, NLLB: 202, MBART50: 52}


def languages_of(names: Sequence[str], family: re.Pattern[str]) -> dict[str, int]:
    """Return token ids by language."""
    matches = ((family.fullmatch(name), index) for index, name in enumerate(names))
    return {match[1]: index for match, index in matches if match is not None}


def detect_languages(names: Sequence[str]) -> dict[str, int]:
    """Return token ids by language, if the vocabulary has as many as a published model family.

    A few tokens of the form may be words.
    """
    for family, count in _TARGET_FAMILIES.items():
        languages = languages_of(names, family)
        if len(languages) >= count:
            return languages
    return {}


def languages_among(names: Sequence[str]) -> dict[str, int]:
    """Return token ids by language, of the family with the most tokens in the vocabulary."""
    return max((languages_of(names, family) for family in _TARGET_FAMILIES), key=len)


def language_prompt(languages: dict[str, int], **more: Any) -> Prompt:
    """Return a prompt in which source and translation begin with their language."""
    return Prompt(source_languages=languages, target_languages=languages, **more)


def is_opus_language(token: str) -> bool:
    """Return whether a token names the target language before a source, such as >>deu<<."""
    return OPUS.fullmatch(token) is not None


def opus_prompt(names: Sequence[str], tokenizer: bytes) -> Prompt:
    """Return a prompt with the target language before the source, for >>deu<< tokens.

    A language is omitted if the tokenizer encodes it as several tokens, such as a space followed by
    a user-defined symbol: the model was not trained with the single token.

    Args:
        names: Source tokens by our id.
        tokenizer: SentencePiece model of the source, with our ids.
    """
    languages = languages_of(names, OPUS)
    if not languages:
        return Prompt()
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer)
    kept = {
        language: index
        for language, index in languages.items()
        if index not in (encoded := processor.encode(names[index])) or encoded == [index]
    }
    return Prompt(target_languages=kept, target_side="source") if kept else Prompt()


def tag_prompt(names: Sequence[str], tokenizer: bytes) -> Prompt:
    """Return a prompt with the target language before the source, for tokens such as <2de>.

    Args:
        names: Tokens by our id.
        tokenizer: SentencePiece model with our ids, which may put a space before them.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer)
    languages = languages_of(names, TAGS)
    encoded = {language: processor.encode(names[index]) for language, index in languages.items()}
    before = {tuple(tokens[:-1]) for tokens in encoded.values()}
    whole = all(tokens[-1:] == [languages[language]] for language, tokens in encoded.items())
    if len(before) != 1 or not whole:
        return Prompt()
    return Prompt(source=before.pop(), target_languages=languages, target_side="source")

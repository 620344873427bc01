"""Tokens that say languages: which of a vocabulary they are, and the prompt that has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sentencepiece

from translate_trt.runtime.bundle.prompt import Prompt


@dataclass(frozen=True)
class Family:
    """Models that name languages alike.

    Attributes:
        pattern: of the tokens; its group is the language.
        fewest: so many languages the smallest published model has.
    """

    pattern: re.Pattern[str]
    fewest: int


#: __de__: 100 languages, or the 8 of WMT21's.
M2M100 = Family(re.compile(r"__([a-z]{2,3})__"), 8)
#: deu_Latn: 202 languages.
NLLB = Family(re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), 202)
#: de_DE: 52 languages.
MBART50 = Family(re.compile(r"([a-z]{2}_[A-Z]{2})"), 52)
#: >>deu<<: any number, before the source.
OPUS = Family(re.compile(r">>([^<>\s]+)<<"), 1)

_OF_TRANSLATIONS = (M2M100, NLLB, MBART50)


def languages_of(names: Sequence[str], family: Family) -> dict[str, int]:
    """By language, its place among the names."""
    found = ((family.pattern.fullmatch(name), place) for place, name in enumerate(names))
    return {match[1]: place for match, place in found if match is not None}


def detect_languages(names: Sequence[str]) -> dict[str, int]:
    """By language, its place, where a vocabulary has all of a family that begins translations.

    One such token alone may be a word.
    """
    for family in _OF_TRANSLATIONS:
        found = languages_of(names, family)
        if len(found) >= family.fewest:
            return found
    return {}


def languages_among(names: Sequence[str]) -> dict[str, int]:
    """By language, its place, of the family that most of the vocabulary's languages are of."""
    return max((languages_of(names, family) for family in _OF_TRANSLATIONS), key=len)


def language_prompt(languages: dict[str, int], **more: Any) -> Prompt:
    """Source and translation begin with their languages."""
    return Prompt(source_languages=languages, target_languages=languages, **more)


def is_opus_language(token: str) -> bool:
    """Whether a token at the start of a source says what to translate into, such as >>deu<<."""
    return OPUS.pattern.fullmatch(token) is not None


def opus_prompt(names: Sequence[str], tokenizer: bytes) -> Prompt:
    """What to translate into stands before the source, if the vocabulary has such tokens.

    Left out are those that the tokenizer cuts text into with others around them (a symbol of
    SentencePiece's, behind its sign of a space): one token would not be what was trained.

    Args:
        names: of the source's tokens, by our id.
        tokenizer: SentencePiece model of the source, with these ids.
    """
    found = languages_of(names, OPUS)
    if not found:
        return Prompt()
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer)
    kept = {
        language: place
        for language, place in found.items()
        if place not in (cut := processor.encode(names[place])) or cut == [place]
    }
    return Prompt(target_languages=kept, target_side="source") if kept else Prompt()

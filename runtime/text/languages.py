"""Language codes of the API and of models: "en" is NLLB's "eng_Latn" and mBART's "en_XX"."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

#: BCP 47 codes for Argos Translate's own, which clients of LibreTranslate may send, too.
ARGOS_CODES = {"pb": "pt-BR", "zt": "zh-Hant"}

# Codes that clients may send; others are unknown without a look-up.
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8}){0,3}")
# Region that mBART-50 writes for languages without one.
_NO_REGION = "XX"
# Distance at which a language of `langcodes` is the same one for readers: another region or script.
_SAME_LANGUAGE = 9
_CACHED = 4096


@lru_cache(_CACHED)
def public_code(code: str) -> str:
    """Return the shortest BCP 47 code for a model's code, such as "de" for "deu_Latn".

    A code that names no language, or any code where langcodes is not installed, is returned
    unchanged but for its underscores.
    """
    tag = _parse(code)
    return code.replace("_", "-") if tag is None else tag


@lru_cache(_CACHED)
def language_name(code: str) -> str:
    """Return the name of a language in English, or the code if it names no language."""
    tag = _parse(code)
    return code if tag is None else str(_langcodes().Language.get(tag).display_name())


def match_code(code: str, available: tuple[str, ...]) -> str | None:
    """Return the available code of the same language, or None.

    The code itself comes first, then the nearest in script and region: "en" for "en-US", and
    "zh-Hant" for "zh-TW".
    """
    if code in available:
        return code
    return _nearest(code, available) if _CODE.fullmatch(code) else None


@lru_cache(_CACHED)
def _nearest(code: str, available: tuple[str, ...]) -> str | None:
    tag = _parse(code)
    if tag is None:
        return None
    langcodes = _langcodes()
    language = langcodes.Language.get(tag).language
    same = [one for one in available if one.partition("-")[0] == language]
    if tag in same or not same:
        return tag if same else None
    found = langcodes.closest_supported_match(tag, same, max_distance=_SAME_LANGUAGE)
    return None if found is None else str(found)


def is_same_language(first: str | None, second: str | None) -> bool:
    """Return whether two codes name the same language, whatever the region and the script."""
    return None not in (first, second) and base_of(first or "") == base_of(second or "")


def base_of(code: str) -> str:
    """Return the language of a code without script and region, such as "de" of "de_AT"."""
    return public_code(code).partition("-")[0].lower()


def _langcodes() -> Any:
    """Import langcodes when a code is looked up: it is a package of extras, and takes 50 ms."""
    try:
        import langcodes
    except ModuleNotFoundError:
        return None
    return langcodes


def _parse(code: str) -> str | None:
    code = ARGOS_CODES.get(code, code)
    if not _CODE.fullmatch(code) or (langcodes := _langcodes()) is None:
        return None
    try:
        tag = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    except ValueError:
        return None
    if tag.territory == _NO_REGION:
        tag = langcodes.Language.make(language=tag.language, script=tag.script)
    return str(tag.simplify_script().to_tag()) if tag.is_valid() else None

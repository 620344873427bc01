"""Detection of a text's language, by the package py3langid where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.text.sentences import is_translatable

#: Code of the language of a text that has none, such as a number.
UNDETERMINED = "und"
_NO_LANGUAGE = "zxx"  # the detector's own label of such texts
#: Characters that suffice; more of them would only take time.
MOST_CHARACTERS = 2_000
# Least probability of a further answer relative to the first.
_LEAST_SHARE = 0.1
# A preferred language is ruled out in a text of so many bytes of UTF-8 where another of the
# detector's 140 languages is so many times as likely: of 1,000 lines of newstest2014, and of their
# first 1, 2, 3, 5 and 10 words, this rules out English and German for none of their own, and
# English for 97 % of the French and 98 % of the German lines, and for 51 % and 70 % of their first
# 5 words; 500 sentences each of Linux's message catalogues in Spanish, Italian, Portuguese, Russian
# and Chinese give 93 to 100 %.
_RULED_OUT = 1_000
_LEAST_BYTES = 25


def available() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("py3langid") is not None


def prepare() -> None:
    """Read the detector's model, if there is one, which takes longer than a request may."""
    if available():
        _identifier()


def detect(text: str, languages: Sequence[str]) -> list[dict[str, Any]]:
    """Return languages with a confidence in percent, the most likely first.

    Args:
        text: Text of any length.
        languages: Public codes of the languages that are preferred to others.

    Returns:
        The preferred languages; others where all of these are ruled out, or unknown to the
        detector; or `UNDETERMINED`.

    Raises:
        HttpError: The package is not installed.
    """
    if not available():
        raise HttpError(
            501,
            "this server detects no languages: name the source language, or install the "
            "detector with pip install 'translate-trt[detect]'",
        )
    if not is_translatable(text):
        return [{"confidence": 0.0, "language": UNDETERMINED}]
    text = text[:MOST_CHARACTERS]
    ranked = _identifier().rank(text)
    # Of several scripts or regions of a language the first one.
    codes = {code.partition("-")[0]: code for code in reversed(languages)}
    known = [(codes[code], share) for code, share in ranked if code in codes]
    long_enough = len(text.encode(errors="replace")) >= _LEAST_BYTES
    if not known or (long_enough and known[0][1] * _RULED_OUT <= ranked[0][1]):
        known = ranked
    return [
        {
            "confidence": round(100 * share, 1),
            "language": UNDETERMINED if code == _NO_LANGUAGE else code,
        }
        for code, share in known
        if share >= _LEAST_SHARE * known[0][1]
    ]


def source_of(detected: dict[str, Any], target: str) -> str:
    """Return the source language of a text: its target, if there is nothing to translate."""
    language: str = detected["language"]
    return target if language == UNDETERMINED else language


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

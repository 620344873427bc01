"""Detection of a text's language, by the package py3langid where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

from translate_trt.runtime.serve.http.http_error import HttpError
from translate_trt.runtime.text.translatable import is_translatable

#: Code of the language of a text that has none, such as a number.
UNDETERMINED = "und"
_NO_LANGUAGE = "zxx"  # the detector's own label of such texts
# Characters that suffice; more of them would only take time.
_MOST_CHARACTERS = 2_000
# Least probability of an answer relative to the most likely of the detector's 140 languages. Of
# news texts of five words, it rejects 0.2 % of the English and German ones as such, and 96 % of
# the French ones as English or German.
_LEAST_SHARE = 0.1


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
        languages: Public codes of the languages that are preferred to others nearly as likely.

    Returns:
        Languages among all that the detector knows: the preferred ones, or others if none of these
        is likely, or `UNDETERMINED`.

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
    ranked = _identifier().rank(text[:_MOST_CHARACTERS])
    likely = {code: share for code, share in ranked if share >= _LEAST_SHARE * ranked[0][1]}
    # Of several scripts or regions of a language the first one.
    codes = {code.partition("-")[0]: code for code in reversed(languages)}
    known = {codes[code]: share for code, share in likely.items() if code in codes}
    return [
        {
            "confidence": round(100 * share, 1),
            "language": UNDETERMINED if code == _NO_LANGUAGE else code,
        }
        for code, share in (known or likely).items()
    ]


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

"""Detection of a text's language, by the package py3langid where it is installed."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from functools import cached_property
from typing import Any

from translate_trt.runtime.serve.http.http_error import HttpError

# Characters that suffice; more of them would only take time.
_MOST_CHARACTERS = 2_000


class LanguageDetector:
    """Detector among the source languages of a server.

    Args:
        languages: Public codes of the source languages.
    """

    def __init__(self, languages: tuple[str, ...]) -> None:
        self._languages = languages

    @staticmethod
    def available() -> bool:
        """Return whether the package is installed."""
        return importlib.util.find_spec("py3langid") is not None

    def prepare(self) -> None:
        """Read the detector's model, which takes longer than a request may."""
        with suppress(HttpError):
            _ = self._identifier

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return languages with a confidence in percent, the most likely first.

        Raises:
            HttpError: The package is not installed, or knows none of the languages.
        """
        if not self.available():
            raise HttpError(
                501,
                "this server detects no languages: name the source language, or install the "
                "detector with pip install 'translate-trt[detect]'",
            )
        ranked = self._identifier.rank(text[:_MOST_CHARACTERS])
        return [
            {"confidence": round(100 * float(share), 1), "language": self._codes[code]}
            for code, share in ranked
            if share >= ranked[0][1] / 10
        ]

    @cached_property
    def _codes(self) -> dict[str, str]:
        """Public code by the code of the package, for the languages that both know."""
        known = set(self._full.labels)
        found: dict[str, str] = {}
        for code in self._languages:
            base = code.partition("-")[0]
            if base in known:
                found.setdefault(base, code)
        if not found:
            raise HttpError(501, "the detector knows none of this server's source languages")
        return found

    @cached_property
    def _full(self) -> Any:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    @cached_property
    def _identifier(self) -> Any:
        """Identifier among these languages alone."""
        self._full.set_languages(list(self._codes))
        return self._full

"""Sample sentences of several languages, and the languages in which a model is tried on them."""

from __future__ import annotations

import importlib.resources
import shlex
from collections.abc import Sequence

from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.text.sentences import base_language

#: Languages of the samples, the preferred ones first.
SAMPLES = ("en", "de", "fr", "es", "it", "pt", "ru", "zh")


def sample(language: str) -> list[str]:
    """Return the sentences of a language of `SAMPLES`; the files are parallel."""
    path = importlib.resources.files("translate_trt.export.hub") / "samples" / f"{language}.txt"
    return path.read_text(encoding="utf-8").splitlines()


def sampled(code: str | None) -> str | None:
    """Return the language of `SAMPLES` that a code is of; None for any other code."""
    base = base_language(code)
    return base if base in SAMPLES else None


def language_options(manifest: Manifest) -> dict[str, str]:
    """Return the options `source_language` and `target_language` of a trial translation.

    A multilingual model translates between its default languages or, without defaults, between the
    first two languages of `SAMPLES` that it has. A bilingual model needs no options.
    """
    options: dict[str, str] = {}
    defaults = manifest.search_options()
    source = manifest.source_language
    if manifest.prompt.source_languages:
        source = defaults.source_language or _preferred(manifest.source_languages, None)
        options["source_language"] = source
    if manifest.prompt.target_languages:
        options["target_language"] = defaults.target_language or _preferred(
            manifest.target_languages, sampled(source)
        )
    return options


def language_flags(manifest: Manifest) -> str:
    """Return the flags of `translate` for `language_options`, each after a space."""
    return "".join(
        f" --{name.replace('_', '-')} {shlex.quote(code)}"
        for name, code in language_options(manifest).items()
    )


def _preferred(codes: Sequence[str], used: str | None) -> str:
    for language in SAMPLES:
        for code in codes:
            if base_language(code) == language != used:
                return code
    return codes[0]

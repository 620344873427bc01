"""Runtime for translation bundles; PyTorch is not required."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from translate_trt.runtime.confidence import Word
    from translate_trt.runtime.errors import (
        BackendError,
        BundleError,
        CapacityError,
        CheckpointError,
        DownloadError,
        InputError,
        OptionError,
        OutputError,
        TranslateTrtError,
    )
    from translate_trt.runtime.model_store import installed_bundle
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.parsing import Parse, Parser
    from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
    from translate_trt.runtime.service import TranslationService
    from translate_trt.runtime.text.glossary import Glossary, Term
    from translate_trt.runtime.translator import Translator

    __version__: str

__all__ = [
    "BackendError",
    "BundleError",
    "CapacityError",
    "CheckpointError",
    "DownloadError",
    "Glossary",
    "Hypothesis",
    "InputError",
    "OptionError",
    "OutputError",
    "Parse",
    "Parser",
    "SearchOptions",
    "Term",
    "TextHypothesis",
    "TranslateTrtError",
    "Translation",
    "TranslationService",
    "Translator",
    "Word",
    "__version__",
    "installed_bundle",
]

_HOME = {
    "Glossary": "text.glossary",
    "Hypothesis": "results",
    "Parse": "parsing",
    "Parser": "parsing",
    "SearchOptions": "options",
    "Term": "text.glossary",
    "TextHypothesis": "results",
    "Translation": "results",
    "TranslationService": "service",
    "Translator": "translator",
    "Word": "confidence",
    "installed_bundle": "model_store",
}


def __getattr__(name: str) -> object:
    # Imported on first use: every module of the package passes through here, and
    # `translate-trt --help` should not wait for numpy.
    if name == "__version__":
        return importlib.import_module(f"{__name__}.version").version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)

"""Bundles in, translations out. Needs no torch; `from translate_trt.runtime import Translator`."""

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.translator import Translator

__all__ = [
    "Hypothesis",
    "SearchOptions",
    "TextHypothesis",
    "TranslateTrtError",
    "Translation",
    "Translator",
]

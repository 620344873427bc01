"""Translation of texts with markup by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from translate_trt.runtime.line_names import NUMBERED, LineNames
from translate_trt.runtime.results import Translation
from translate_trt.runtime.text.markup import translate_markup

Translate = Callable[[Sequence[str]], Sequence[Translation]]


def translate_with(
    translate: Translate,
    texts: Sequence[str],
    markup: str,
    whole: bool,
    names: LineNames = NUMBERED,
) -> list[Translation]:
    """Translate texts with markup by a function that translates plain texts."""
    translating = translate_markup(texts, markup, whole, names)
    try:
        plain = next(translating)
        while True:
            plain = translating.send(translate(plain.texts))
    except StopIteration as end:
        translations: list[Translation] = end.value
        return translations

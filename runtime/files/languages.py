"""Codes of languages in files."""

from __future__ import annotations

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.text.sentences import base_language


def language_tag(code: str) -> str:
    """Return the tag (BCP 47) of a model's code: "de" of "deu_Latn", as it is without langcodes."""
    try:
        import langcodes

        return str(langcodes.standardize_tag(code))
    except (ImportError, ValueError):
        return code.replace("_", "-")


def is_same_language(first: str | None, second: str | None) -> bool:
    """Return whether two codes name the same language, whatever the region and the script."""
    if first is None or second is None:
        return False
    return _base(first) == _base(second)


def _base(code: str) -> str:
    try:
        base = base_language(code.replace("-", "_"))
    except OptionError:  # langcodes is missing
        base = None
    return base or code.replace("_", "-").split("-")[0].lower()

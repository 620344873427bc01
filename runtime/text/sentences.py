"""Sentence boundaries of a text, found by the rules of its language.

The rules are those of the package sentencex; the package langcodes reads language codes. Both come
with `pip install 'translate-trt[split]'` and are imported on first use.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from ctypes import byref, c_int32
from functools import cache
from itertools import pairwise
from typing import Any

from translate_trt.runtime.arguments import describe
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.native import required_library
from translate_trt.runtime.native.values import as_text

log = logging.getLogger("translate_trt")

#: Characters that the library gets at a time. Its time grows with the square of the length of some
#: texts, such as one with many opening quotation marks.
WINDOW = 4096

# Languages that are written without spaces between sentences.
_WITHOUT_SPACES = frozenset({"ja", "yue", "zh"})

# White space and control characters, which the library gets as spaces (sentencex 1.0.32 panics at
# U+0085 and U+2028 before a full stop), and lone surrogates, which its UTF-8 strings cannot have.
_SPACES = re.compile("[\\s\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# The end of a part that ends with one letter and a full stop, a capital if its script has capitals.
_INITIAL = re.compile(r"(?<!\w)(?![a-z])[^\W\d_]\.\s*$")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")

# Returns the offsets at which the sentences of a text begin.
_Find = Callable[[str], list[int]]

# Scripts that are written without spaces between words: Thai to Myanmar, Khmer, Tai scripts,
# Balinese and Javanese, then Chinese and Japanese. Korean has spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9df"
    "\u2e80-\u2fdf\u3005-\u3007\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


@cache
def base_language(code: str | None) -> str | None:
    """Return the language of a model's code: "de" of "de", "deu", "deu_Latn" and "de_DE".

    Args:
        code: A code in the form of any model; None if unknown.

    Returns:
        The shortest ISO 639 code of the language, or of the language that includes it ("zh" of
        "cmn_Hans"); None for a code that names no language.

    Raises:
        OptionError: The package langcodes is not installed.
    """
    if code is None or not _LANGUAGE.fullmatch(code):
        return None
    langcodes = _langcodes()
    try:
        tag = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    except langcodes.LanguageTagError:
        return None
    # The region of mBART's "en_XX" is none; only the language must exist.
    language = langcodes.Language.make(language=tag.language)
    return str(tag.language) if tag.language and language.is_valid() else None


def is_translatable(text: str) -> bool:
    """Return whether a text has a letter (Unicode category L), and is no URL or e-mail address.

    Others, such as numbers, dates, prices and time codes, have nothing to translate.

    Raises:
        BackendError: libtranslate_trt is not built.
    """
    calls, found = required_library("this"), c_int32()
    calls.tt_is_translatable(as_text(text), byref(found))
    return bool(found.value)


def is_unspaced(character: str) -> bool:
    """Return True for a character of a script that is written without spaces between words."""
    return _UNSPACED.match(character) is not None


def writes_spaces(language: str | None) -> bool:
    """Return False if sentences of the language (`base_language`) follow without a space."""
    return language not in _WITHOUT_SPACES


class SentenceRules:
    """Rules for the sentence boundaries of one language. Thread-safe.

    Args:
        language: Language of the texts (`base_language`). The library chooses the rules of a
            related language, or else of English, for a language that it does not know.

    Raises:
        OptionError: The package sentencex is not installed.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._find = _finder(language)

    def split(self, text: str) -> list[str]:
        """Cut a text into its sentences, each with the white space that follows it.

        Parts without letters go with a neighbour, because a model translates them badly alone:
        "3." with the sentence that follows, "..." with the one before. No sentence ends at an
        initial: the library takes "M." in the French "M. Dupont" for the number of a list item.
        An address, which has no white space, stays whole.

        Returns:
            The sentences, which together are the text.
        """
        if text and not _SPACES.search(text.rstrip()) and not is_translatable(text):
            return [text]
        starts = sentence_starts(_SPACES.sub(" ", text), self._find)
        ends: list[int] = []
        held = has_letters = False  # of the parts after the last end
        for begin, end in pairwise([*starts, len(text)]):
            part = text[begin:end]
            has_letters = has_letters or any(map(str.isalpha, part))
            if ends and not held and not any(map(str.isalnum, part)):
                ends[-1] = end
            elif has_letters and not _INITIAL.search(part):
                ends.append(end)
                held = has_letters = False
            else:
                held = True
        if held and ends and not has_letters:
            ends[-1] = len(text)
        elif held:
            ends.append(len(text))
        return [text[begin:end] for begin, end in pairwise([0, *ends])]


def sentence_starts(text: str, find: Callable[[str], list[int]], window: int = WINDOW) -> list[int]:
    """Find the starts of all sentences in time proportional to the length of the text.

    `find` gets overlapping windows of the text. Each begins at a sentence of the second half of the
    window before, or at its end if no sentence begins there.

    Args:
        text: Text of any length.
        find: Function that returns the starts of sentences in a short text, in ascending order.
        window: Maximum length of the texts that `find` gets.

    Returns:
        Offsets in ascending order, the first of which is 0; none for an empty text.
    """
    starts = [0] if text else []
    begin = 0
    while begin < len(text):
        end = begin + window
        found = [begin + start for start in find(text[begin:end]) if start > 0]
        # The last sentence of a window may continue, or be cut differently with its continuation.
        resume = end
        if end < len(text) and found and found[-1] >= begin + window // 2:
            resume = found[-1]
        starts += found
        begin = resume
    return starts


#: Returns the rules of a language (`base_language`), which are loaded once.
sentence_rules = cache(SentenceRules)


def chosen_rules(split_sentences: bool | str, source_language: str | None) -> SentenceRules | None:
    """Return the rules that an argument `split_sentences` asks for; None for False.

    Args:
        split_sentences: True for the rules of the source language, or the code of a language.
        source_language: Code of the source language, if known.

    Raises:
        OptionError: The argument has another type, the language is unknown, or a package is not
            installed.
    """
    if not isinstance(split_sentences, (bool, str)):
        raise OptionError(
            f"split_sentences is {describe(split_sentences)}; it must be True, False or the code "
            "of a language."
        )
    if split_sentences is False:
        return None
    code = split_sentences if isinstance(split_sentences, str) else source_language
    if (language := base_language(code)) is not None:
        return sentence_rules(language)
    if isinstance(split_sentences, str):
        problem = f"split_sentences is {code!r}, which is no code of a language"
    elif code is None:
        problem = "the bundle does not name its source language, whose rules split sentences"
    else:
        problem = f"the source language {code!r} is none whose rules could split sentences"
    raise OptionError(f"{problem}; name one: split_sentences='de', --split-language de.")


def _finder(language: str) -> _Find:
    try:
        from sentencex import get_sentence_boundaries
    except ImportError as error:
        raise _missing("sentencex") from error

    def find(text: str) -> list[int]:
        try:
            return [one["start_index"] for one in get_sentence_boundaries(language, text)]
        except BaseException as error:
            # A panic of Rust code, which derives from BaseException: no reason to lose the text.
            if type(error).__name__ != "PanicException":
                raise
            log.warning("sentencex failed (%s); %d characters stay unsplit", error, len(text))
            return []

    return find


@cache
def _langcodes() -> Any:
    try:
        import langcodes
    except ImportError as error:
        raise _missing("langcodes") from error
    return langcodes


def _missing(package: str) -> OptionError:
    return OptionError(
        f"splitting sentences needs the package {package}, which is not installed; run pip install "
        "'translate-trt[split]'."
    )
